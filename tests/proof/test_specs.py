"""The proof of every file in `specs/`, which nobody writes a test for.

Each combination of attr values (required ints 1, 2, 4; bools both) is derived and differentiated. Its
kernels run on the covering cases of `normgen.proof.cases` (every width of the list, every number of rows,
all element types, misaligned and padded, params left out, gradients accumulated), which the combinations
share out among them: each case on the checked host executor, each third one also on the plain one with
fused multiplications and additions, as nvcc does. NORMGEN_PROOF=thorough runs the thorough list on every
combination instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from normgen import bundled
from normgen.dsl.syntax import parse
from normgen.proof.draw import attr_choices
from normgen.proof.run import FAILED, SKIPPED, Options, Row, run

THOROUGH = os.environ.get("NORMGEN_PROOF") == "thorough"

# What has kernels must keep them. The others are waiting for theirs, and their rows say so.
ROWS = {
    "adaln_modulate",
    "add_rmsnorm",
    "dyt",
    "gated_rmsnorm",
    "l2norm",
    "layernorm",
    "log_softmax",
    "qk_norm",
    "rmsnorm",
    "softmax",
}


def combinations() -> Iterator[object]:
    for name in bundled.names():
        source = bundled.read(name)
        assert source is not None
        for index, attrs in enumerate(attr_choices(parse(source), {})):
            text = "-".join(f"{key}={value}" for key, value in attrs.items())
            yield pytest.param(name, index, id=f"{name}-{text}" if text else name)


COMBINATIONS = list(combinations())


def prove(name: str, index: int, **options: object) -> list[Row]:
    source = bundled.read(name)
    assert source is not None
    rows = run(source, Options(only=index, **{"executors": ("host",), **options}))  # type: ignore[arg-type]
    return [row for row in rows if isinstance(row, Row)]


def told(rows: list[Row]) -> str:
    return "\n".join(
        f"{row.stage} {row.direction} {row.attrs} {row.shape} [{row.dtypes}] on {row.executor}: "
        f"{row.result} {row.worst:.3g} {row.note}"
        for row in rows
    )


@pytest.mark.parametrize(("name", "index"), COMBINATIONS)
def test_mathematics(name: str, index: int) -> None:
    rows = prove(name, index, kernels=False)
    failed = [row for row in rows if row.status == FAILED]
    assert not failed, told(failed)
    assert any(row.stage == "differences" for row in rows)


@pytest.mark.parametrize(("name", "index"), COMBINATIONS)
def test_kernels(name: str, index: int) -> None:
    rows = prove(name, index, thorough=THOROUGH)
    failed = [row for row in rows if row.status == FAILED]
    assert not failed, told(failed)
    skipped = [row for row in rows if row.status == SKIPPED and row.stage == "kernels"]
    if skipped:
        assert name not in ROWS, told(skipped)
        pytest.skip(told(skipped))
    kernels = [row for row in rows if row.stage == "kernels"]
    assert {row.direction for row in kernels} == {"forward", "backward"}
    assert {row.executor for row in kernels} == {"host", "host, checked"}
