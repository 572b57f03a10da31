"""What a call may ask for, held to the same bounds: absent cotangents and params, subsets, accumulation;
and bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.diagnostics import Source
from normgen.dtypes import round_to
from normgen.package.kernels import ColumnsRecord, RowsRecord, TilesRecord
from normgen.runtime.norm import Norm
from normgen.verify.cases import make_case
from normgen.verify.memory import PITCHES
from tests.codegen.ways import first, of_form
from tests.memory import sparse
from tests.sampling import paired
from tests.verify.subjects import (
    BF16,
    CHECKED,
    OUTER,
    OUTER_SIZES,
    PLAIN,
    bundled_subject,
    case_of,
    numbers,
    prove,
    same_bits,
    subject_of,
)

Arrays = dict[str, Any]


def call(name: str, rows: int, width: int, dtype: str = "f32") -> tuple[Norm, Arrays, Arrays]:
    """The norm of a spec of rows, with operands and what its backward reads."""
    norm = bundled_subject(name).norm.on(PLAIN)
    shapes = {"x": (rows, width), "residual": (rows, width), "z": (rows, width), "w": (width,), "b": (width,)}
    operands = {k: round_to(numbers(i, *shapes[k]), dtype) for i, k in enumerate(norm.forward_args)}
    made = norm.forward(**operands)._asdict()
    read = {k: v for k, v in {**operands, **made}.items() if k in norm.backward_args}
    cotangents = {
        k: round_to(numbers(50 + i, rows, width), dtype)
        for i, k in enumerate(norm.backward_args)
        if k not in read
    }
    return norm, operands, {**cotangents, **read}


@pytest.mark.parametrize(
    ("name", "width"), paired(["layernorm", "add_rmsnorm", "rmsnorm", "gated_rmsnorm"], [33, 1000])
)
def test_every_subset_of_the_gradients_has_the_same_bits(name: str, width: int) -> None:
    norm, _, read = call(name, 5, width)
    every = norm.backward(**read)._asdict()
    sources = [gradient[1:] for gradient in every]
    for count in range(len(sources)):
        for wrt in combinations(sources, count):
            some = norm.backward(**read, wrt=wrt)._asdict()
            for gradient, value in some.items():
                if gradient[1:] not in wrt:
                    assert value is None
                else:
                    assert np.allclose(value, every[gradient], rtol=2e-5, atol=1e-6), (wrt, gradient)


@pytest.mark.parametrize(
    ("name", "width"), paired(["layernorm", "rmsnorm", "softmax", "l2norm"], [8, 100, 1000, 4096])
)
def test_rows_do_not_depend_on_those_beside_them(name: str, width: int) -> None:
    """In batches with nearly as many."""
    norm, operands, read = call(name, 33, width)
    y, dx = norm.forward(**operands).y, norm.backward(**read).dx
    for rows in ([*range(1, 33)], [*range(32, 0, -1)], [4] * 40):

        def chosen(arrays: Arrays, rows: list[int] = rows) -> Arrays:
            return {k: np.ascontiguousarray(v[rows]) if v.shape[0] == 33 else v for k, v in arrays.items()}

        assert same_bits(norm.forward(**chosen(operands)).y, y[rows])
        assert same_bits(norm.backward(**chosen(read)).dx, dx[rows])


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("width", [8, 1000])
def test_results_repeat_bit_by_bit_in_any_order_of_threads(name: str, width: int) -> None:
    norm, operands, read = call(name, 33, width)
    first = [*norm.forward(**operands), *norm.backward(**read)]
    for executor in (
        PLAIN,
        HostExecutor(order=1),
        HostExecutor(order=2, seed=1),
        HostExecutor(order=2, seed=2),
    ):
        there = norm.on(executor)
        again = [*there.forward(**operands), *there.backward(**read)]
        assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize(("offset", "out_offset"), [(0, 1), (1, 0), (0, 2)])
@pytest.mark.parametrize("name", ["rmsnorm", "softmax2d", "batchnorm_channels_last", "local_response_norm"])
def test_results_may_lie_at_another_alignment_than_operands(name: str, offset: int, out_offset: int) -> None:
    """Kernels of each family, checked: what they write they write in words that the results allow."""
    subject = bundled_subject(name)
    case = case_of(subject, 6, 64, offset=offset, out_offset=out_offset, given_out=True)
    prove(subject, case)


FAMILIES = {"rows": RowsRecord, "columns": ColumnsRecord, "tiles": TilesRecord}


@pytest.mark.parametrize("pitch", PITCHES)
@pytest.mark.parametrize("family", OUTER)
def test_each_stride_of_an_array_counts(family: str, pitch: str) -> None:
    """One stride alone may keep vectors from being aligned, and rows that lie apart may begin aligned."""
    found = subject_of(Source("outer.norm", OUTER[family]))
    assert isinstance(found.norm.package.forward.kernels[0], FAMILIES[family])
    case = make_case(found.definition, 3, 5, BF16, OUTER_SIZES)
    prove(found, replace(case, pitch=pitch))


WIDTH = 4096
MANY = 2**31 // WIDTH + 5


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm", "l2norm"])
@pytest.mark.parametrize("checked", [False, True])
def test_more_than_two_to_the_31_elements(name: str, checked: bool) -> None:
    """The last blocks of a forward beyond 32-bit offsets, on memory that is mapped but mostly never
    touched."""
    norm = bundled_subject(name).norm.on(HostExecutor(checked=checked, blocks=slice(-2, None)))
    x, y = sparse((MANY, WIDTH), ml_dtypes.bfloat16), sparse((MANY, WIDTH), ml_dtypes.bfloat16)
    x[-2:] = numbers(1, 2, WIDTH)
    with first(of_form("registers", cluster=1)):  # of which the last blocks have the last rows
        small = bundled_subject(name).norm.on(PLAIN).forward(x[-2:].copy())
        made = norm.forward(x, out={"y": y})
    assert same_bits(made.y[-1:].copy(), small.y[-1:])


def test_more_than_two_to_the_31_elements_backward() -> None:
    norm = bundled_subject("l2norm").norm.on(HostExecutor(blocks=slice(-2, None)))
    x, dy, dx = (sparse((MANY, WIDTH), ml_dtypes.bfloat16) for _ in range(3))
    x[-2:], dy[-2:] = numbers(1, 2, WIDTH), numbers(2, 2, WIDTH)
    near = bundled_subject("l2norm").norm.on(PLAIN)
    rho = np.zeros(MANY, np.float32)
    rho[-2:] = near.forward(x[-2:].copy()).rho
    with first(of_form("registers", cluster=1)):
        small = near.backward(dy=dy[-2:].copy(), x=x[-2:].copy(), rho=rho[-2:].copy())
        made = norm.backward(dy=dy, x=x, rho=rho, out={"dx": dx})
    assert same_bits(made.dx[-1:].copy(), small.dx[-1:])


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_rows_further_apart_than_two_to_the_31_elements(name: str) -> None:
    """The persistent backward, checked, with offsets of 64 bits: three rows in a buffer of six
    gigabytes."""
    norm = bundled_subject(name).norm.on(CHECKED)
    apart = 2**30 + 8
    base = sparse((2 * apart + 1000,), ml_dtypes.bfloat16)
    x = np.lib.stride_tricks.as_strided(base, (3, 1000), (2 * apart, 2))
    x[...] = numbers(1, 3, 1000)
    dense, dy = np.ascontiguousarray(x), round_to(numbers(2, 3, 1000), "bf16")
    w = numbers(3, 1000)
    made = norm.forward(x, w)
    assert same_bits(made.y, norm.forward(dense, w).y)
    saved = {k: v for k, v in made._asdict().items() if k in norm.backward_args}
    far, near = norm.backward(dy=dy, x=x, w=w, **saved), norm.backward(dy=dy, x=dense, w=w, **saved)
    assert all(same_bits(a, b) for a, b in zip(far, near, strict=True))
