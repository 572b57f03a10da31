"""Declared tensors: their dimensions and dtypes, and whether the operands determine every extent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from normgen.diagnostics import Diagnostic, Label, Span
from normgen.dsl import ast
from normgen.dsl.names import Scope, axis_twice, suggestion, unknown_axis
from normgen.dtypes import DEVICE_DTYPES, DIFFERENTIABLE_DTYPES
from normgen.ir.program import Tensor, determined, dims_text, is_given

Dims = tuple[tuple[str, ...], ...]
DECLARING_ROLES = ("input", "param", "state")

_OTHER_DTYPES = {
    "float32": "f32", "fp32": "f32", "float": "f32", "single": "f32",
    "float16": "f16", "fp16": "f16", "half": "f16",
    "bfloat16": "bf16",
    "fp8": "f8e4m3", "f8": "f8e4m3", "e4m3": "f8e4m3", "float8_e4m3fn": "f8e4m3",
    "e5m2": "f8e5m2", "float8_e5m2": "f8e5m2",
}  # fmt: skip


def check_dimensions(
    dimensions: tuple[ast.Dimension, ...], declares: bool, scope: Scope
) -> tuple[Dims, list[Diagnostic]]:
    """The axes of each dimension. Inputs, params and states declare axes; the rest must name known ones."""
    faults: list[Diagnostic] = []
    seen: set[str] = set()
    known = list(scope.axes)
    for axis in (axis for dim in dimensions for axis in dim):
        if axis.text in seen:
            faults.append(axis_twice(axis))
        elif declares:
            scope.axes.setdefault(axis.text, axis.span)
        elif axis.text not in scope.axes:
            faults.append(unknown_axis(axis, known))
        seen.add(axis.text)
    return tuple(tuple(axis.text for axis in dim) for dim in dimensions), faults


def check_dtype(
    node: ast.ElementType | ast.ElementChoice | None,
    role: str,
    tensors: Mapping[str, Tensor],
    first_input: Tensor | None,
    decide: Callable[[ast.Expression], bool],
) -> tuple[str | None, str | None, list[Diagnostic]]:
    """(dtype, like, faults): a fixed dtype, or the operand that has it; neither if the caller chooses.

    `decide` evaluates a condition at compile time. The dtype of the other branch must exist too.
    """
    if isinstance(node, ast.ElementChoice):
        then = check_dtype(node.then, role, tensors, first_input, decide)
        otherwise = check_dtype(node.otherwise, role, tensors, first_input, decide)
        dtype, like, _ = then if decide(node.condition) else otherwise
        return dtype, like, then[2] + otherwise[2]
    if node is None:
        if role in ("input", "param"):
            return None, None, []
        if role in ("save", "state") or first_input is None:
            return "f32", None, []
        return *_same_as(first_input), []
    label = Label(node.name.span)
    if node.like:
        target = tensors.get(node.name.text)
        if target is None:
            help = suggestion(node.name.text, tensors) or ("`like` names a tensor declared above",)
            message = f"no tensor `{node.name.text}` is declared above"
            return None, None, [Diagnostic("name", message, (label,), help)]
        dtype, like = _same_as(target)
    else:
        dtype, like = node.name.text, None
        if dtype not in DEVICE_DTYPES:
            return None, None, [_unknown_dtype(node.name)]
    if role == "state" and dtype != "f32":
        return (
            "f32",
            None,
            [Diagnostic("dtype", "a state is f32", (Label(node.span),), ("remove the dtype",))],
        )
    return dtype, like, []


def _unknown_dtype(name: ast.Identifier) -> Diagnostic:
    if name.text in _OTHER_DTYPES:
        help = f"write `{_OTHER_DTYPES[name.text]}`"
    elif name.text in ("f64", "float64", "double"):
        help = "write `f32`: kernels compute in float32, and only the reference in float64"
    else:
        listed = f"the dtypes are {', '.join(f'`{d}`' for d in DEVICE_DTYPES)}, and `like x`"
        help = (*suggestion(name.text, DEVICE_DTYPES), listed)[0]
    return Diagnostic("dtype", f"there is no dtype `{name.text}`", (Label(name.span),), (help,))


def _same_as(tensor: Tensor) -> tuple[str | None, str | None]:
    """Follows `like` to a fixed dtype or to the operand that the caller gives."""
    if tensor.dtype is not None:
        return tensor.dtype, None
    return None, tensor.like or tensor.name


def element_type(tensor: Tensor) -> str:
    """The dtype that a cast to this tensor rounds to."""
    dtype, like = _same_as(tensor)
    return dtype if dtype is not None else f"like {like}"


def differentiable(tensor: Tensor) -> bool:
    """Not known to be narrower than 16 bits."""
    return tensor.dtype is None or tensor.dtype in DIFFERENTIABLE_DTYPES


def check_extents(
    tensors: Iterable[Tensor], heads: Mapping[str, Span], fixed: Mapping[str, int | None]
) -> list[Diagnostic]:
    """Axes whose length does not follow from the shapes of the operands that every call passes."""
    tensors = list(tensors)
    known = determined(filter(is_given, tensors), fixed)
    faults, said = [], set[str]()
    for tensor in tensors:
        for dim in tensor.dims:
            unknown = [axis for axis in dim if axis not in known and axis not in said]
            if unknown:
                said |= set(unknown)
                faults.append(_unknown_extent(unknown, dim, heads[tensor.name], tensor))
    return faults


def _unknown_extent(unknown: list[str], dim: tuple[str, ...], head: Span, tensor: Tensor) -> Diagnostic:
    shown = " and ".join(f"`{axis}`" for axis in unknown)
    if len(dim) > 1:
        message = f"the lengths of {shown} are ambiguous" if len(unknown) > 1 else f"{shown} has no length"
        help = f"fix the length of all axes of `({' '.join(dim)})` but one, for example `axis {dim[0]} = 8`"
    else:
        message = f"the length of {shown} is unknown when a call omits `{tensor.name}`"
        help = f"use an axis of an input, remove the default of `{tensor.name}`, or add `axis {dim[0]} = ...`"
    return Diagnostic("extent", message, (Label(head),), (help,))


def axes_fault(
    tensor: Tensor, head: Span, node: ast.Expression, axes: Collection[str], scope: Scope
) -> Diagnostic:
    """The diagnostic for a value whose axes differ from those that its tensor declares."""
    more = [axis for axis in scope.axes if axis in axes and axis not in tensor.axes]
    less = [axis for axis in scope.axes if axis in tensor.axes and axis not in axes]
    listed, wanted = ", ".join(more), f"{tensor.name}{scope.brackets(axes)}"
    if more:
        message = f"`{tensor.name}` is declared without {_axes(more)}, but its value varies over {_it(more)}"
        help = f"reduce over {listed}, for example `mean[{listed}](...)`, or declare `{wanted}`"
    else:
        message = (
            f"`{tensor.name}` is declared with {_axes(less)}, but its value does not vary over {_it(less)}"
        )
        help = f"declare `{wanted}`; later uses broadcast it"
    has = f"this has axes {scope.brackets(axes)}" if axes else "this has no axes"
    declared = Label(head, f"declared with axes [{dims_text(tensor.dims)}]", primary=False)
    return Diagnostic("axes", message, (Label(node.span, has), declared), (*_misnamed(more, scope), help))


def _misnamed(axes: list[str], scope: Scope) -> tuple[str, ...]:
    """The help if only a param has these axes, and no others: they most likely stand for an input's."""
    found = [t for t in scope.tensors() if not t.axes.isdisjoint(axes)]
    first = next((t for t in scope.tensors() if t.role == "input"), None)
    if first is None or [t.role for t in found] != ["param"] or not found[0].axes <= {*axes}:
        return ()
    (param,) = found
    dims = dims_text(first.dims[-len(param.dims) :])
    return (f"to apply `{param.name}` to `{first.name}`, declare `{param.name}[{dims}]`",)


def _axes(axes: list[str]) -> str:
    return ("axis " if len(axes) == 1 else "axes ") + " and ".join(f"`{axis}`" for axis in axes)


def _it(axes: list[str]) -> str:
    return "it" if len(axes) == 1 else "them"
