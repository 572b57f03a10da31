"""A module of another library and a norm on the same small draw, on the CPU and without a kernel.

The norm is its program, in float64 but for the points where it rounds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
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
from normgen.torch.patching.watching import Path, Watch, is_same

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

# What the rows of a draw are scaled by, or have one element of: mean squares of about 1, near a usual eps,
# and less; then what norms seldom meet; then mean squares that are small beside any eps.
USUAL = (1.0, 1e-3, 1e-5)
RARE = (1e4, 1e15, 0.0, math.nan, math.inf, -math.inf)
GREAT = 1e18  # the largest parameter beside those inputs
TINY = (1e-8, 1e-8, 1e-8)
BESIDE = {"b": 0.0, "running_var": 1e-12}  # what operands are scaled by then
ABOUT = 1e-6  # share of an eps by which that of a fit may differ
NONE = 1e-20  # difference of two eps that is none
TOLD = 0.75  # quantile of what eps says of elements, from which a fit takes them
COTANGENTS = (1.0, 1e6)
MEAN, GAIN = 0.25, 1.5  # of inputs; of gains and biases
VARIANCE = 0.1  # the least that is drawn, before some are scaled
SMALL, SMALLER = 1e-3, 1e-5  # what some parameters and variances are scaled by
ROOM, GREAT_ROOM = 8, 64  # parts of the largest number of a type, of which scales are one at most
# Lengths of other dimensions than that of a gain.
LENGTHS, LONG = (7, 11, 13, 17, 19), 100003


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
    gain, and the attrs for which it is loaded. `power`: eps is added to this power of a deviation."""

    spec: str
    channels: int
    attrs: tuple[tuple[str, Any], ...] = ()
    power: int = 2

    def shape(self, size: int, others: Sequence[int]) -> list[int]:
        """That of an input with these lengths beside that of a gain."""
        shape = list(others)
        shape.insert(self.channels % (len(shape) + 1), size)
        return shape

    def draw(
        self, size: int, rank: int = 4, scales: Sequence[float] = USUAL, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """An input with rows of these scales, or where it is a row of the first."""
        x = _normal(self.shape(size, (len(scales), 2, 2, 2)[: rank - 1]), seed=0) + MEAN
        for row, scale in zip(x if rank > 1 else [x], scales, strict=False):
            if math.isfinite(scale):
                row *= min(scale, torch.finfo(dtype).max / ROOM)
            else:
                row.view(-1)[0] = scale
        return x.to(dtype)


@dataclass(frozen=True)
class Probe:
    """A class of modules with the settings of an instance, to be run on parameters and buffers drawn for it.

    `watch`: of what it does to its modules. `size`: elements of each. `absent`: those that are None.
    `trained`: those that are parameters.
    """

    watch: Watch
    settings: dict[str, Any]
    size: int
    absent: tuple[str, ...]
    trained: tuple[str, ...]

    def fit(self, form: Form, names: Names) -> float | None:
        """The eps with which a spec may agree with the class; None where there is none."""
        x = form.draw(self.size, scales=TINY)
        given = {name: _drawn(operand, self.size) * BESIDE.get(operand, 1) for operand, name in names}
        want = self._result(x, given)
        with _undisturbed():
            none, some = (self._spec(form, names, eps, x, given) for eps in (0.0, 1.0))
        if want is None or none is None or some is None or want.shape != none.shape:
            return None
        found, known = (
            (none.double() / each.double()).abs().flatten() ** form.power - 1 for each in (want, some)
        )
        told = known >= known.nanquantile(TOLD)  # where eps has most to say
        return self._rounded(float((found / known)[told].nanmedian()))

    def compare(self, form: Form, names: Names, eps: float) -> dict[Pair, Verdict]:
        """How the class agrees with a spec in each pair of element types, and in gradients. The first,
        float32, alone where they do not agree in that."""
        first, *others = PAIRS
        with _undisturbed():
            found = {first: self._verdict(form, names, eps, first)}
            if found[first] is Verdict.SAME:
                found |= {pair: self._verdict(form, names, eps, pair) for pair in others}
            return found

    def compare_rank(self, form: Form, names: Names, eps: float, rank: int) -> Verdict:
        """The same in float32, for an input of so many dimensions."""
        if form.channels >= rank:
            return Verdict.RAISED
        with _undisturbed():
            return self._verdict(form, names, eps, PAIRS[0], rank)

    def is_scale_free(self, form: Form, attributes: tuple[str, ...]) -> bool | None:
        """Whether the class makes the same of large and of larger inputs, as what normalizes by statistics of
        its input does; None where it does not run on what is drawn for a form."""
        given = {name: _drawn("w", self.size) for name in attributes}
        large, larger = (self._result(form.draw(self.size, scales=(s, s, s)), given) for s in RARE[:2])
        if large is None or larger is None:
            return None
        return _agreement(larger, large) is Verdict.SAME

    def groups(self, attributes: tuple[str, ...]) -> int | None:
        """In how many groups of channels the class computes; None where it does not."""
        given = {name: _drawn("w", self.size) for name in attributes}
        x = _normal([2, self.size, 3, 2], seed=0)
        before = self._result(x, given)
        x[:, 0] += x[:, 0].square()
        after = self._result(x, given)
        if before is None or after is None or after.shape != x.shape:
            return None
        moved = int((after != before).sum(1).max())
        return None if not moved or self.size % moved else self.size // moved

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
            except Exception:  # as below; or the module looks at values, of which there are none
                return False
        return isinstance(made, torch.Tensor) and made.dtype is torch.float32

    def is_straight(self, form: Form, names: Names, rank: int) -> bool:
        """Whether the class comes to its result by the same functions, whatever the values and the lengths of
        an input of so many dimensions."""
        usual = [length for length in LENGTHS if length != self.size][: rank - 1]
        shapes = [usual, *([LONG] for _ in usual[:1] if rank == 2)]
        for place in range(rank - 1):
            others = list(usual)
            others[place - 1], others[place] = LONG, self.size
            shapes.append(others)
        with _undisturbed(), torch.no_grad(), torch.device("meta"):
            given = {name: torch.empty(self.size) for _, name in names}
            paths = []
            for training in (True, False):
                for others in shapes:
                    x = torch.empty(form.shape(self.size, others))
                    try:
                        with Path(tuple(x.shape)) as path:
                            self._theirs(x, given, training)
                    except Exception:  # as below
                        return False
                    paths.append(path.steps)
        return all(path == paths[0] for path in paths)

    def _verdict(self, form: Form, names: Names, eps: float, pair: Pair, rank: int = 4) -> Verdict:
        verdicts = set()
        for scales in (USUAL, RARE):
            x = form.draw(self.size, rank, scales, pair[0])
            great = min(GREAT, torch.finfo(pair[1]).max / GREAT_ROOM) if scales is RARE else 0.0
            given = {name: _drawn(operand, self.size, great).to(pair[1]) for operand, name in names}
            try:
                wanted = self._results(x, given, pair == PAIRS[0])
                slopes = self._slopes(self._theirs, x, given) if pair == PAIRS[0] and scales is USUAL else ()
            except Exception:  # as below
                return Verdict.RAISED
            got = self._spec(form, names, eps, x, given)
            verdicts |= {_agreement(got, want) for want in wanted}
            if slopes and Verdict.APART not in verdicts:
                doubles = {name: tensor.double() for name, tensor in given.items()}
                mine = self._slopes(partial(self._ours, form, names, eps), x.double(), doubles)
                verdicts |= {
                    Verdict.SAME
                    if _agreement(m.to(x.dtype), each, by_row=False) is Verdict.SAME
                    else Verdict.APART
                    for m, each in zip(mine, slopes, strict=True)
                }
            if Verdict.APART in verdicts:
                return Verdict.APART
        return Verdict.NEAR if Verdict.NEAR in verdicts else Verdict.SAME

    def _result(self, x: torch.Tensor, given: Given) -> torch.Tensor | None:
        """That of the class, without gradients; None where it raises, or is no tensor."""
        with _undisturbed(), torch.no_grad():
            try:
                made = self._theirs(x, given)
            except Exception:  # a module may raise whatever it likes at an input that it does not take
                return None
        return made if isinstance(made, torch.Tensor) else None

    def _results(self, x: torch.Tensor, given: Given, everywhere: bool) -> list[Any]:
        """The result of the class, and others that evaluation makes. `everywhere`: also those with gradients,
        under autocast, with other strides if it takes them, and of the rows one by one."""
        with torch.no_grad():
            want = self._theirs(x, given)
            others = [self._theirs(x, given, training=False)]
            if everywhere:
                strided = self._result(x.transpose(0, -1).contiguous().transpose(0, -1), given)
                others += [] if strided is None else [strided]
                if x.dim() > 1:
                    others.append(torch.cat([self._theirs(row, given) for row in x.split(1)]))
                with torch.autocast("cpu", torch.bfloat16):
                    others.append(self._theirs(x, given))
        if everywhere:
            others.append(self._theirs(x.clone().requires_grad_(), given).detach())
        return [want, *(other for other in others if not is_same(other, want))]

    def _spec(
        self, form: Form, names: Names, eps: float, x: torch.Tensor, given: Given
    ) -> torch.Tensor | None:
        """What a spec makes of the same; None where it does not take it."""
        step = _step(form)
        operands = {operand: given[name] for operand, name in names}
        kept = {step.direction.operands[name].dtype for name in operands if name in step.operands}
        if not operands.keys() <= {*step.operands} or (
            kept - {None} and any(each.dtype in SHORT for each in given.values())
        ):
            return None
        numbers = {attr.name: attr.default for attr in step.attrs if attr.default is not None}
        numbers["eps"] = eps
        (got, *_) = step.derived.run({"x": x, **operands}, numbers, Wanted(step.outputs))
        return got

    def _ours(self, form: Form, names: Names, eps: float, x: torch.Tensor, given: Given) -> Any:
        operands = {operand: given[name] for operand, name in names}
        return function_of(form)(x, **operands, eps=eps)

    def _theirs(self, x: torch.Tensor, given: Given, training: bool = True) -> Any:
        cls = self.watch.made
        module = torch.nn.Module.__new__(cls)  # one of a class may be another, as of FSDP's
        torch.nn.Module.__init__(module)
        own = object.__getattribute__(module, "__dict__")
        own.update(self.settings, training=training)
        own["_parameters"].update(dict.fromkeys(self.absent))
        for name, value in given.items():
            own["_parameters" if name in self.trained else "_buffers"][name] = value
        watched = x.device.type == "cpu"
        with self.watch.of(module, x, *given.values()) if watched else nullcontext():
            return cls.forward(module, x)

    def _slopes(self, forward: Forward, x: torch.Tensor, given: Given) -> list[torch.Tensor]:
        """The gradients of drawn sums of the results, by the input and the parameters."""
        x = x.clone().requires_grad_()
        given = {
            name: value.clone().requires_grad_() if name in self.trained else value
            for name, value in given.items()
        }
        wanted = (x, *(value for value in given.values() if value.requires_grad))
        cotangent = _normal(list(x.shape), seed=3).to(x.dtype)
        y = forward(x, given)
        return [
            slope / scale
            for scale in COTANGENTS
            for slope in torch.autograd.grad(y, wanted, scale * cotangent, retain_graph=True)
        ]

    def _rounded(self, eps: float) -> float | None:
        """The number that a fit comes near: an attribute, a usual one, or that of the fewest digits."""
        if not math.isfinite(eps):
            return None
        read = [self.settings.get(name, getattr(self.watch.cls, name, None)) for name in self.watch.read]
        numbers = [float(each) for each in read if isinstance(each, (int, float))]
        digits = [float(f"{eps:.{places}e}") for places in range(8)]
        offered = (*numbers, 0.0, torch.finfo(torch.float32).eps, *digits)
        near = [each for each in offered if abs(each - eps) <= ABOUT * abs(eps) + NONE]
        return near[0] if near and near[0] >= 0 else None


@cache
def function_of(form: Form) -> NormFunction:
    """What computes a form."""
    found: NormFunction = load(form.spec, **dict(form.attrs))
    return found


@cache
def _step(form: Form) -> LocalStep:
    return first_step(function_of(form).norm)


def _drawn(operand: str, size: int, great: float = 0.0) -> torch.Tensor:
    """Values of an operand: gains and biases near 1.5, variances of which some are near a usual eps; or with
    some that are `great`, small and none, of either sign."""
    values = _normal([size], seed=1 + OPERANDS.index(operand))
    if operand == "running_var":
        values = values.square() + VARIANCE
        values[::3] *= SMALLER
    elif not great:
        return values + GAIN
    if great:
        values[::2] *= great
        values[1::4] *= SMALL
        values[-1] = 0
    return values


def _agreement(got: torch.Tensor | None, want: Any, by_row: bool = True) -> Verdict:
    """`by_row`: whether rows are held to their own size, and not to that of all."""
    if got is None or not isinstance(want, torch.Tensor):
        return Verdict.APART
    if want.dtype != got.dtype or want.shape != got.shape:
        return Verdict.APART
    have, size = got.double(), want.double()
    apart = (have - size).abs().masked_fill_((have == size) | (have.isnan() & size.isnan()), 0)
    size = size.abs_().nan_to_num_(0, 0)
    dims = tuple(range(int(by_row and want.dim() > 1), want.dim()))
    unit = torch.finfo(got.dtype).eps * (size + size.mean(dims, keepdim=True))
    if got.dtype in SHORT:
        same = float((apart != 0).double().mean()) <= FEW
    else:
        same = bool((apart <= ORDERS * unit).all())
    near = bool((apart <= NEAR.get(got.dtype, ORDERS) * unit).all())
    return Verdict.SAME if same and near else Verdict.NEAR if near else Verdict.APART


def _normal(shape: list[int], seed: int) -> torch.Tensor:
    draw = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No mode of the caller changes what a probe computes, and it warns of nothing. One thread computes: on
    such small inputs, waking others takes longer."""
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield
