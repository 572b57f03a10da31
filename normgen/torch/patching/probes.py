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

from normgen.torch.autocast import on_imagined_gpu
from normgen.torch.calls import Wanted
from normgen.torch.function import NormFunction
from normgen.torch.levels import first_step
from normgen.torch.loading import load
from normgen.torch.local import LocalStep

Pair = tuple[torch.dtype, torch.dtype]  # of the input and of the parameters
Names = tuple[tuple[str, str], ...]  # operands of a spec, and the attributes of a module that they are
Given = dict[str, torch.Tensor]  # parameters and buffers by the module's names
Forward = Callable[[torch.Tensor, Given], Any]

SHORT = (torch.bfloat16, torch.float16)
PAIRS: tuple[Pair, ...] = (
    (torch.float32, torch.float32),
    *((dtype, dtype) for dtype in SHORT),
    *((dtype, torch.float32) for dtype in SHORT),
    (torch.float64, torch.float64),
)
OPERANDS = ("w", "b", "running_mean", "running_var")  # of all forms, in their order
RANKS = (1, 2, 3, 4, 5)  # numbers of dimensions of an input
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
    """A spec that a module of another library may be, the dimension of its input that is as long as a
    gain, and the attrs for which it is loaded."""

    spec: str
    channels: int
    attrs: tuple[tuple[str, Any], ...] = ()

    def draw(self, size: int, rank: int = 4) -> torch.Tensor:
        """An input with rows whose mean square is about 1, and rows where it is near a usual eps, or less."""
        shape = [3, 3, 2, 2][: rank - 1]
        shape.insert(self.channels % rank, size)
        x = _normal(shape, seed=0) + 0.25
        scales = torch.tensor([1.0, 1e-3, 1e-5], dtype=torch.float32, device="cpu")
        return x if rank == 1 else x * scales.reshape(3, *[1] * (rank - 1))


@dataclass(frozen=True)
class Probe:
    """A class of modules with the settings of an instance, to be run on parameters and buffers drawn for it.

    `size`: elements of each. `absent`: those that are None. `trained`: those that are parameters.
    """

    cls: type[torch.nn.Module]
    settings: dict[str, Any]
    size: int
    absent: tuple[str, ...]
    trained: tuple[str, ...]

    def compare(self, form: Form, names: Names, eps: str | float) -> dict[Pair, Verdict]:
        """How the class agrees with a spec in each pair of element types, and in gradients. The first,
        float32, alone where they do not agree in that."""
        first, *others = PAIRS
        x = form.draw(self.size)
        with _undisturbed():
            found = {first: self._verdict(form, names, eps, x, first)}
            if found[first] is Verdict.SAME:
                found |= {pair: self._verdict(form, names, eps, x, pair) for pair in others}
            return found

    def compare_rank(self, form: Form, names: Names, eps: str | float, rank: int) -> Verdict:
        """The same in float32, for an input of so many dimensions."""
        if form.channels >= rank:
            return Verdict.RAISED
        with _undisturbed():
            return self._verdict(form, names, eps, form.draw(self.size, rank), PAIRS[0])

    def raises(self, form: Form, attributes: tuple[str, ...]) -> bool:
        """Whether the class does not run on what is drawn for a form."""
        given = {name: _drawn("w", self.size) for name in attributes}
        with _undisturbed(), torch.no_grad():
            try:
                self._theirs(form.draw(self.size), given)
            except Exception:  # a module may raise whatever it likes at an input that it does not take
                return True
        return False

    def is_widened(self, form: Form, names: Names) -> bool:
        """Whether autocast on a GPU makes float32 of results that are of a short type without it."""
        x = form.draw(self.size)
        with _undisturbed(), torch.no_grad(), on_imagined_gpu() as there:
            if not there:
                return False
            short = {"dtype": torch.bfloat16, "device": "cuda"}
            given = {name: torch.ones(self.size, **short) for _, name in names}
            try:
                made = self._theirs(torch.ones(x.shape, **short), given)
            except Exception:  # as above; or the module looks at values, of which there are none
                return False
        return isinstance(made, torch.Tensor) and made.dtype is torch.float32

    def _verdict(self, form: Form, names: Names, eps: str | float, x: torch.Tensor, pair: Pair) -> Verdict:
        x = x.to(pair[0])
        given = {name: _drawn(operand, self.size).to(pair[1]) for operand, name in names}
        slopes = None
        try:
            with torch.no_grad():
                want = self._theirs(x, given)
            if pair == PAIRS[0]:
                with torch.no_grad():
                    if not torch.equal(self._theirs(x, given, training=False), want):
                        return Verdict.APART  # something that training alone, or evaluation alone, does
                slopes = self._slopes(self._theirs, x, given)
        except Exception:  # a module may raise whatever it likes at an input that it does not take
            return Verdict.RAISED
        step = _step(form)
        operands = {operand: given[name] for operand, name in names}
        kept = {step.direction.operands[name].dtype for name in operands if name in step.operands}
        if not operands.keys() <= {*step.operands} or (kept - {None} and pair[1] in SHORT):
            return Verdict.APART
        numbers = {attr.name: attr.default for attr in step.attrs if attr.default is not None}
        numbers["eps"] = self._eps(eps)
        (got, *_) = step.interpreter.run({"x": x, **operands}, numbers, Wanted(step.outputs))
        verdict = _agreement(got, want)
        if slopes is None or verdict is Verdict.APART:
            return verdict
        ours = partial(self._ours, form, names, eps)
        doubles = {name: tensor.double() for name, tensor in given.items()}
        mine = self._slopes(ours, x.double(), doubles)
        verdicts = {_agreement(*each) for each in zip([m.to(x.dtype) for m in mine], slopes, strict=True)}
        return verdict if verdicts == {Verdict.SAME} else Verdict.APART

    def _eps(self, eps: str | float) -> float:
        return eps if isinstance(eps, float) else float(self.settings[eps])

    def _ours(self, form: Form, names: Names, eps: str | float, x: torch.Tensor, given: Given) -> Any:
        operands = {operand: given[name] for operand, name in names}
        return function_of(form)(x, **operands, eps=self._eps(eps))

    def _theirs(self, x: torch.Tensor, given: Given, training: bool = True) -> Any:
        cls: Any = self.cls
        module = cls.__new__(cls)
        torch.nn.Module.__init__(module)
        vars(module).update(self.settings)
        module.training = training
        for name in self.absent:
            module.register_parameter(name, None)
        for name, value in given.items():
            (module._parameters if name in self.trained else module._buffers)[name] = value
        return cls.forward(module, x)

    def _slopes(self, forward: Forward, x: torch.Tensor, given: Given) -> tuple[torch.Tensor, ...]:
        """The gradients of a drawn sum of the results, by the input and the parameters."""
        x = x.clone().requires_grad_()
        given = {
            name: value.clone().requires_grad_() if name in self.trained else value
            for name, value in given.items()
        }
        wanted = (x, *(value for value in given.values() if value.requires_grad))
        cotangent = _normal(list(x.shape), seed=3).to(x.dtype)
        found: tuple[torch.Tensor, ...] = torch.autograd.grad(forward(x, given), wanted, cotangent)
        return found


@cache
def function_of(form: Form) -> NormFunction:
    """What computes a form."""
    found: NormFunction = load(form.spec, **dict(form.attrs))
    return found


@cache
def _step(form: Form) -> LocalStep:
    return first_step(function_of(form).norm)


def _drawn(operand: str, size: int) -> torch.Tensor:
    """Values of an operand: gains and biases near 1.5, variances of which some are near a usual eps."""
    values = _normal([size], seed=1 + OPERANDS.index(operand))
    if operand != "running_var":
        return values + 1.5
    values = values.square() + 0.1
    values[::3] *= 1e-5
    return values


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
