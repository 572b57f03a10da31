"""The tiles family: which groups it takes, how they are cut, and that its kernels are right."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from normgen import load
from normgen.devices.cuda.compile import compile_text
from normgen.devices.host.executor import HostFault
from normgen.families.tiles.compile.plan import plan_tiles
from normgen.kernel.group import Misfit
from normgen.launching.launch import Launch
from normgen.launching.machine import HOST_MACHINE
from normgen.package.kernels import TilesRecord
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import DTYPE_SETS, DtypeSet, make_case
from normgen.verify.expected import Subject
from tests.codegen import alone
from tests.codegen.alone import defined
from tests.codegen.norms import H200, bound
from tests.codegen.test_nvcc import widths
from tests.host.mutation import Altered, barrier_lines
from tests.sampling import paired
from tests.verify.subjects import CHECKED, PLAIN, prove

planned, emitted, subject = (
    partial(f, planner=plan_tiles) for f in (alone.planned, alone.emitted, alone.subject)
)

# A quantiser once the statistics are there: groups of one scale each, and one value in two orders.
QUANTISED = """norm quantised
attr   group: int >= 1 = 16
axis   E = group
input  xq[..., (G E)]: f8e4m3
input  xs[..., G]: bf16
input  rstd[...]: f32
input  scale[]: f32
param  w[(G E)] = 1
let    x[..., (G E)] = xq * xs
output q[..., (G E)]: f8e4m3 = x * rstd * w / scale
output qt[(G E), ...]: f8e4m3 = x * rstd * w / scale
"""
# The same, of element types that are the caller's.
TWICE = """norm twice
attr   eps >= 0 = 0.5
input  x[..., D]
input  r[...]
param  w[D] = 1
output y[..., D] = x * r * w + eps
output yt[D, ...] = x * r * w + eps
"""
# Operands of both orders, batches of matrices, and a param of the rows.
CHANNELS = """norm channels
input  x[B, C, S]
input  g[B, S, C]
param  w[C] = 1
input  mean[B, C]
output y[B, S, C] = (x - mean) * w + g
output z[B, C, S] = g * x
"""
# A save that a call may leave out lies the other way.
SAVED = "norm saved\ninput x[M, N]\nsave s[N, M]: {} = x * 2\noutput y[M, N] = x + 1\n"
# Every operand lies the other way from the first result.
ALL_TURNED = "norm all_turned\ninput x[N, M]\ninput g[N, M]\noutput y[M, N] = exp(x) * g\n"
# Operands that are read element by element: of part of either block, and of both parts.
PARTS = """norm parts
input  x[A, B, C, D]
input  a[A, C]
input  b[B, D]
input  c[C]
output y[A, B, C, D] = x * a + b
output z[C, D, A, B] = x * c - a * b
"""

# A param that its gradient is of the same order as, and an operand that lies the other way.
SCALED = "norm scaled\ninput x[N, M]\nparam p[M, N] = 1\noutput y[M, N] = x * p\n"

MISFITS = [
    ("input x[M, N]\noutput y[M, N] = x * 2\noutput z[M, N] = x * 3", "one memory order"),
    ("input x[M, N]\noutput y[M, N] = x * sum[N](x)\noutput z[N, M] = x", "has a reduction"),
    ("input x[A, B, C]\noutput y[C, B, A] = x", "exchange two blocks"),
    ("input x[A, B, C]\noutput y[C, A, B] = x\noutput z[B, C, A] = x", "more than two"),
]


@pytest.mark.parametrize(("body", "reason"), MISFITS)
def test_what_does_not_fit_says_why(body, reason):
    with pytest.raises(Misfit, match=reason):
        planned(defined(f"norm misfit\n{body}\n"))


# ------------------------------------------------------------------------------------------------ kernels

MIXED = [
    DtypeSet("bf16, f32; params f16", ("bf16", "f32"), ("f16",), ("f32",)),
    DtypeSet("f32, f16; params bf16", ("f32", "f16"), ("bf16",), ("f32",)),
]
SHAPES = [(3, 5), (64, 64), (65, 127)]


def run(made: Subject, dtypes: DtypeSet, executor=CHECKED, **given) -> None:
    """One call, compared with the reference. `given`: lengths of axes, and fields of the case."""
    sizes = {("..." if a == "rest" else a): n for a, n in given.items() if a == "rest" or a[0].isupper()}
    fields = {a: v for a, v in given.items() if a not in sizes and a != "rest"}
    case = make_case(made.definition, 1, 1, dtypes, sizes)
    prove(made, replace(case, rest=(sizes["..."],) if "..." in sizes else (), **fields), executor)


@pytest.mark.parametrize(("dtypes", "shape"), paired([DTYPE_SETS[0], *MIXED], SHAPES))
def test_two_results_of_one_value(shape, dtypes):
    run(subject(TWICE), dtypes, rest=shape[0], D=shape[1])


@pytest.mark.parametrize("group", [16, 24])
def test_quantised(group):
    for rows, columns in SHAPES:
        run(subject(QUANTISED, group=group), DTYPE_SETS[0], rest=rows, G=-(-columns // group))


@pytest.mark.parametrize(
    ("dtypes", "sizes"), paired([DTYPE_SETS[1], *MIXED], [(3, 5, 7), (2, 64, 72), (2, 33, 130)])
)
def test_operands_of_both_orders_in_batches(sizes, dtypes):
    run(subject(CHANNELS), dtypes, **dict(zip("BCS", sizes, strict=True)))


def test_operands_that_are_turned_or_have_part_of_the_axes():
    run(subject(ALL_TURNED), DTYPE_SETS[1], N=65, M=127)
    for sizes in ((3, 5, 7, 2), (2, 65, 3, 24)):
        run(subject(PARTS), DTYPE_SETS[0], **dict(zip("ABCD", sizes, strict=True)))


@pytest.mark.parametrize(("dtype", "save"), [("f32", True), ("f8e5m2", False)])
def test_a_result_may_be_left_out(dtype, save):
    run(subject(SAVED.format(dtype)), DTYPE_SETS[1], M=70, N=96, save=save)


@pytest.mark.parametrize(("offset", "pitch", "text"), [(1, "padded", TWICE), (2, "", CHANNELS)])
def test_misaligned_arrays_take_narrower_vectors(text, offset, pitch):
    sizes = {"rest": 66, "D": 96} if text is TWICE else {"B": 2, "C": 48, "S": 66}
    run(subject(text), DTYPE_SETS[1], offset=offset, pitch=pitch, given_out=True, **sizes)


def test_absent_params_and_many_rows():
    run(subject(CHANNELS), DTYPE_SETS[0], B=2, C=9, S=20, absent=("w",))
    run(subject(QUANTISED), DTYPE_SETS[0], rest=9, G=3, absent=("w",))
    run(subject(TWICE), DTYPE_SETS[1], PLAIN, rest=70000, D=8)


def test_gradients_of_params_are_added_to_what_is_there():
    dtype = ml_dtypes.bfloat16
    norm = load(SCALED).on(CHECKED)
    random = np.random.default_rng(3)
    x, p, dy = (random.integers(-4, 5, shape).astype(dtype) for shape in ((24, 70), (70, 24), (70, 24)))
    there = random.integers(-9, 10, p.shape).astype(dtype)
    kernels = norm.package.backward.strategies[0].kernels
    assert [type(kernel) for kernel in kernels] == [TilesRecord]
    gradients = norm.backward(dy=dy, x=x, p=p, out={"dp": there.copy()}, accumulate=True)
    assert np.array_equal(gradients.dp, there + dy * x.T)  # small integers: exact in every type
    assert np.array_equal(gradients.dx, (dy * p).T)


# ------------------------------------------------------------------------------------------------ launches


def launch(text: str, dtype: str = "bf16", alignment: int = 16, **extents: int) -> Launch:
    package = subject(text).norm.package
    binding = bound(package.forward, dtype, alignment=alignment, **extents)
    (found,) = plan_launches(package.forward, binding, H200).launches
    return found


def test_one_scale_serves_a_vector_where_its_group_is_a_multiple():
    for groups, length, alike in ((8, 16, "true"), (32, 4, "false")):
        assert f"constexpr bool ONE_XS = {alike};" in launch(QUANTISED, rest=64, G=groups, E=length).source


def test_offsets_take_64_bits_where_32_do_not_reach():
    assert "using index_t = int;" in launch(TWICE, rest=1 << 18, D=4096).source
    assert "using index_t = long long;" in launch(TWICE, rest=1 << 20, D=4096).source
    assert "constexpr long long size_D = 4294967296;" in launch(TWICE, rest=16, D=1 << 32).source


@pytest.mark.parametrize("order", [0, 1], ids=["ascending", "descending"])
def test_a_missing_barrier_is_reported(order):
    random, one = np.random.default_rng(7), replace(HOST_MACHINE, multiprocessors=1)
    shapes = {"x": (2, 40, 24), "g": (2, 24, 40), "w": (40,), "mean": (2, 40)}
    arrays = {name: random.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
    norm, sound = subject(CHANNELS).norm, Altered(one, order)
    norm.on(sound).forward(**arrays)
    (text,) = sound.texts.values()
    kernel = text.count("\n", 0, text.index("_tiles("))
    numbers = [number for number, line in enumerate(barrier_lines(text), 1) if line > kernel]
    assert len(numbers) == 2
    for number in numbers:
        with pytest.raises(HostFault):
            norm.on(Altered(one, order, text, without=number)).forward(**arrays)


@pytest.mark.nvcc
def test_matrices_move_sixteen_bytes_at_a_time():
    for found in (launch(QUANTISED, rest=8192, G=256, E=16), launch(CHANNELS, "f32", B=64, C=256, S=3136)):
        ptx = compile_text(found.source, "sm_90", target="ptx")[0].decode()
        assert ".local" not in ptx
        assert "ld.global.v4.u32" in ptx
        assert set(widths(ptx)["store"]) == {16}
