"""A module of any spec: its params as Parameters, its states as buffers, its inputs as arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from normgen.api import read_definition
from normgen.counting import counted
from normgen.ir.program import Definition, Program, Tensor
from normgen.runtime.norm import Norm
from normgen.torch.dtypes import TYPES
from normgen.torch.function import NormFunction
from normgen.torch.loading import function
from normgen.torch.nn.sizes import Sizes, shapes
from normgen.torch.nn.statistics import narrowed, widened
from normgen.torch.nn.whole import Whole, are_tensors, instead

Spec = str | os.PathLike[str] | ModuleType | Norm | NormFunction
Begin = float | Callable[[torch.Tensor], object]

TRAINING = "training"  # an attr of this name follows the mode of the module


def from_spec(
    spec: Spec,
    /,
    *,
    sizes: Sizes | None = None,
    omit: tuple[str, ...] = (),
    init: Mapping[str, Begin] | None = None,
    device: Any = None,
    dtype: Any = None,
    **attrs: Any,
) -> SpecModule:
    """A module of a spec.

    Args:

    - spec: a bundled name, a path, a spec's text, a generated module, a norm, or a function of `nt.load`.
    - sizes: the lengths of the axes of params and states, by name: `{"D": 4096}`. Write a dimension that the
      spec splits as the spec does, `{"(G C)": 64}`; `...` takes a tuple.
    - omit: params and states to leave out. They are None, and the spec's defaults apply.
    - init: initial values of params and states, by name, instead of the spec's defaults: a number, or a
      function that fills a tensor, such as those of `torch.nn.init`.
    - device, dtype: of params. States are float32, or float64 if dtype is.
    - attrs: the spec's attrs by name. Integers and choices are fixed; the others are in `module.attrs`, where
      you may change them. A choice named `training` follows `module.training` unless you set it.

    Raises what `normgen.load` raises, and ValueError for sizes and names that the spec does not have.

    >>> norm = nt.nn.from_spec("rmsnorm", sizes={"D": 4096}, eps=1e-5)
    >>> y = norm(x)
    """
    source, given = _source(spec, attrs)
    definition = read_definition(source, given)
    program = definition.program
    owned = [tensor for tensor in program.operands if tensor.role != "input"]
    _check_names(program.name, owned, (*omit, *(init or {})))
    kept = [tensor for tensor in owned if tensor.name not in omit]
    begins = {tensor.name: _begin(program.name, tensor, init or {}) for tensor in kept}
    tensors = _empty(kept, shapes(program, kept, sizes or {}), device, dtype)
    return SpecModule(_outline(definition, given), _numbers(program), tensors, begins)


@dataclass(frozen=True)
class Outline:
    """What a module has of its spec: its text and the attrs that are fixed, which its function is loaded by,
    and the names of operands in order, of the inputs and of the states among them. `moved`: the states that a
    call in evaluation would update, and that stay as they are."""

    name: str
    text: str
    fixed: dict[str, Any]
    follows_mode: bool  # whether the attr `training` is the mode of the module
    operands: tuple[str, ...]
    inputs: tuple[str, ...]
    states: tuple[str, ...]
    moved: frozenset[str]

    @property
    def call(self) -> str:
        """How messages show a call."""
        return f"{self.name}({', '.join(self.inputs)})"

    def function(self, training: bool) -> NormFunction:
        """The function of a mode."""
        mode = {TRAINING: training} if self.follows_mode else {}
        return function(self.text, **self.fixed, **mode)

    def bind(self, operands: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs by name. TypeError where one is missing, or what is given is none."""
        if len(operands) > len(self.inputs):
            raise TypeError(
                f"{self.call} takes {counted(len(self.inputs), 'tensor')}, but {len(operands)} are given"
            )
        given = dict(zip(self.inputs, operands, strict=False))
        for name, tensor in named.items():
            if name not in self.inputs or name in given:
                fault = "is given twice" if name in given else "is not one of its inputs"
                raise TypeError(f"{self.call}: {name} {fault}")
            given[name] = tensor
        for name in self.inputs:
            if given.get(name) is None:
                raise TypeError(f"{self.call}: {name} is missing")
        return given


class SpecModule(Whole, torch.nn.Module):
    """A module of a spec, made by `from_spec`.

    It has a Parameter for each param and a buffer for each state, by the spec's names. Called with the
    spec's inputs, by position in the order of the spec or by name, it returns the spec's output, or a named
    tuple of several. It updates states in training mode only. `attrs` holds the attrs that may be changed, by
    name.
    """

    def __init__(
        self,
        outline: Outline,
        attrs: dict[str, float],
        tensors: Mapping[str, torch.Tensor],
        begins: Mapping[str, Begin],
    ) -> None:
        super().__init__()
        self.attrs = attrs
        self._outline = outline
        self._begins = begins
        for name in outline.operands:
            if name in outline.states:
                self.register_buffer(name, tensors.get(name))
            elif name not in outline.inputs:
                values = tensors.get(name)
                self.register_parameter(name, None if values is None else torch.nn.Parameter(values))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill params and states with their initial values."""
        with torch.no_grad():
            for name, begin in self._begins.items():
                tensor = getattr(self, name)
                begin(tensor) if callable(begin) else tensor.fill_(begin)

    def forward(self, *operands: torch.Tensor, **named: torch.Tensor) -> Any:
        outline = self._outline
        given = outline.bind(operands, named)
        if not are_tensors(*given.values()):
            return instead(self, **given)
        states = [getattr(self, name) for name in outline.states]
        if not self.training and outline.moved:
            states = [
                state.clone() if name in outline.moved and state is not None else state
                for name, state in zip(outline.states, states, strict=True)
            ]
        wide = widened(states)
        given.update(zip(outline.states, wide, strict=True))
        tensors = [given[name] if name in given else getattr(self, name) for name in outline.operands]
        made = outline.function(self.training)(*tensors, **self.attrs)
        narrowed(states, wide)
        return made

    def _get_name(self) -> str:
        return self._outline.name

    def extra_repr(self) -> str:
        outline = self._outline
        shown: dict[str, Any] = {}
        for name in outline.operands:
            if name not in outline.inputs:
                tensor = getattr(self, name)
                shown[name] = None if tensor is None else tuple(tensor.shape)
        return ", ".join(
            f"{name}={value}" for name, value in {**shown, **outline.fixed, **self.attrs}.items()
        )


def _source(spec: Spec, attrs: dict[str, Any]) -> tuple[str | os.PathLike[str], dict[str, Any]]:
    """A source of `normgen.load`, and attrs: with those that a compiled norm was compiled for."""
    if isinstance(spec, (str, os.PathLike)):
        return spec, attrs
    norm = spec.norm if isinstance(spec, NormFunction) else getattr(spec, "NORM", spec)
    if not isinstance(norm, Norm):
        raise TypeError(
            f"expected a spec, a generated module, a norm or a function, got {type(spec).__name__}"
        )
    return norm.package.spec, {**dict(norm.package.folded), **attrs}


def _outline(definition: Definition, attrs: Mapping[str, Any]) -> Outline:
    program, text = definition.program, definition.source.text
    kinds = {attr.name: attr.kind for attr in program.attrs}
    by_role = {
        role: tuple(tensor.name for tensor in program.operands if tensor.role == role)
        for role in ("input", "state")
    }
    follows = kinds.get(TRAINING) == "bool" and TRAINING not in attrs
    evaluation = read_definition(text, {**attrs, TRAINING: False}).program if follows else program
    return Outline(
        program.name,
        text,
        {name: value for name, value in attrs.items() if kinds[name] != "float"},
        follows,
        tuple(tensor.name for tensor in program.operands),
        by_role["input"],
        by_role["state"],
        frozenset(update.state for update in evaluation.updates),
    )


def _numbers(program: Program) -> dict[str, float]:
    """The attrs that a call may choose."""
    found = {attr.name: attr.value for attr in program.attrs if attr.kind == "float"}
    for name, value in found.items():
        if value is None:
            raise ValueError(
                f"attr {name} of {program.name} has no default: pass it, for instance {name}=0.5"
            )
    return {name: float(value) for name, value in found.items() if value is not None}


def _check_names(norm: str, owned: list[Tensor], names: tuple[str, ...]) -> None:
    known = [tensor.name for tensor in owned]
    for name in names:
        if name not in known:
            raise ValueError(f"{norm} has no param or state {name!r}; it has {', '.join(known) or 'none'}")


def _begin(norm: str, tensor: Tensor, init: Mapping[str, Begin]) -> Begin:
    begin = init.get(tensor.name, None if tensor.default is None else float(tensor.default))
    if begin is None:
        raise ValueError(
            f"{tensor.name} of {norm} has no default: pass its initial value, for instance "
            f"init={{{tensor.name!r}: 0.5}}"
        )
    return begin


def _empty(
    tensors: list[Tensor], shapes: Mapping[str, tuple[int, ...]], device: Any, dtype: Any
) -> dict[str, torch.Tensor]:
    """A tensor for each param and state. Kernels keep states in float32, and float64 where all is."""
    made = {}
    for tensor in tensors:
        kept = TYPES[tensor.dtype] if tensor.dtype is not None else dtype
        if tensor.role == "state" and dtype is torch.float64:
            kept = dtype
        made[tensor.name] = torch.empty(shapes[tensor.name], device=device, dtype=kept)
    return made
