"""The method of timing, on a clock that the test moves, and on the imaginary driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

import normgen
from normgen.devices.cuda.compile import compile_text
from normgen.devices.cuda.executor import CudaExecutor
from normgen.launching.launch import Launch, LaunchPlan, Slot
from normgen.measure.arithmetic import sets_for
from normgen.measure.ceiling import VARIANTS, Ceiling
from normgen.measure.clock import DriverClock, kernels
from normgen.measure.norms import Bench, Case
from normgen.measure.plans import measure_plan
from normgen.measure.timing import (
    CannotRecord,
    Timer,
    Timing,
    graph_calls,
    in_turn,
    measure,
    spread,
)
from tests.fakes.driver import FakeDriver, Launched

SIZES = {"...": 64, "D": 256}


@dataclass
class Imaginary:
    """A stream whose time passes by what is queued. `early`: batches that the device overtakes."""

    graphs: bool = True
    early: int = 0
    now: float = 0.0
    stream: int = 7
    holds: list[float] = field(default_factory=list)
    replayed: int = 0
    crowded: int = 0

    def mark(self) -> float:
        return self.now

    def passed(self, _: float) -> bool:
        self.early -= 1
        return self.early >= 0

    def microseconds(self, begin: float, end: float) -> float:
        return end - begin

    def hold(self, microseconds: float) -> None:
        self.holds.append(microseconds)
        self.now += microseconds

    def crowd(self) -> None:
        self.crowded += 1

    def wait(self) -> None: ...

    def record(self, calls: Callable[[], None]) -> Callable[[], None]:
        if not self.graphs:
            raise CannotRecord("not here")
        before = self.now
        calls()
        took, self.now = self.now - before, before

        def replay() -> None:
            self.replayed += 1
            self.now += took

        return replay


@pytest.mark.parametrize("graphs", [True, False])
def test_the_median_of_batches_on_rotating_buffers(graphs: bool) -> None:
    clock = Imaginary(graphs)
    used: list[int] = []

    def call(i: int) -> None:
        used.append(i % 3)
        clock.now += (40.0, 50.0, 60.0)[i % 3]

    timing = measure(clock, call, 3)
    assert (timing.method, timing.why) == (("graph", "") if graphs else ("events", "not here"))
    # A graph has whole turns, so all buffers count alike; batches of other lengths come near to that.
    assert timing.us == pytest.approx(50.0) if graphs else 40 <= timing.us <= 60
    assert clock.replayed == (32 if graphs else 0)
    assert clock.holds[-1] >= 40, "no batch begins before all of it is queued"
    assert clock.crowded == (2 if graphs else 1), "what was there before counts for nothing"
    assert set(used) == {0, 1, 2}
    assert 0 < timing.host_us < 1000


def test_timers_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that slows down as time goes by slows all of them."""
    clock, order = Imaginary(), []

    class Told(Timer):
        def round(self) -> Timing:
            order.append(self)
            return super().round()

    def timer(us: float) -> Timer:
        def call(_: int) -> None:
            clock.now += us

        return Told(clock, call, 2, 3)

    timers = {us: timer(us) for us in (10.0, 20.0)}
    rounds = in_turn({str(us): made for us, made in timers.items()}, 3)
    assert order == [*timers.values()] * 3
    for us, made in rounds.items():
        assert [t.us for t in made] == pytest.approx([float(us)] * 3)
    assert spread([Timing(us, 0, "graph") for us in (9.0, 10.0, 12.0)]) == pytest.approx(0.3)


def test_a_batch_that_the_device_overtakes_is_repeated_behind_a_longer_wait() -> None:
    clock, called = Imaginary(early=2), list[int]()

    def call(_: int) -> None:
        clock.now += 10.0
        called.append(len(clock.holds))

    assert measure(clock, call, 2).us == pytest.approx(10.0)
    first, second, third, *rest = clock.holds
    assert second == 2 * first and third == 2 * second and set(rest[:-1]) == {third}
    assert called.count(1) <= 40, "a queue has room for few"
    hopeless = Imaginary(early=10**6)
    with pytest.raises(RuntimeError, match="takes longer than"):
        measure(hopeless, call, 2)
    assert max(hopeless.holds) < 150_000


def test_graphs_are_whole_turns_and_long_enough() -> None:
    for us, sets in ((1.5, 20), (130.0, 2), (5000.0, 2), (0.0, 3), (1.0, 128)):
        count = graph_calls(us, sets)
        assert count % sets == 0 and sets <= count <= 1000
        assert count * us >= 1000 or count + sets > 1000 or us == 0


@pytest.fixture
def executor(driver: FakeDriver) -> CudaExecutor:
    return CudaExecutor(0, driver)


def test_a_clock_holds_long_enough_and_crowds_the_whole_cache(
    executor: CudaExecutor, driver: FakeDriver
) -> None:
    """At 2 GHz, above which no device is."""
    clock = DriverClock(executor)
    clock.hold(10.0)
    clock.crowd()
    spin, crowd = driver.launches
    assert int.from_bytes(spin.packed, "little") >= 10 * 1980
    assert 16 * int.from_bytes(crowd.packed[-8:], "little") >= 2 * driver.device.cache


def a_plan() -> LaunchPlan:
    def launch(entry: str, writes: str) -> Launch:
        slots = (Slot("pointer", "x"), Slot("pointer", writes), Slot("scalar", "eps"), 5)
        return Launch(entry, entry, (3, 1, 1), (64, 1, 1), 0, "PPfi", slots, ("x",), (writes,))

    return LaunchPlan((launch("first", "between"), launch("second", "y")), (("between", (8, 2), "f32"),))


def test_a_plan_s_time_is_that_of_all_its_launches(executor: CudaExecutor, driver: FakeDriver) -> None:
    driver.launch_us = lambda launched: {"first": 3.0, "second": 4.0}.get(launched.entry, 1e3)
    context = executor.context
    memory = [[context.allocate(256) for _ in range(2)] for _ in range(3)]
    buffers = [{"x": x.pointer, "y": y.pointer} for x, y in memory]
    timing = measure_plan(executor, DriverClock(executor), a_plan(), buffers, {"eps": 1e-6})
    assert timing.us == pytest.approx(7.0) and timing.method == "events"
    packed = {launched.packed for launched in driver.launches if launched.entry == "second"}
    assert len(packed) == 3, "each set has its own arguments"
    scratch = {launched.packed[8:16] for launched in driver.launches if launched.entry == "first"}
    assert len(scratch) == 1, "scratch memory is shared"
    assert len(driver.memory) == 6, "and gone"


def test_the_ceiling_is_the_fastest_variant(executor: CudaExecutor, driver: FakeDriver) -> None:
    def took(launched: Launched) -> float:
        fastest = launched.entry == "triad4" or (launched.entry, launched.block[0]) == ("copy2", 1024)
        return 5.0 if fastest else 9.0

    driver.launch_us = took
    ceiling = Ceiling(executor, DriverClock(executor))
    assert ceiling.microseconds("copy", 1 << 16) == 5.0
    assert ceiling.microseconds("triad", 3 << 14) == 5.0
    tried = {(x.entry, x.block[0]) for x in driver.launches if x.entry[:4] in ("copy", "tria")}
    assert tried == {(f"{kind}{w}", t) for kind in ("copy", "triad") for w, t in VARIANTS}
    before = len(driver.launches)
    assert ceiling.microseconds("copy", 1 << 16) == 5.0
    assert len(driver.launches) == before, "it is known"
    ceiling.microseconds("copy", (1 << 16) + 32)
    used = {x.entry for x in driver.launches[before:]}
    assert used == {"noise", "copy2", "spin", "crowd"}, "and so is the variant"


def test_a_ceiling_moves_the_bytes_that_it_is_asked_for(executor: CudaExecutor, driver: FakeDriver) -> None:
    ceiling = Ceiling(executor, DriverClock(executor))
    for kind, arrays in (("copy", 2), ("triad", 3)):
        total = arrays * 16 * 1000
        ceiling.microseconds(kind, total)
        for launched in driver.launches:
            if launched.entry.startswith(kind):
                words = int.from_bytes(launched.packed[-8:], "little")
                assert words * 16 * arrays == total
                threads = launched.grid[0] * launched.block[0]
                assert threads * int(launched.entry.removeprefix(kind)[0]) >= words
    pointers = {x.packed[:8] for x in driver.launches if x.entry == "copy1"}
    assert len(pointers) >= sets_for(32_000, 1 << 20), "sets of an earlier variant may lie elsewhere"


def test_calls_write_into_the_arrays_of_their_set(driver: FakeDriver) -> None:
    """So that no call allocates, and results are as cold as operands."""
    package = normgen.load("rmsnorm").package
    Bench().measure(package, Case("forward", SIZES, "f32"), batches=3)
    mine = [x for x in driver.launches if x.entry not in ("spin", "noise", "crowd") and x.entry[:4] != "copy"]
    sets = sets_for(64 * 256 * 4 * 2, driver.device.cache)
    # The launches behind the last wait are calls; they take turns.
    assert len({x.packed for x in mine[-sets:]}) == sets == len({x.packed for x in mine})


@pytest.mark.nvcc
def test_copies_and_triads_spill_nothing() -> None:
    _, report = compile_text(kernels(), "sm_90")
    assert {u.entry for u in report} >= {
        f"{kind}{words}" for kind in ("copy", "triad") for words in ("1", "2", "4", "1s", "2s", "4s")
    }
    assert not any(u.spilled for u in report)
    assert max(u.registers for u in report) <= 64, "1024 threads must fit a multiprocessor"
