"""What callers of kernels by hand rely on: statistics left out, gradients overwritten or added to, scratch
memory that they own, an explicit number of multiprocessors and an explicit stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import SpecError
from normgen.dtypes import DTYPES, round_to
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.runtime.calls.binding import alignment_of
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from tests.memory import at_offset

Arrays = dict[str, Any]
HOST = HostExecutor(checked=True)


@dataclass(frozen=True)
class Subject:
    """A spec on lengths that leave threads without work: its attrs, shapes by tensor, and lengths by axis.

    `grows`: whether there is work for so many multiprocessors that partial sums take more memory.
    """

    spec: str
    attrs: tuple[tuple[str, object], ...]
    shapes: dict[str, tuple[int, ...]]
    sizes: dict[str, int | tuple[int, ...]]
    grows: bool = False

    def __str__(self) -> str:
        return "-".join([self.spec, *(f"{name}={value}" for name, value in self.attrs)])


IMAGES = dict.fromkeys(("x", "dy"), (5, 12, 3, 7)) | dict.fromkeys(
    ("w", "b", "running_mean", "running_var"), (12,)
)
LAST = dict.fromkeys(("x", "dy"), (5, 3, 7, 12)) | dict.fromkeys(("w", "b"), (12,))
ROWS = {"x": (137, 200), "dy": (137, 200), "w": (200,), "b": (200,)}
SUBJECTS = (
    Subject("rmsnorm", (), ROWS, {"...": 137, "D": 200}, True),
    Subject("layernorm", (), ROWS, {"...": (137,), "D": 200}, True),
    Subject("batchnorm", (), IMAGES, {"B": 5, "C": 12, "...": (3, 7)}),
    Subject("groupnorm", (("groups", 4),), IMAGES, {"B": 5, "C": 3, "...": 21}),
    Subject("groupnorm_channels_last", (("groups", 4),), LAST, {"B": 5, "C": 3, "...": 21}),
)
subjects = pytest.mark.parametrize("subject", SUBJECTS, ids=str)
# Small channels are held by a thread group, which needs no scratch.
SCRATCHED = tuple(s for s in SUBJECTS if s.spec != "batchnorm")


@cache
def loaded(spec: str, attrs: tuple[tuple[str, object], ...]) -> Norm:
    return normgen.load(spec, **dict(attrs))


def norm_of(subject: Subject, executor: HostExecutor = HOST) -> Norm:
    try:
        return loaded(subject.spec, subject.attrs).on(executor)
    except SpecError as error:
        if {d.code for d in error.diagnostics} == {"unsupported"}:
            pytest.skip(error.diagnostics[0].message)
        raise


def placed(values: np.ndarray[Any, Any], dtype: str, alignment: int = 16) -> np.ndarray[Any, Any]:
    """The values at an address that `alignment` divides, and no larger power of two up to 16."""
    rounded = np.asarray(round_to(values, dtype))
    there = at_offset(alignment if alignment < 16 else 0, rounded.shape, rounded.dtype)
    there[...] = rounded
    return there


def operands(subject: Subject, norm: Norm, dtype: str = "f32", alignment: int = 16) -> Arrays:
    made = {}
    for index, name in enumerate(norm.forward_args):
        fixed = "f32" if name.startswith("running") else dtype
        values = np.random.default_rng(index).standard_normal(subject.shapes[name]) ** 2
        made[name] = placed(values, fixed, max(alignment, DTYPES[fixed].bytes))
    return made


def backward_operands(subject: Subject, norm: Norm, dtype: str = "f32", alignment: int = 16) -> Arrays:
    given = operands(subject, norm, dtype, alignment)
    saved = norm.forward(**given)._asdict()
    saved = {k: placed(v, "f32", max(alignment, 4)) for k, v in saved.items() if v.dtype == np.float32}
    values = np.random.default_rng(50).standard_normal(subject.shapes["dy"])
    dy = placed(values, dtype, max(alignment, DTYPES[dtype].bytes))
    return {k: v for k, v in {**given, **saved, "dy": dy}.items() if k in norm.backward_args}


def scratch(told: dict[str, tuple[tuple[int, ...], str]]) -> Arrays:
    """Arrays as they were told, full of what would be seen in any sum."""
    return {name: placed(np.full(shape, 1e30), dtype) for name, (shape, dtype) in told.items()}


def same(a: Any, b: Any) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


@contextmanager
def no_scratch_of_its_own(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, a call that allocates scratch memory fails."""

    def refused(*about: Any) -> None:
        raise AssertionError("scratch memory was allocated though the caller gave it")

    with monkeypatch.context() as patched:
        for dispatcher in norm._dispatchers.values():
            patched.setattr(dispatcher._memory, "any", refused)
        yield


# statistics


@subjects
def test_statistics_are_null_where_nobody_wants_them(subject: Subject) -> None:
    """Left out by `save=False`; written where `out` has them; the outputs have the same bits either way."""
    norm = norm_of(subject)
    given = operands(subject, norm)
    states = {name: array.copy() for name, array in given.items() if name.startswith("running")}
    whole = norm.forward(**given)._asdict()
    saves = [t.name for t in norm.package.forward.writes if t.role == "save"]
    assert saves
    for wanted in ([], saves[:1], saves):
        fresh = given | {name: array.copy() for name, array in states.items()}
        out = {name: np.full_like(whole[name], np.nan) for name in wanted}
        made = norm.forward(**fresh, save=False, out=out)._asdict()
        for name, value in made.items():
            if name in saves and name not in wanted:
                assert value is None
            else:
                assert value.tobytes() == whole[name].tobytes(), name
        assert all(made[name] is out[name] for name in wanted)
        assert all(fresh[name].tobytes() == given[name].tobytes() for name in states), "states are updated"


# gradients of params


@subjects
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradients_overwrite_or_are_added_to(subject: Subject, dtype: str) -> None:
    """`out` is overwritten whatever it holds; with `accumulate` the gradients of params are added to it."""
    norm = norm_of(subject)
    read = backward_operands(subject, norm, dtype)
    once = norm.backward(**read)
    held = {name: placed(np.full(value.shape, np.nan), dtype) for name, value in once._asdict().items()}
    made = norm.backward(**read, out=held)
    assert same(made, once) and all(made._asdict()[name] is held[name] for name in held)
    added = {name: placed(np.full(value.shape, 3.0), dtype) for name, value in once._asdict().items()}
    made = norm.backward(**read, out=added, accumulate=True)
    assert made.dx.tobytes() == once.dx.tobytes(), "a gradient of an input is overwritten"
    for name, value in once._asdict().items():
        if name != "dx":
            wanted = value.astype(np.float64) + 3.0
            tolerance = 2.0 ** -(DTYPES[dtype].mantissa - 1)  # two roundings to the element type
            np.testing.assert_allclose(added[name].astype(np.float64), wanted, rtol=tolerance, atol=tolerance)
    with pytest.raises(ValueError, match=r"accumulate=True adds to out\['dw'\], which is missing"):
        norm.backward(**read, accumulate=True)


# scratch memory


def directions(subject: Subject, norm: Norm, dtype: str, alignment: int) -> list[tuple[str, Any, Arrays]]:
    return [
        ("forward", norm.forward, operands(subject, norm, dtype, alignment)),
        ("backward", norm.backward, backward_operands(subject, norm, dtype, alignment)),
    ]


@subjects
@pytest.mark.parametrize("sm_count", [None, 7])
@pytest.mark.parametrize("alignment", [16, 2])
def test_a_call_takes_what_the_query_told(
    subject: Subject, sm_count: int | None, alignment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the same lengths, element types, alignment and multiprocessors: not a byte more or less."""
    norm, dtype = norm_of(subject), "bf16"
    for name, call, given in directions(subject, norm, dtype, alignment):
        told = norm.workspace(
            name, subject.sizes, dtype, sm_count=sm_count, alignment=alignment, device=HOST_MACHINE
        )
        first = call(**copied(given), sm_count=sm_count)
        with no_scratch_of_its_own(norm, monkeypatch):
            again = call(**copied(given), sm_count=sm_count, workspace=scratch(told))
        assert same(first, again), name


def copied(given: Arrays) -> Arrays:
    """With states of their own, since a call updates them, at addresses like theirs."""
    return {
        name: placed(array, "f32", alignment_of(array.ctypes.data)) if name.startswith("running") else array
        for name, array in given.items()
    }


def test_a_channel_that_a_team_holds_needs_no_scratch() -> None:
    (subject,) = [s for s in SUBJECTS if s.spec == "batchnorm"]
    for direction in ("forward", "backward"):
        assert norm_of(subject).workspace(direction, subject.sizes, "bf16", device=HOST_MACHINE) == {}


@pytest.mark.parametrize("subject", SCRATCHED, ids=str)
def test_scratch_that_differs_is_refused(subject: Subject) -> None:
    """One element too many or too few, another element type, one array less: nothing is taken that only
    looks large enough."""
    norm = norm_of(subject)
    read = backward_operands(subject, norm, "bf16")
    told = norm.workspace("backward", subject.sizes, "bf16", device=HOST_MACHINE)
    assert told, "this needs a pass with scratch memory"
    for name, (shape, dtype) in told.items():
        for wrong in ((*shape[:-1], shape[-1] + 1), (*shape[:-1], shape[-1] - 1), shape[1:] + shape[:1]):
            if wrong != shape:
                with pytest.raises(ValueError, match="must be contiguous"):
                    norm.backward(**read, workspace=scratch(told | {name: (wrong, dtype)}))
        with pytest.raises(ValueError, match="must be contiguous"):
            norm.backward(**read, workspace=scratch(told | {name: (shape, "f16")}))
        less = {key: value for key, value in told.items() if key != name}
        if less:
            with pytest.raises(ValueError, match="workspace needs"):
                norm.backward(**read, workspace=scratch(less))
        crooked = scratch(told) | {name: placed(np.zeros(shape), dtype, alignment=4)}
        with pytest.raises(ValueError, match="aligned to 16 bytes"):
            norm.backward(**read, workspace=crooked)


# multiprocessors and streams


STRATEGIES = [
    pytest.param(subject, direction, result, strategy.name, id=f"{subject}-{direction}-{strategy.name}")
    for subject in SUBJECTS
    for direction, result in (("forward", "y"), ("backward", "dx"))
    for strategy in getattr(loaded(subject.spec, subject.attrs).package, direction).strategies
]


@pytest.mark.parametrize(("subject", "direction", "result", "strategy"), STRATEGIES)
def test_fewer_multiprocessors_leave_rows_as_they_are(
    subject: Subject, direction: str, result: str, strategy: str
) -> None:
    """y and dx have the same bits for any number within one strategy; which is taken may depend on it."""
    package = loaded(subject.spec, subject.attrs).package
    norm = Norm(package, planner=partial(plan_launches, strategy=strategy)).on(HOST)
    _, call, given = next(d for d in directions(subject, norm, "f32", 16) if d[0] == direction)
    made = [call(**copied(given), sm_count=sm_count) for sm_count in (None, 1, 2, 40)]
    whole, *fewer = (getattr(each, result).tobytes() for each in made)
    assert fewer == [whole] * 3


@subjects
def test_a_number_of_multiprocessors_is_what_a_device_of_so_many_has(subject: Subject) -> None:
    sm_count = 7

    class Other(HostExecutor):
        @property
        def device(self) -> Machine:
            return replace(HOST_MACHINE, multiprocessors=sm_count)

    norm, there = norm_of(subject), norm_of(subject, Other())
    for direction, call, given in directions(subject, norm, "f32", 16):
        made = call(**copied(given), sm_count=sm_count)
        assert same(made, getattr(there, direction)(**copied(given)))


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0), (0, 4), (0, 0, 0)])
def test_an_empty_call_leaves_states_alone(shape: tuple[int, ...]) -> None:
    """No batch, no channels or no space: empty outputs, statistics and gradients of params of zero."""
    norm = norm_of(SUBJECTS[2])
    x, w, mean, variance = np.zeros(shape, np.float32), *np.full((3, shape[1]), 0.5, np.float32)
    made = norm.forward(x, w=w, running_mean=mean, running_var=variance)
    back = norm.backward(dy=x, x=x, w=w, mu=made.mu, rstd=made.rstd)
    assert made.y.shape == back.dx.shape == shape
    assert made.mu.shape == back.dw.shape == w.shape
    assert not np.any(made.mu) and not np.any(made.rstd) and not np.any(back.dw)
    assert np.all(mean == 0.5) and np.all(variance == 0.5)
