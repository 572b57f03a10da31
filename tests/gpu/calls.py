"""One call of a norm from PyTorch, forward and backward.

All that a call is lies in `Call`, a value: two that differ in one field may be made in turn, so that one that
is taken for the other shows. The same code runs on a GPU and, by the host executor, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import torch

import normgen.torch as nt
from normgen import bundled
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.grad import backward
from normgen.package.direction import directions
from normgen.torch.autocast import widened
from normgen.torch.dtypes import TYPES
from normgen.verify.cases import Case, DtypeSet, make_case, same_dtype
from normgen.verify.draw import draw, scalar_values
from normgen.verify.expected import Subject
from tests.gpu.layouts import DENSE, laid

F32 = same_dtype("f32")
Attrs = tuple[tuple[str, Any], ...]
Tensors = dict[str, Any]


class Known:
    """A norm with its mathematics and its function of tensors, which are made when they are asked for."""

    def __init__(self, spec: str, attrs: Attrs) -> None:
        self.spec, self.attrs = spec, dict(attrs)
        source = Source("text.norm", spec) if "\n" in spec else bundled.read(spec)
        self.definition = load_definition(source, self.attrs)
        self.operands = self.definition.program.operands
        results = self.definition.program.results
        self.outputs = tuple(r.tensor.name for r in results if r.tensor.role == "output")
        # The outputs that PyTorch differentiates.
        self.differentiated = tuple(name for name in self.outputs if name in self.definition.of)

    @property
    def optional(self) -> tuple[str, ...]:
        """The operands that a call may leave out."""
        required = directions(self.function.norm.package)[0].required
        return tuple(each.name for each in self.operands if each.name not in required)

    @cached_property
    def function(self) -> nt.NormFunction:
        return nt.load(self.spec, **self.attrs)

    @cached_property
    def subject(self) -> Subject:
        derived = backward(self.definition) if self.definition.of else None
        return Subject(self.definition, derived, self.function.norm)


@cache
def known(spec: str, attrs: Attrs) -> Known:
    """A bundled norm by its name, or one by its text."""
    return Known(spec, attrs)


@dataclass(frozen=True)
class Call:
    """A call: a norm, lengths, element types, how each tensor lies, what is left out, what is differentiated.

    `wrt`: operands that require a gradient, if the spec has one for them. `unread`: outputs that no cotangent
    comes to. `scalars`: float attrs that are given, by name.
    """

    spec: str
    attrs: Attrs = ()
    rows: int = 3
    width: int = 8
    dtypes: DtypeSet = F32
    sizes: tuple[tuple[str, int], ...] = ()
    layouts: tuple[tuple[str, str], ...] = ()  # of operands and cotangents, where they are not dense
    absent: tuple[str, ...] = ()
    wrt: tuple[str, ...] | None = None  # None: everything
    unread: tuple[str, ...] = ()
    scalars: tuple[tuple[str, float], ...] = ()
    mode: str = "gradients"
    seed: int = 0

    @property
    def norm(self) -> Known:
        return known(self.spec, self.attrs)

    @property
    def case(self) -> Case:
        """The call as `normgen check` has it. A cotangent has the element type of its output."""
        definition = self.norm.definition
        case = make_case(definition, self.rows, self.width, self.dtypes, dict(self.sizes))
        dtypes = dict(case.dtypes)
        dtypes |= {f"d{name}": dtypes[name] for name in self.norm.outputs if f"d{name}" in dtypes}
        unread = tuple(f"d{name}" for name in definition.of if name in self.unread)
        return replace(case, dtypes=dtypes, absent=(*self.absent, *unread), seed=self.seed)

    def computed(self, on_gpu: bool) -> Case:
        """The case as kernels see it: in float32, where autocast on a GPU makes it so."""
        if not (self.mode.startswith("autocast") and on_gpu and widened(self.norm.function.norm.name)):
            return self.case
        return replace(self.case, dtypes=make_case(self.norm.definition, self.rows, self.width, F32).dtypes)

    @property
    def numbers(self) -> dict[str, float]:
        return scalar_values(self.norm.definition.program) | dict(self.scalars)

    @property
    def named(self) -> dict[str, float]:
        """The float attrs to give: those without a default, and those that are to differ."""
        attrs = self.norm.definition.program.attrs
        needed = {attr.name for attr in attrs if attr.value is None}
        return {
            name: value for name, value in self.numbers.items() if name in needed | dict(self.scalars).keys()
        }

    def values(self) -> dict[str, Any]:
        """Numbers for every operand and cotangent, by name."""
        return draw(self.norm.definition, self.case, self.numbers).arrays

    def __str__(self) -> str:
        spec = self.spec.split()[1] if "\n" in self.spec else self.spec
        said = [spec, *(f"{k}={v}" for k, v in self.attrs), self.case.shape_text, self.dtypes.name, self.mode]
        said += [f"{name} {layout}" for name, layout in self.layouts]
        said += [f"{name}={value:g}" for name, value in self.scalars]
        said += [] if self.wrt is None else [f"by {', '.join(self.wrt) or 'nothing'}"]
        return ", ".join(said)


# --------------------------------------------------------------------------- modes


def _autocast(dtype: Any) -> Callable[[str], Any]:
    return lambda device: torch.autocast(device, dtype)


# What surrounds the forward of a call, by device, and whether gradients are taken.
MODES: dict[str, tuple[Callable[[str], Any], bool]] = {
    "gradients": (lambda _: nullcontext(), True),
    "autocast bf16": (_autocast(torch.bfloat16), True),
    "autocast f16": (_autocast(torch.float16), True),
    "no_grad": (lambda _: torch.no_grad(), False),
    "inference": (lambda _: torch.inference_mode(), False),
}


# --------------------------------------------------------------------------- a call that is made


@dataclass
class Made:
    """A call on tensors of a device, as far as it has come."""

    call: Call
    tensors: Tensors  # operands by name
    cotangents: Tensors
    memory: dict[str, Any]  # all memory that the tensors lie in, and what was in it
    before: Tensors = field(default_factory=dict)  # operands in float64, as they were
    outputs: Tensors = field(default_factory=dict)
    gradients: Tensors = field(default_factory=dict)

    @property
    def wrt(self) -> tuple[str, ...]:
        return tuple(
            name for name, tensor in self.tensors.items() if tensor is not None and tensor.requires_grad
        )


def place(call: Call, device: str) -> Made:
    """The operands and cotangents of a call on a device."""
    norm, case, values = call.norm, call.case, call.values()
    layouts, wrt = dict(call.layouts), set(norm.definition.wrt)
    if call.wrt is not None:
        wrt &= set(call.wrt)
    recorded = MODES[call.mode][1]
    made = Made(call, {}, {}, {})
    for tensor in norm.operands:
        if tensor.name in case.absent:
            made.tensors[tensor.name] = None
            continue
        kind = TYPES[case.dtypes[tensor.name]]
        base, view = laid(
            values[tensor.name], case.memory_shape(tensor), kind, device, layouts.get(tensor.name, DENSE)
        )
        if tensor.role != "state":
            made.memory[tensor.name] = base, base.clone()
        if recorded and tensor.name in wrt and kind.itemsize > 1:
            view = view.detach().requires_grad_()
        made.tensors[tensor.name] = view
        made.before[tensor.name] = exact(view)
    dtypes = call.computed(torch.device(device).type == "cuda").dtypes
    results = {r.tensor.name: r.tensor for r in norm.definition.program.results}
    for output in norm.differentiated:
        if (name := f"d{output}") not in case.absent:
            shape, layout = case.memory_shape(results[output]), layouts.get(name, DENSE)
            base, view = laid(values[name], shape, TYPES[dtypes[output]], device, layout)
            made.memory[name], made.cotangents[name] = (base, base.clone()), view
    return made


def adopt(call: Call, tensors: Tensors, cotangents: Tensors) -> Made:
    """A call on tensors that are there."""
    made = Made(call, tensors, dict(cotangents), {})
    made.before = {name: exact(each) for name, each in tensors.items() if each is not None}
    return made


def forward(made: Made, function: Callable[..., Any] | None = None) -> Made:
    """Make the call."""
    call = made.call
    device = next(each for each in made.tensors.values() if each is not None).device.type
    with MODES[call.mode][0](device):
        found = (function or call.norm.function)(*made.tensors.values(), **call.named)
    made.outputs = dict(zip(call.norm.outputs, found if isinstance(found, tuple) else (found,), strict=True))
    return made


def differentiate(made: Made, **options: Any) -> Made:
    """Take the gradients of a call. What has none is zero."""
    cotangents = made.cotangents
    read = [made.outputs[name.removeprefix("d")] for name in cotangents]
    if not made.wrt or not read:
        return made
    wrt = [made.tensors[name] for name in made.wrt]
    reached = [(each, dy) for each, dy in zip(read, cotangents.values(), strict=True) if each.requires_grad]
    assert reached, f"{made.call}: no output requires a gradient"
    outputs, given = zip(*reached, strict=True)
    found = torch.autograd.grad(outputs, wrt, given, allow_unused=True, **options)
    for name, tensor, gradient in zip(made.wrt, wrt, found, strict=True):
        made.gradients[name] = torch.zeros_like(tensor) if gradient is None else gradient
    return made


def run(call: Call, device: str, function: Callable[..., Any] | None = None) -> Made:
    """Make a call, forward and backward."""
    made = forward(place(call, device), function)
    return differentiate(made) if MODES[call.mode][1] else made


def exact(tensor: Any) -> Any:
    """A tensor's values in float64, as NumPy has them."""
    return tensor.detach().to(torch.float64).cpu().numpy().copy()
