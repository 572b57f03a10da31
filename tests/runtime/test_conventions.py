"""What callers of kernels by hand rely on: scratch memory that they own, a number of multiprocessors."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.devices.host.executor import HostExecutor
from normgen.dtypes import round_to
from normgen.launching.launch import LaunchPlan
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.calls.workspace import Memory
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import alternatives, choose_strategy
from tests.memory import at_offset
from tests.sampling import sampled

Arrays = dict[str, Any]
HOST = HostExecutor(checked=True)
# By spec: attrs, the shape of x and how long its axes are; threads are left without work.
SUBJECTS: dict[str, tuple[dict[str, Any], tuple[int, ...], dict[str, Any]]] = {
    "layernorm": ({}, (19, 72), {"...": (19,), "D": 72}),
    "batchnorm": ({}, (5, 12, 3, 7), {"B": 5, "C": 12, "...": (3, 7)}),
    "groupnorm": ({"groups": 4}, (5, 12, 3, 7), {"B": 5, "C": 3, "...": 21}),
    "groupnorm_channels_last": ({"groups": 4}, (5, 3, 7, 12), {"B": 5, "C": 3, "...": 21}),
}


@cache
def norm_of(name: str, executor: HostExecutor = HOST) -> Norm:
    return normgen.load(name, **SUBJECTS[name][0]).on(executor)


def placed(values: Any, dtype: str = "f32", alignment: int = 16) -> Any:
    """The values at an address that `alignment` divides, and no larger power of two up to 16."""
    rounded = np.asarray(round_to(values, dtype))
    alignment = max(alignment, rounded.itemsize)
    there = at_offset(alignment if alignment < 16 else 0, rounded.shape, rounded.dtype)
    there[...] = rounded
    return there


def operands(name: str, direction: str, dtype: str = "f32", alignment: int = 16) -> Arrays:
    """What a direction takes; a backward's statistics are those of the forward."""
    norm, shape = norm_of(name), SUBJECTS[name][1]
    params = shape[1] if name in ("batchnorm", "groupnorm") else shape[-1]
    made: Arrays = {}
    for seed, tensor in enumerate((*norm.forward_args, "dy")):
        values = np.random.default_rng(seed).standard_normal(shape if tensor in ("x", "dy") else params) ** 2
        made[tensor] = placed(values, "f32" if tensor.startswith("running") else dtype, alignment)
    if direction == "backward":
        saved = norm.forward(**{key: made[key].copy() for key in norm.forward_args})._asdict()
        made |= {key: placed(value, "f32", alignment) for key, value in saved.items() if key != "y"}
    return {key: made[key] for key in getattr(norm, f"{direction}_args")}


def same(a: Any, b: Any) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", ["layernorm", "batchnorm", "groupnorm_channels_last"])
@pytest.mark.parametrize(("sm_count", "alignment"), [(None, 16), (1, 2)])
def test_a_call_takes_what_the_query_told(
    name: str, sm_count: int | None, alignment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the same lengths, element types, alignment and multiprocessors: not a byte more or less."""
    norm, sizes = norm_of(name), SUBJECTS[name][2]
    query = partial(norm.workspace, sizes=sizes, dtypes="bf16", device=HOST_MACHINE)
    for direction in ("forward", "backward"):
        call, given = getattr(norm, direction), partial(operands, name, direction, "bf16", alignment)
        first = call(**given(), sm_count=sm_count)
        told = query(direction, sm_count=sm_count, alignment=alignment)
        # Small channels are held by a thread group, and a few rows by a block, which need none.
        assert bool(told) == (direction == "backward" and name == "groupnorm_channels_last")
        # What would be seen in any sum.
        mine = {key: placed(np.full(shape, 1e30), dtype) for key, (shape, dtype) in told.items()}
        with monkeypatch.context() as patched:
            for allocates in ("passing", "lasting", "zeros"):
                patched.setattr(Memory, allocates, None)
            assert same(first, call(**given(), sm_count=sm_count, workspace=mine)), direction


def plan_strategy(record: Any, binding: Any, device: Any, asked: str, taken: list[str]) -> LaunchPlan:
    """A call by a strategy, or by the best other one where it is not for such a call; `taken` gets its
    name."""
    found = {each.strategy.name: each for each in alternatives(record, binding, device)}
    best = found.get(asked) or choose_strategy(tuple(found.values()))
    taken.append(best.strategy.name)
    return best.plan


@pytest.mark.parametrize("name", sampled(["layernorm", "groupnorm", "groupnorm_channels_last"], 0, 1))
def test_with_fewer_multiprocessors_a_call_gives_the_same_bits_each_time(name: str) -> None:
    """Which schedule is taken may depend on their number: results differ by rounding."""
    package = norm_of(name).package
    for direction, result in (("forward", "y"), ("backward", "dx")):
        made: list[np.ndarray] = []
        for strategy in getattr(package, direction).strategies:
            taken: list[str] = []
            planner = partial(plan_strategy, asked=strategy.name, taken=taken)
            call = getattr(Norm(package, planner=planner).on(HostExecutor()), direction)
            for count in (None, 1, 40):
                both = [getattr(call(**operands(name, direction), sm_count=count), result) for _ in range(2)]
                assert both[0].tobytes() == both[1].tobytes()
                made.append(both[0])
        assert len(made) >= 3
        for each in made:
            np.testing.assert_allclose(each, made[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_an_empty_call_leaves_states_alone(shape: tuple[int, ...]) -> None:
    """No batch, no channels or no space: empty outputs, statistics and gradients of params of zero."""
    norm = norm_of("batchnorm")
    x, w, mean, variance = np.zeros(shape, np.float32), *np.full((3, shape[1]), 0.5, np.float32)
    made = norm.forward(x, w=w, running_mean=mean, running_var=variance)
    back = norm.backward(dy=x, x=x, w=w, mu=made.mu, rstd=made.rstd)
    assert made.y.shape == back.dx.shape == shape
    assert made.mu.shape == back.dw.shape == w.shape
    assert not np.any(made.mu) and not np.any(made.rstd) and not np.any(back.dw)
    assert np.all(mean == 0.5) and np.all(variance == 0.5)
