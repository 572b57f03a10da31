"""A module of another library and a norm on the same small draw, on the CPU and without a kernel.

The norm is its program, in float64 but for the points where it rounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any

import torch

from normgen.torch.calls import Wanted
from normgen.torch.function import NormFunction
from normgen.torch.levels import first_step
from normgen.torch.loading import load
from normgen.torch.steps import Step

Pair = tuple[torch.dtype, torch.dtype]  # of the input and of the parameters
Given = dict[str, torch.Tensor]  # parameters by the module's names
Forward = Callable[[torch.Tensor, Given], Any]

SHORT = (torch.bfloat16, torch.float16)
PAIRS: tuple[Pair, ...] = (
    (torch.float32, torch.float32),
    *((dtype, dtype) for dtype in SHORT),
    *((dtype, torch.float32) for dtype in SHORT),
    (torch.float64, torch.float64),
)
ORDERS = 16  # units of float32's last place by which two orders of one computation may differ
NEAR = {torch.float64: 2.0**33, **dict.fromkeys(SHORT, 4)}  # the same where one rounds to another type too
FEW = 0.02  # share of elements of a short type that float32's own rounding may put across a tie


class Verdict(Enum):
    """How results agree: to the rounding of what they are computed in, to a rounding more, or not; or that
    the module raised."""

    SAME = "same"
    NEAR = "near"
    APART = "apart"
    RAISED = "raised"


@dataclass(frozen=True, slots=True)
class Form:
    """A spec that a module of another library may be, and the dimension of its input that is normalized."""

    spec: str
    channels: int

    def draw(self, size: int) -> torch.Tensor:
        """An input with rows whose mean square is about 1, and rows where it is near a usual eps."""
        shape = [2, 3, 2]
        shape.insert(self.channels % 4, size)
        scales = torch.tensor([1.0, 1e-3], dtype=torch.float32, device="cpu").reshape(2, 1, 1, 1)
        return (_normal(shape, seed=0) + 0.25) * scales


@dataclass(frozen=True)
class Probe:
    """A class of modules with the settings of an instance, to be run on parameters drawn for it.

    `gain`, `bias`, `eps`: names of its attributes, "" where it has none. `size`: elements of a gain.
    `absent`: parameters that are None.
    """

    cls: type[torch.nn.Module]
    settings: dict[str, Any]
    gain: str
    bias: str
    eps: str
    size: int
    absent: tuple[str, ...]

    def compare(self, form: Form) -> dict[Pair, Verdict]:
        """How the class agrees with a spec in each pair of element types, and in gradients by the input.
        The first, float32, alone where they do not agree in that."""
        first, *others = PAIRS
        with _undisturbed():
            found = {first: self._verdict(form, first)}
            if found[first] is Verdict.SAME:
                found |= {pair: self._verdict(form, pair) for pair in others}
            return found

    def _verdict(self, form: Form, pair: Pair) -> Verdict:
        x = form.draw(self.size).to(pair[0])
        names = [name for name in (self.gain, self.bias) if name]
        given = {name: _normal([self.size], seed=1 + k).add(1.5).to(pair[1]) for k, name in enumerate(names)}
        try:
            with torch.no_grad():
                want = self._theirs(x, given)
            slopes = _slopes(self._theirs, x, given) if pair == PAIRS[0] else None
        except Exception:  # a module may raise whatever it likes at an input that it does not take
            return Verdict.RAISED
        step = _step(form.spec)
        if self.bias and "b" not in step.operands:
            return Verdict.APART
        (got, *_) = step.interpreter.run({"x": x, **self._named(given)}, self._numbers, Wanted(step.outputs))
        verdict = _agreement(got, want)
        if slopes is None or verdict is Verdict.APART:
            return verdict
        doubles = {name: tensor.double() for name, tensor in given.items()}
        return _agreement(_slopes(partial(self._ours, form), x.double(), doubles).to(x.dtype), slopes)

    @property
    def _numbers(self) -> dict[str, float]:
        return {"eps": float(self.settings[self.eps]) if self.eps else 0.0}

    def _named(self, given: Given) -> Given:
        """Parameters by the spec's names."""
        named = {"w": given.get(self.gain), "b": given.get(self.bias)}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def _ours(self, form: Form, x: torch.Tensor, given: Given) -> Any:
        return _function(form.spec)(x, **self._named(given), **self._numbers)

    def _theirs(self, x: torch.Tensor, given: Given) -> Any:
        cls: Any = self.cls
        module = cls.__new__(cls)
        torch.nn.Module.__init__(module)
        vars(module).update(self.settings)
        for name in self.absent:
            module.register_parameter(name, None)
        for name, value in given.items():
            module.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
        return cls.forward(module, x)


@cache
def _function(spec: str) -> NormFunction:
    return load(spec)


@cache
def _step(spec: str) -> Step:
    return first_step(_function(spec).norm)


def _slopes(forward: Forward, x: torch.Tensor, given: Given) -> torch.Tensor:
    """The gradient by the input of a drawn sum of the results."""
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(forward(x, given), x, _normal(list(x.shape), seed=3).to(x.dtype))
    return found


def _agreement(got: torch.Tensor | None, want: Any) -> Verdict:
    if got is None or not isinstance(want, torch.Tensor):
        return Verdict.APART
    if want.dtype != got.dtype or want.shape != got.shape:
        return Verdict.APART
    apart, size = (got.double() - want.double()).abs(), want.double().abs()
    unit = torch.finfo(got.dtype).eps * (size + size.mean())
    if got.dtype in SHORT:
        same = float((apart > 0).double().mean()) <= FEW
    else:
        same = bool((apart <= ORDERS * unit).all())
    near = bool((apart <= NEAR.get(got.dtype, ORDERS) * unit).all())
    return Verdict.SAME if same and near else Verdict.NEAR if near else Verdict.APART


def _normal(shape: list[int], seed: int) -> torch.Tensor:
    draw = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No mode of the caller changes what a probe computes, and it warns of nothing."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield
