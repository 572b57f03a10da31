"""Rows that blocks share from launch to launch: those of a level leave what each finds of its share, and the
next combine it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, note, seed, settings
from hypothesis import strategies as st

from normgen import bundled
from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source, SpecError
from normgen.families.rows.launch.legal import legal
from normgen.families.rows.launch.shape import shape_of
from normgen.launching.call import Call
from normgen.launching.machine import HOST_MACHINE
from normgen.launching.support import Support
from normgen.runtime.norm import Norm
from normgen.verify.cases import DtypeSet, make_case
from normgen.verify.draw import Sample
from normgen.verify.turns import in_turn
from tests.channel_specs import channel_specs
from tests.codegen.norms import H200, bound, package_of
from tests.codegen.test_sums import PEAK
from tests.codegen.ways import first, shared
from tests.host.mutation import Altered
from tests.kinds import ATTRS
from tests.strategies import COMPILED, well_typed_specs
from tests.verify.subjects import (
    BF16,
    CHECKED,
    F32,
    bundled_subject,
    case_of,
    numbers,
    prove,
    same_bits,
    subject_of,
)

FAR = {"x": Sample("normal", 1e6, 1.0)}
# Moments, then a maximum that needs them, then sums; results of elements, of rows, of columns and of all.
LEVELS = """norm levels "Levels that follow from one another."
input x[B, S, D]
save mu[B, S] = mean[D](x)
save var[B, S] = mean[D]((x - mu)^2)
save top[B, S] = max[D](abs(x - mu))
save share[B, S] = sum[D](exp((x - mu) / top))
output y[B, S, D] = exp((x - mu) / top) / share
output columns[B, D]: f32 = sum[S](x * top)
output whole[]: f32 = sum[B, S, D](x / share)
output spread[B]: f32 = mean[S, D]((x - mean[S, D](x))^2)
"""
SCALED = """norm scaled "Rows beside their largest value."
input x[B, D]
save top[B] = max[D](x)
save bottom[B] = min[D](x)
output y[B, D] = (x - bottom) / (top - bottom)
"""
USUAL = ("layernorm", "softmax", "dyt")
DRAWN = {"D": 40, "B": 3, "G": 2, "C": 6, "...": 35, "S": 9, "H": 5, "W": 8}  # lengths


def several(found: HostExecutor) -> list[str]:
    """The kernels that were launched more than once."""
    ran = [entry for entry, _ in found.history if entry.endswith("_multipass")]
    return [entry for entry in dict.fromkeys(ran) if ran.count(entry) > 1]


def calls() -> list[object]:
    """Norms of rows with a length and a type; those that are not usual in one call."""
    found = [pytest.param(name, 3, 1024, BF16, id=f"{name}-bf16") for name in USUAL]
    for name in bundled.names():
        if not name.startswith(("local_", "groupnorm", "batchnorm", "softmax2d")):
            marks = () if name in USUAL else pytest.mark.thorough
            found.append(pytest.param(name, 5, 777, F32, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("name", "rows", "width", "dtypes"), calls())
def test_results(name: str, rows: int, width: int, dtypes: object) -> None:
    subject = bundled_subject(name, tuple(ATTRS.get(name, {}).items()))
    with first(shared(3)):
        prove(subject, case_of(subject, rows, width, dtypes), CHECKED)


@pytest.mark.parametrize(
    ("number", "specs", "examples"),
    [
        (11, well_typed_specs(), 2),
        pytest.param(11, well_typed_specs(), 8, marks=pytest.mark.thorough),
        pytest.param(12, channel_specs(), 6, marks=pytest.mark.thorough),
    ],
)
def test_drawn_specs(number: int, specs: st.SearchStrategy[str], examples: int) -> None:
    """Rows of a few elements, of which the last block may have none."""

    @seed(number)
    @given(specs, st.sampled_from((F32, BF16)), st.integers(0, 99))
    @settings(COMPILED, max_examples=examples)
    def check(text: str, dtypes: DtypeSet, turn: int) -> None:
        note(text)
        try:
            subject = subject_of(Source("drawn.norm", text))
        except SpecError as error:
            assert [d.code for d in error.diagnostics] == ["unsupported"]
            assume(False)
        lengths = {axis.name: DRAWN[axis.name] for axis in subject.norm.package.axes}
        case = in_turn(subject.definition, make_case(subject.definition, 1, 1, dtypes, lengths), turn, True)
        with first(shared(2, threads=32)):
            prove(subject, case)

    check()


@pytest.mark.parametrize("multiprocessors", [1, pytest.param(100, marks=pytest.mark.thorough)])
def test_levels_that_follow_from_one_another(multiprocessors: int) -> None:
    """Where blocks walk several rows of a segment, and where each has one."""
    subject = subject_of(Source("levels.norm", LEVELS))
    executor = Altered(replace(HOST_MACHINE, multiprocessors=multiprocessors))
    with first(shared(5)):
        prove(subject, case_of(subject, 4, 701), executor)
    assert several(executor)


def held_in(executor: Altered) -> bool:
    """Whether threads held sums over rows, by the text that ran."""
    (text,) = (text for entry, text in executor.texts.items() if entry.endswith("_backward_multipass"))
    return "HELD = true;" in text


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    ("name", "members", "width", "dtypes"),
    [
        ("layernorm", 3, 1030, BF16),
        ("rmsnorm", 2, 777, F32),
        ("dyt", 3, 1024, BF16),
        ("layernorm", 1, 333, F32),
    ],
)
def test_sums_that_threads_hold(
    name: str, members: int, width: int, dtypes: DtypeSet, accumulate: bool
) -> None:
    """Of many rows, of which one unit has several, and of few."""
    subject = bundled_subject(name)
    for rows in (17, 2):
        executor = Altered()
        with first(shared(members, held=True)):
            case = case_of(subject, rows, width, dtypes, accumulate=accumulate)
            prove(subject, case, executor, directions=("backward",))
        assert held_in(executor)


@pytest.mark.parametrize(("members", "width"), [(2, 1030), (3, 777)])
def test_sums_in_registers_have_the_bits_of_those_in_memory(members: int, width: int) -> None:
    x, dy = numbers(1, 19, width), numbers(2, 19, width)
    given = {"x": x, "dy": dy, "w": numbers(3, width), "mu": x.mean(1), "rstd": 1 / x.std(1)}
    made = []
    for held in (False, True):
        executor = Altered()
        with first(shared(members, held=held)):
            made.append(bundled_subject("layernorm").norm.on(executor).backward(**given))
        assert held_in(executor) == held
    assert all(same_bits(one, other) for one, other in zip(*made, strict=True))


def test_bits_do_not_depend_on_the_batch() -> None:
    norm = bundled_subject("layernorm").norm.on(CHECKED)
    x = np.random.default_rng(1).standard_normal((7, 1000)).astype(np.float32)
    w = b = np.ones(1000, np.float32)
    with first(shared(4)):
        together, alone = norm.forward(x=x, w=w, b=b), norm.forward(x=x[3:4], w=w, b=b)
    assert all(same_bits(one[3:4], other) for one, other in zip(together, alone, strict=True))


@pytest.mark.parametrize("order", [1, 2])
def test_results_over_operands_in_any_order(order: int) -> None:
    norm = bundled_subject("softmax").norm
    x = np.random.default_rng(2).standard_normal((3, 1500)).astype(np.float32)
    with first(shared(4)):
        (apart,) = norm.on(CHECKED).forward(x=x)
        over = x.copy()
        (made,) = norm.on(HostExecutor(True, order, 8)).forward(x=over, out={"y": over})
    assert same_bits(apart, made)


def test_memory_of_calls_may_hold_anything() -> None:
    norm = bundled_subject("layernorm").norm.on(CHECKED)
    x = np.random.default_rng(6).standard_normal((2, 2048)).astype(np.float32)
    w = b = np.ones(2048, np.float32)
    with first(shared(4)):
        needed = norm.workspace("forward", {"...": 2, "D": 2048}, device=CHECKED.device)
        assert set(needed) == {"layernorm_forward.published"}
        given = {name: np.full(shape, np.nan, np.float32) for name, (shape, _) in needed.items()}
        usual = norm.forward(x=x, w=w, b=b)
        again = norm.forward(x=x, w=w, b=b, workspace=given)
    assert all(same_bits(one, other) for one, other in zip(usual, again, strict=True))


def test_shares_of_nothing_but_infinities() -> None:
    """A share that is masked counts for nothing, and a row that is for NaN, as anywhere."""
    norm = bundled_subject("softmax").norm.on(CHECKED)
    x = np.full((4, 2048), -np.inf, np.float32)
    x[0, 700:900] = np.random.default_rng(3).standard_normal(200)
    x[1, 2047] = 3.0
    x[2] = 1.0
    x[2, 1024] = np.inf
    with first(shared(4)):
        (y,) = norm.forward(x=x)
    finite = np.exp(x[0] - x[0].max())
    assert np.allclose(y[0], finite / finite.sum(), atol=1e-7) and y[1, 2047] == 1 and not y[1, :2047].any()
    assert np.isnan(y[2, 1024]) and np.isnan(y[3]).all()
    with first(shared(4)):
        made = bundled_subject("log_softmax").norm.on(CHECKED).forward(x=x)
    assert np.isnan(made.total[2:]).all() and np.isfinite(made.total[:2]).all() and made.top[1] == 3


def test_infinities_and_nan_in_moments() -> None:
    """In the first share, in the middle, in the last."""
    norm = bundled_subject("instancenorm").norm.on(CHECKED)
    for value, last, place in ((np.inf, 1, 0), (-np.inf, 1, 700), (np.nan, 1, 1999), (np.inf, -np.inf, 0)):
        x = np.ones((3, 1, 2000), np.float32)
        x[1, 0, -1], x[1, 0, place] = last, value
        with first(shared(4)):
            y, mu, rstd = norm.forward(x=x)
        assert np.array_equal(mu[1], [value + (last - 1)], equal_nan=True)
        assert np.isnan(rstd[1]).all() and np.isnan(y[1]).all()
        assert np.array_equal(y[[0, 2]], np.zeros((2, 1, 2000)))


def test_a_mean_that_is_large_beside_the_deviation() -> None:
    subject = bundled_subject("layernorm")
    with first(shared(8)):
        prove(subject, case_of(subject, 2, 4096), CHECKED, FAR, directions=("forward",))


def test_maxima_and_minima() -> None:
    """Blocks that there are none of count for nothing, not for zero."""
    norm = Norm(package_of(SCALED)).on(CHECKED)
    x = np.random.default_rng(5).uniform(1, 2, (3, 2000)).astype(np.float32)
    for signed in (x, -x):
        with first(shared(3)):
            y, top, bottom = norm.forward(x=signed)
        assert np.array_equal(top, signed.max(1)) and np.array_equal(bottom, signed.min(1))
        assert np.allclose(y, (signed - bottom[:, None]) / (top - bottom)[:, None])


@pytest.mark.parametrize(
    ("text", "members", "staged", "reason"),
    [
        (SCALED, 4, False, ""),
        (SCALED, 128, False, "a thread takes what one block leaves: 64 threads, 128 blocks"),
        (SCALED, 4, True, "a copy in shared memory does not last from launch to launch"),
        (PEAK, 4, False, "threads keep something of their passes for the results, which does not last"),
    ],
)
def test_what_blocks_may_share(text: str, members: int, staged: bool, reason: str) -> None:
    record = package_of(text).forward
    lengths = dict.fromkeys(("B", "rest"), 2) | {"D": 100_000}
    shape = shape_of(record.strategies[0].kernels[0], Call(bound(record, **lengths), H200, ""))
    (asked,) = shared(members)(shape, H200)
    found = legal(replace(asked, staged=staged), shape, H200)
    assert (found.reason if isinstance(found, Support) else "") == reason
