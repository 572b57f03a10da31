"""The store of tuned schedules: its round trip, who finds what, damage, many writers, and who profits."""

from __future__ import annotations

import functools
import json
import os
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import normgen
from normgen.arrays.device_array import DeviceArray
from normgen.errors import warn_once
from normgen.launching.launch import Binding
from normgen.launching.machine import HOST_MACHINE, USUAL_MACHINE, Machine
from normgen.measure.norms import contiguous_binding
from normgen.package.direction import Direction, directions
from normgen.runtime.planning import store
from normgen.runtime.planning.choose import Choice, candidates, plan_launches
from normgen.runtime.planning.store import Tuned, Workload
from normgen.runtime.planning.tuned import call_key, plan_tuned
from tests.fakes.driver import FakeDriver
from tests.generated import generated
from tests.threads import at_once, forked

SIZES = {"...": 64, "D": 1024}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NORMGEN_TUNED", raising=False)
    store.look_again()
    return tmp_path / "cache"


@functools.cache
def direction(name: str = "backward") -> Direction:
    forward, backward = directions(normgen.load("rmsnorm").package)
    assert backward is not None
    return forward if name == "forward" else backward


def binding(sizes: dict[str, int] = SIZES, dtype: str = "bf16", name: str = "backward") -> Binding:
    return contiguous_binding(direction(name), sizes, dtype)


def last_offer(device: Machine = USUAL_MACHINE) -> Choice:
    """The choice of a schedule with other blocks than the default's."""
    record = direction().record
    (offers,) = candidates(record.strategies[0], binding(), device)
    usual = offers[0].lowered.launches[0].block
    other = next(each for each in reversed(offers) if each.lowered.launches[0].block != usual)
    return Choice("fused", {other.kernel.name: other.knobs})


def keep(
    choice: Choice | None = None, sizes: dict[str, int] = SIZES, device: Machine = USUAL_MACHINE
) -> Path:
    record = direction().record
    workload, found = Workload(record, device), Tuned(choice or last_offer(), 90.0, 100.0)
    store.put(workload, call_key(record, binding(sizes)), found, "rmsnorm backward")
    return store.where(workload)


def planned(sizes: dict[str, int] = SIZES, dtype: str = "bf16", device: Machine = USUAL_MACHINE) -> Any:
    return plan_tuned(direction().record, binding(sizes, dtype), device)


def usual(sizes: dict[str, int] = SIZES, dtype: str = "bf16", device: Machine = USUAL_MACHINE) -> Any:
    return plan_launches(direction().record, binding(sizes, dtype), device)


def test_what_is_kept_is_found_by_exactly_such_calls() -> None:
    assert planned() == usual()
    keep()
    assert planned() == planned() != usual()
    assert planned().launches[0].block != usual().launches[0].block
    assert planned().notes[-1] == "tuned: 90.00 us measured, 100.00 without"
    for how in (
        {"sizes": {**SIZES, "...": 65}},
        {"sizes": {**SIZES, "D": 1032}},
        {"dtype": "f16"},
        {"device": replace(USUAL_MACHINE, multiprocessors=100)},
        {"device": replace(USUAL_MACHINE, name="another")},
        {"device": replace(USUAL_MACHINE, arch="sm_100")},
    ):
        assert planned(**how) == usual(**how), how
    keep(sizes=SIZES | {"...": 128})  # what was kept can be forgotten, and others stay
    workload = Workload(direction().record, USUAL_MACHINE)
    store.put(workload, call_key(direction().record, binding()), None, "rmsnorm backward")
    assert planned() == usual()
    assert planned(SIZES | {"...": 128}) != usual(SIZES | {"...": 128})


def test_the_host_and_those_who_decline_get_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(device=HOST_MACHINE)
    assert planned(device=HOST_MACHINE) == usual(device=HOST_MACHINE)
    keep()
    monkeypatch.setenv("NORMGEN_TUNED", "0")
    assert planned() == usual()
    monkeypatch.setenv("NORMGEN_TUNED", "1")
    assert planned() != usual()


def test_the_key_tells_calls_apart() -> None:
    record = direction("forward").record
    call = binding(name="forward")
    key = call_key(record, call)
    assert key == "...=64 D=1024; w:bf16 x:bf16 y:bf16; 16 bytes"
    without_saves = replace(call, operands=tuple(o for o in call.operands if o[0] != "rstd"))
    assert call_key(record, without_saves) == key, "what a forward saves does not matter"
    without_gain = replace(call, operands=tuple(o for o in call.operands if o[0] != "w"))
    x = dict(call.operands)["x"]
    askew = replace(call, operands=tuple({**dict(call.operands), "x": replace(x, alignment=2)}.items()))
    added = replace(call, accumulate=True)
    assert len({key, *(call_key(record, other) for other in (without_gain, askew, added))}) == 4


def test_a_file_is_plain_json_for_people() -> None:
    path = keep()
    content = json.loads(path.read_text())
    assert (content["format"], content["kernels"]) == (1, "rmsnorm backward")
    assert content["device"] == {"name": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132}
    ((key, call),) = content["calls"].items()
    assert key.startswith("...=64 D=1024; ") and (call["microseconds"], call["usual"]) == (90.0, 100.0)
    assert call["choice"]["strategy"] == "fused"
    assert call["choice"]["schedules"]["rmsnorm_backward"]["form"] in ("pipeline", "multipass")
    assert path.parent.stat().st_mode & 0o077 == 0
    assert {each.suffix for each in path.parent.iterdir()} == {".json"}, "nothing half-written"


def test_a_fifo_in_the_store_s_place_stops_nobody() -> None:
    path = keep()
    path.unlink()
    os.mkfifo(path)
    store.look_again()
    with pytest.warns(RuntimeWarning, match="no plain file"):
        assert at_once(planned, seconds=20) == [usual()]


def test_a_schedule_that_is_not_offered_is_passed_over() -> None:
    choice = last_offer()
    ((name, knobs),) = choice.schedules.items()
    stale = [
        *(
            {name: tuple((dict(knobs) | {knob: 999}).items())}
            for knob in ("team", "blocks", "vector", "unknown")
        ),
        {"another_kernel": knobs},
        {name: ()},
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in (
            Choice("another", choice.schedules),
            *(Choice("fused", schedules) for schedules in stale),
        ):
            keep(each)
            assert planned() == usual(), each


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "null",
        "{}",
        '{"format": 2, "calls": {}}',
        '{"format": 1, "calls": {"a": 1}}',
        '{"format": 1, "calls": {"a": {"choice": {"strategy": "fused", "schedules": {"k": 1}}}}}',
        "\x00\x01",
    ],
)
def test_a_damaged_file_is_ignored_with_one_warning(text: str) -> None:
    path = keep()
    path.write_text(text)
    store.look_again()
    warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="ignoring tuned schedules") as said:
        assert planned() == usual()
        assert planned() == usual()
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keep()
    assert planned() != usual(), "and written anew"


def test_other_kernels_have_a_file_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = keep()
    record = direction().record
    kernel = record.strategies[0].kernels[0]
    form = replace(kernel.forms[0], entry="another")
    other_kernel = replace(kernel, forms=(form, *kernel.forms[1:]))
    other = replace(record, strategies=(replace(record.strategies[0], kernels=(other_kernel,)),))
    assert store.where(Workload(other, USUAL_MACHINE)) != here
    assert plan_tuned(other, binding(), USUAL_MACHINE).notes == usual().notes
    monkeypatch.setattr(store, "sources", lambda: "another version")
    assert store.where(Workload(record, USUAL_MACHINE)) != here


def test_many_writers_lose_nothing(cache: Path) -> None:
    choice = last_offer()

    def write(begin: int) -> None:
        for count in range(begin, begin + 5):
            keep(choice, sizes={"...": count, "D": 1024})

    forked(*(partial(write, begin) for begin in (100, 200, 300)))
    (path,) = (cache / "tuned").glob("*.json")
    assert len(json.loads(path.read_text())["calls"]) == 15


def test_a_generated_module_profits(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the same kernels, and imports nothing but the runtime."""
    device = driver.device
    keep(last_offer(device), device=device)
    arrays = {"dy": (64, 1024), "x": (64, 1024), "w": (1024,)}
    given = {name: DeviceArray(shape, "bf16", ("cuda", 0)) for name, shape in arrays.items()}
    for norm in (normgen.load("rmsnorm"), generated("rmsnorm")):
        driver.launches.clear()
        norm.backward(**given, rstd=DeviceArray((64,), "f32", ("cuda", 0)))
        block = driver.launches[0].block
        assert block == planned(device=device).launches[0].block != usual(device=device).launches[0].block
