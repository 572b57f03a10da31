"""What is differentiated with respect to what: the `grad` statement, or every output by every operand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normgen.diagnostics import Diagnostic, Label
from normgen.dsl import ast
from normgen.dsl.names import Scope, suggestion
from normgen.dsl.tensors import differentiable
from normgen.ir.program import Tensor


@dataclass(frozen=True, slots=True)
class Request:
    """Names as `grad` lists them, else in the order of the spec; `lets` are the lets among them."""

    of: tuple[str, ...] = ()
    wrt: tuple[str, ...] = ()
    lets: tuple[Tensor, ...] = ()


def check_gradient(
    statements: Sequence[ast.Gradient],
    tensors: Mapping[str, Tensor],
    lets: Mapping[str, Tensor | None],
    scope: Scope,
) -> tuple[Request, list[Diagnostic]]:
    """The request that the `grad` statement makes, or the default one."""
    if not statements:
        return _default_request(tensors), []
    faults = [
        Diagnostic("grad", "a second `grad`", (Label(extra.span),), ("list all names in one `grad`",))
        for extra in statements[1:]
    ]
    statement = statements[0]
    for names, roles in ((statement.of, ("output",)), (statement.wrt, _OPERANDS)):
        known = [t.name for t in tensors.values() if t.role in roles]
        for name in names:
            faults += _unknown(name, known, tensors, lets, scope)
    if faults:
        return Request(), faults
    for names, check in ((statement.of, _of_fault), (statement.wrt, _wrt_fault)):
        seen: set[str] = set()
        for name in names:
            if name.text in seen:
                label, message = Label(name.span), f"`{name.text}` is listed twice"
                faults.append(Diagnostic("grad", message, (label,), ("remove one of them",)))
            elif fault := check(name, tensors, lets, scope):
                faults.append(fault)
            seen.add(name.text)
    of, wrt = (tuple(dict.fromkeys(n.text for n in names)) for names in (statement.of, statement.wrt))
    inner = tuple(t for name, t in lets.items() if t is not None and name in (*of, *wrt))
    return Request(of, wrt, inner), faults


_OPERANDS = ("input", "param")


def _default_request(tensors: Mapping[str, Tensor]) -> Request:
    """Every output by every operand."""
    smooth = [t for t in tensors.values() if differentiable(t)]
    outputs = tuple(t.name for t in smooth if t.role == "output")
    operands = tuple(t.name for t in smooth if t.role in _OPERANDS)
    return Request(outputs, operands) if outputs and operands else Request()


def _unknown(
    name: ast.Identifier,
    known: Sequence[str],
    tensors: Mapping[str, Tensor],
    lets: Mapping[str, object],
    scope: Scope,
) -> list[Diagnostic]:
    """The fault of a name that is not defined; `known` are the tensors allowed there."""
    if name.text in tensors or name.text in lets:
        return []
    if name.text in scope.values:
        message = f"`{name.text}` is an attr, and an attr has no gradient"
        declare = f"declare it as `param {name.text}[] = ...`, a tensor of one number"
        return [Diagnostic("grad", message, (Label(name.span),), (declare,))]
    help = suggestion(name.text, [*tensors, *lets])
    if not help and known:
        help = (f"the names allowed here are {', '.join(f'`{each}`' for each in known)}",)
    return [Diagnostic("name", f"`{name.text}` is not defined", (Label(name.span),), help)]


def _let_fault(name: ast.Identifier, lets: Mapping[str, Tensor | None], scope: Scope) -> Diagnostic | None:
    """A let that is differentiated is an argument of the backward, so it must declare its memory order."""
    if lets[name.text] is not None:
        return None
    head = scope.values[name.text].head
    labels = (Label(name.span), Label(head, "declared without axes", primary=False))
    help = f"write for example `let {name.text}[..., D] = ...`; its gradient has this order in memory"
    message = f"`{name.text}` is differentiated, so it must declare its axes"
    return Diagnostic("grad", message, labels, (help,))


def _of_fault(
    name: ast.Identifier, tensors: Mapping[str, Tensor], lets: Mapping[str, Tensor | None], scope: Scope
) -> Diagnostic | None:
    if name.text in lets:
        return _let_fault(name, lets, scope)
    role = tensors[name.text].role
    if role == "output":
        return None
    help = "declare it as `save output`" if role == "save" else f"write `grad ... wrt {name.text}`"
    labels = (Label(name.span), Label(scope.values[name.text].head, f"declared as {role}", primary=False))
    message = f"`{name.text}` is not an output, so the backward receives no gradient of it"
    return Diagnostic("grad", message, labels, (help,))


def _wrt_fault(
    name: ast.Identifier, tensors: Mapping[str, Tensor], lets: Mapping[str, Tensor | None], scope: Scope
) -> Diagnostic | None:
    if name.text in lets:
        return _let_fault(name, lets, scope)
    tensor, head = tensors[name.text], scope.values[name.text].head
    if tensor.role in _OPERANDS:
        if differentiable(tensor):
            return None
        labels = (Label(name.span), Label(head, f"has dtype {tensor.dtype}", primary=False))
        help = "give its value a name with `let`, and differentiate with respect to that"
        message = f"`{name.text}` has no gradient, because its dtype has only 8 bits"
        return Diagnostic("grad", message, labels, (help,))
    labels = (Label(name.span), Label(head, f"declared as {tensor.role}", primary=False))
    message = f"`{name.text}` is not an input, a param or a `let`"
    help = "differentiate with respect to what it is computed from"
    return Diagnostic("grad", message, labels, (help,))


def check_clashes(request: Request, tensors: Mapping[str, Tensor], scope: Scope) -> list[Diagnostic]:
    """Names that clash with the gradient of another name."""
    sources = [t.name for t in tensors.values() if t.role in ("input", "param", "output")]
    sources += [tensor.name for tensor in request.lets]
    faults = []
    for source in sources:
        if entity := scope.values.get(f"d{source}"):
            labels = (
                Label(entity.head),
                Label(scope.values[source].head, f"its gradient is `d{source}`", primary=False),
            )
            message = f"`d{source}` is the name of a gradient"
            faults.append(Diagnostic("name", message, labels, ("choose another name",)))
    return faults
