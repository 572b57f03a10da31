"""Names: which are defined, which are allowed, and whether all names of an expression are defined.

Values, functions and axes have separate namespaces. Both branches of a choice are checked, before
evaluation.
"""

from __future__ import annotations

import keyword
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from normgen.diagnostics import Diagnostic, Label, Span
from normgen.dsl import ast
from normgen.dsl.functions import (
    CAST,
    ELSEWHERE,
    REDUCTIONS,
    VALUES_ELSEWHERE,
    Signature,
    built_in,
    built_in_names,
    signature,
)
from normgen.ir.program import Tensor, dims_text

API_WORDS = frozenset({"self", "out", "stream", "workspace", "accumulate", "save", "wrt", "sm_count"})
_DTYPE_CALLS = {
    **dict.fromkeys(("f32", "float32", "float"), "remove it: every value is float32"),
    "float16": "write `f16(v)`",
    "half": "write `f16(v)`",
    "bfloat16": "write `bf16(v)`",
    **dict.fromkeys(("f64", "float64", "double"), "remove it: kernels compute in float32, not float64"),
}


@dataclass(frozen=True, slots=True)
class Entity:
    """A name of the namespace of values.

    `what`: "float attr", "int attr", "bool attr", a role, or "let". `head`: where it is declared.
    """

    name: str
    what: str
    head: Span
    tensor: Tensor | None = None


@dataclass(slots=True)
class Scope:
    """The definitions so far, in order.

    `functions`: those written in the language. `own`: those of the spec. `broken`: those with a fault.
    `called`: all that have been called so far, including built-in ones.
    """

    values: dict[str, Entity] = field(default_factory=dict)
    functions: dict[str, ast.Function] = field(default_factory=dict)
    axes: dict[str, Span] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)

    def brackets(self, axes: Collection[str]) -> str:
        """Axes as a declaration lists them: in the order and the dimensions of tensors, `[B, (G C)]`."""
        wanted, found = {*axes}, list[tuple[str, ...]]()
        tensors = sorted(self.tensors(), key=lambda tensor: -len(tensor.axes & wanted))
        dims = [dim for tensor in tensors for dim in tensor.dims]
        parts = [p for dim in dims for p in ([dim] if wanted.issuperset(dim) else [(a,) for a in dim])]
        for part in (*parts, *((axis,) for axis in (*self.axes, *axes))):
            if wanted.difference(*found).issuperset(part):
                found.append(part)
        return f"[{dims_text(found)}]"

    def tensors(self) -> list[Tensor]:
        return [entity.tensor for entity in self.values.values() if entity.tensor is not None]


def reserved(name: ast.Identifier) -> Diagnostic | None:
    """Why a word cannot name a value, a function or the norm."""
    word = name.text
    if keyword.iskeyword(word):
        owner = "a keyword of Python"
    elif word in API_WORDS:
        owner = "an argument of `forward` and `backward`"
    else:
        return None
    message = f"`{word}` is {owner} and cannot be a name"
    return Diagnostic("name", message, (Label(name.span),), (f"choose another name, for example `{word}_`",))


def defined_twice(name: ast.Identifier, earlier: Span, kind: str = "") -> Diagnostic:
    labels = (Label(name.span), Label(earlier, "defined here", primary=False))
    help = f"choose another name, for example `{name.text}2`"
    return Diagnostic("name", f"{kind}`{name.text}` is defined twice", labels, (help,))


def suggestion(word: str, known: Iterable[str], cutoff: float = 0.6) -> tuple[str, ...]:
    """A help line with the nearest known names."""
    close = get_close_matches(word, list(known), n=2, cutoff=cutoff)
    return (f"did you mean {' or '.join(f'`{c}`' for c in close)}?",) if close else ()


@dataclass(frozen=True, slots=True)
class Names:
    """The names that an expression may use.

    `later`: values that the spec defines further down. `only`: why the expression may use only `values`.
    """

    values: Collection[str]
    axes: Collection[str]
    functions: Mapping[str, ast.Function]
    scope: Scope
    later: Mapping[str, Span] = field(default_factory=dict)
    only: str = ""


MOST_SHOWN = 8  # names that a message lists
_COMMENTS = "a comment begins with `#`; `//` divides"


def check_names(expression: ast.Expression, names: Names) -> list[Diagnostic]:
    """Every unknown name, wrong number of arguments and misplaced bracket of an expression."""
    faults: list[Diagnostic] = []
    stack: list[ast.Expression] = [expression]
    while stack:
        node = stack.pop()
        match node:
            case ast.Name():
                faults += _value_faults(node, names)
            case ast.Unary(operand=operand):
                stack.append(operand)
            case ast.Binary(operator="//", left=left, right=ast.Name() as right):
                faults += _value_faults(right, names, (_COMMENTS,))
                stack.append(left)
            case ast.Binary(left=left, right=right):
                stack += (right, left)
            case ast.Conditional(then=then, condition=condition, otherwise=otherwise):
                stack += (otherwise, condition, then)
            case ast.Subscript():
                faults += _subscript_faults(node, names) + _over_faults(node.over, names, stack)
            case ast.Call():
                faults += _call_faults(node, names) + _over_faults(node.over, names, stack)
                casts = node.function.text == CAST and CAST not in names.functions
                stack.extend(reversed(node.arguments[:1] if casts else node.arguments))
    return faults


def _value_faults(node: ast.Name, names: Names, help: tuple[str, ...] = ()) -> list[Diagnostic]:
    word, label = node.text, Label(node.span)
    names.scope.used.add(word)
    if word in names.values:
        return []
    if word in names.scope.values or word in names.later:
        if names.only:
            return [Diagnostic("name", f"`{word}` cannot be used here", (label,), (names.only,))]
        labels = (label, Label(names.later[word], "defined here", primary=False))
        if names.later[word].start < node.span.start:
            message, cure = f"`{word}` is used in its own definition", "give the new value another name"
        else:
            message, cure = f"`{word}` is used before it is defined", "move its definition above this line"
        return [Diagnostic("name", message, labels, (cure,))]
    if built_in(word) or word in names.functions:
        call = f"call it: `{_example(word, names)}`"
        return [Diagnostic("name", f"`{word}` is a function", (label,), (call,))]
    return [Diagnostic("name", f"`{word}` is not defined", (label,), help or _known(word, names))]


def _known(word: str, names: Names) -> tuple[str, ...]:
    """The help for a name that is not defined."""
    if word in VALUES_ELSEWHERE:
        return (VALUES_ELSEWHERE[word],)
    if close := suggestion(word, names.values):
        return close
    if names.only:
        return (names.only,)
    shown = [f"`{name}`" for name in names.values][:MOST_SHOWN]
    more = ", ..." if len(names.values) > len(shown) else ""
    known = f"defined above: {', '.join(shown)}{more}" if shown else "nothing is defined above"
    return (f"{known}; to define it, add `let {word} = ...`",)


def _example(word: str, names: Names) -> str:
    if word in names.functions:
        function = names.functions[word]
        axis = f"[{_axis(names)}]" if function.axis else ""
        return f"{word}{axis}({', '.join(p.text for p in function.parameters)})"
    if word == CAST:
        return "cast(v, x)"
    called = built_in(word)
    assert called is not None
    values = "v" if called.parameters == 1 else ", ".join("abcdef"[: called.parameters])
    elementwise, reduced = f"{word}({values})", f"{word}[{_axis(names)}](v)"
    if called.axes is None:
        return f"{elementwise}` or `{reduced}"
    return reduced if called.axes else elementwise


def _axis(names: Names) -> str:
    """An axis to show in an example."""
    return list(names.axes)[-1] if names.axes else "D"


def _subscript_faults(node: ast.Subscript, names: Names) -> list[Diagnostic]:
    word, label = node.function.text, Label(node.span)
    if word == "size":
        if any(isinstance(reach, ast.Window) for reach in node.over):
            help = "write `size[D]`; a window has `high - low + 1` elements"
            return [Diagnostic("window", "`size` takes axes, not windows", (label,), (help,))]
        return []
    if word in names.values:
        names.scope.used.add(word)
        help = f"write `{word}`: its declaration states its axes"
        return [Diagnostic("syntax", "values cannot be indexed or sliced", (label,), (help,))]
    if built_in(word) or word in names.functions:
        help = f"call it: `{_example(word, names)}`"
        return [Diagnostic("arguments", f"`{word}` has no arguments here", (label,), (help,))]
    help_lines = suggestion(word, ["size", *names.values]) or ("the length of an axis is `size[D]`",)
    return [Diagnostic("name", f"`{word}` is not defined", (Label(node.function.span),), help_lines)]


def _call_faults(node: ast.Call, names: Names) -> list[Diagnostic]:
    word = node.function.text
    known = names.functions.get(word)
    names.scope.called.add(word)
    called = signature(known) if known else built_in(word)
    if called is None:
        return [_unknown_function(node, names)]
    if called.axes is None:
        called = Signature(bool(node.over), 1 if node.over else called.parameters)
    faults = _axes_faults(node, called, names)
    if len(node.arguments) != called.parameters:
        count = "one argument" if called.parameters == 1 else f"{called.parameters} arguments"
        message = f"`{word}` takes {count}, not {len(node.arguments)}"
        help = f"write `{_example(word, names)}`"
        if known is None and word in REDUCTIONS and not node.over and len(node.arguments) == 1:
            help = f"to reduce, name the axes: `{word}[{_axis(names)}](v)`"
        faults.append(Diagnostic("arguments", message, (Label(node.span),), (help,)))
    faults += _window_faults(node, known)
    if known is None and word == CAST and len(node.arguments) == 2:
        faults += _cast_faults(node.arguments[1], names)
    return faults


def _axes_faults(node: ast.Call, called: Signature, names: Names) -> list[Diagnostic]:
    word, labels = node.function.text, (Label(node.span),)
    if node.over and not called.axes:
        help = f"write `{_example(word, names)}`"
        return [Diagnostic("arguments", f"`{word}` is elementwise and takes no axes", labels, (help,))]
    if called.axes and not node.over:
        help = f"name the axes, as in `{word}[{_axis(names)}](...)`"
        return [Diagnostic("arguments", f"`{word}` needs axes", labels, (help,))]
    return []


def _window_faults(node: ast.Call, known: ast.Function | None) -> list[Diagnostic]:
    word = node.function.text
    message, windows = f"`{word}` takes no window", [r for r in node.over if isinstance(r, ast.Window)]
    if known is None and windows and word != "sum":
        help = "only `sum` takes a window: `sum[C: -1..1](v)`"
        return [Diagnostic("window", message, (Label(node.span),), (help,))]
    if known is not None and windows:
        help = "only `sum` takes a window; for a mean, divide by the number of elements"
        return [Diagnostic("window", message, (Label(windows[0].span),), (help,))]
    return []


def _unknown_function(node: ast.Call, names: Names) -> Diagnostic:
    word, label = node.function.text, Label(node.function.span)
    if word == "size":
        return Diagnostic("name", "`size` takes axes", (label,), ("write `size[D]`",))
    if word in names.values:
        names.scope.used.add(word)
        help = f"to multiply, write `{word} * (...)`"
        return Diagnostic("name", f"`{word}` is a value, not a function", (label,), (help,))
    if word in _DTYPE_CALLS:
        return Diagnostic("name", f"there is no function `{word}`", (label,), (_DTYPE_CALLS[word],))
    known, cure = [*built_in_names(), *names.functions], ELSEWHERE.get(word)
    close = suggestion(word, known, cutoff=0.75) if cure is None else ()
    listed = (f"the functions are {', '.join(f'`{k}`' for k in known)}", "define others with `fn`")
    help_lines = (cure,) if cure else close or listed
    return Diagnostic("name", f"there is no function `{word}`", (label,), help_lines)


def _cast_faults(target: ast.Expression, names: Names) -> list[Diagnostic]:
    if isinstance(target, ast.Name):
        if target.text not in names.values:
            return _value_faults(target, names)
        names.scope.used.add(target.text)
        entity = names.scope.values.get(target.text)
        if entity is not None and (entity.tensor is not None or entity.what in _TENSOR_ROLES):
            return []
    help = "`cast(v, x)` rounds `v` to the dtype of tensor `x`; to round to a fixed dtype, write `bf16(v)`"
    message = "the second argument of `cast` must be the name of a tensor"
    return [Diagnostic("arguments", message, (Label(target.span),), (help,))]


_TENSOR_ROLES = frozenset({"input", "param", "state", "save", "output", "save output"})


def _over_faults(over: tuple[ast.Reach, ...], names: Names, stack: list[ast.Expression]) -> list[Diagnostic]:
    faults: list[Diagnostic] = []
    seen: set[str] = set()
    for reach in over:
        axis = reach.axis if isinstance(reach, ast.Window) else reach
        if axis.text not in names.axes:
            faults.append(unknown_axis(axis, names.axes, names.only))
        elif axis.text in seen:
            faults.append(axis_twice(axis))
        seen.add(axis.text)
        if isinstance(reach, ast.Window):
            stack += (reach.high, reach.low)
    if len({isinstance(reach, ast.Window) for reach in over}) > 1:
        span = over[0].span.to(over[-1].span)
        help = "write two sums: a window keeps its axis, a reduction removes it"
        faults.append(Diagnostic("window", "one sum has both windows and axes", (Label(span),), (help,)))
    return faults


def axis_twice(axis: ast.Identifier) -> Diagnostic:
    help = "`...` stands for all remaining dimensions" if axis.text == "..." else "remove one of them"
    return Diagnostic("axes", f"axis `{axis.text}` is listed twice", (Label(axis.span),), (help,))


def unknown_axis(axis: ast.Identifier, known: Collection[str], only: str = "") -> Diagnostic:
    help = suggestion(axis.text, known) or ((only,) if only else ())
    if not help and known:
        help = (f"the axes are {', '.join(f'`{a}`' for a in known)}",)
    return Diagnostic("name", f"no tensor above has an axis `{axis.text}`", (Label(axis.span),), help)


def check_function(function: ast.Function, scope: Scope) -> list[Diagnostic]:
    """Faults of a function's definition. Its body may use its parameters and the functions before it.

    It may replace a built-in function, so that a new built-in function breaks no spec.
    """
    name, faults = function.name, []
    if fault := reserved(name):
        faults.append(fault)
    if name.text == "size":
        message = f"`{name.text}` is part of the language and cannot be redefined"
        faults.append(Diagnostic("name", message, (Label(name.span),), ("choose another name",)))
    elif name.text in scope.own:
        message = f"function `{name.text}` is already defined"
        faults.append(Diagnostic("name", message, (Label(name.span),), ("choose another name",)))
    elif name.text in scope.called and (built_in(name.text) or name.text in scope.functions):
        message = f"`{name.text}` is defined after a call of the function that it replaces"
        help = "define it above its first call, or choose another name"
        faults.append(Diagnostic("name", message, (Label(name.span),), (help,)))
    parameters: dict[str, Span] = {}
    for parameter in function.parameters:
        if parameter.text in parameters:
            faults.append(defined_twice(parameter, parameters[parameter.text], "parameter "))
        parameters.setdefault(parameter.text, parameter.span)
    if recursive := _calls_of(function.body, name.text):
        message = f"`{name.text}` calls itself, but functions are expanded where they are called"
        help = "write the formula out: there is no recursion and there are no loops"
        return [*faults, Diagnostic("name", message, (Label(recursive),), (help,))]
    axes = [function.axis.text] if function.axis else []
    only = "a function can use only its parameters; pass the value as an argument"
    # (a parameter does not count as a use of a namesake)
    inside = Scope(scope.values, scope.functions, scope.axes, called=scope.called)
    return faults + check_names(function.body, Names(parameters, axes, scope.functions, inside, only=only))


def _calls_of(expression: ast.Expression, function: str) -> Span | None:
    stack: list[ast.Node] = [expression]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call) and node.function.text == function:
            return node.function.span
        stack.extend(ast.children(node))
    return None
