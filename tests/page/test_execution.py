"""A page gives the same bits as the call that it is of: run on the host, whose compiler reads both texts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from normgen import bundled
from normgen.dtypes import DTYPES
from normgen.launching.launch import HOST
from normgen.runtime.calls.sizes import stand_ins
from normgen.runtime.norm import Norm
from tests.page.calls import Call, calls, paged, planned_usually
from tests.sampling import sampled

SIZES = (("bf16", 4096, 3), ("f32", 333, 5))
# Some of all, since each is compiled twice: `test_nvrtc.py` holds the page of every spec against the
# instructions of its call.
EVERY = list(product(bundled.names(), SIZES))[1::7]
CASES = sampled(EVERY, EVERY.index(("rmsnorm", SIZES[0])))


def drawn(call: Call) -> dict[str, np.ndarray]:
    """Operands of a call."""
    generator = np.random.default_rng(7)
    found = {}
    for name, view in stand_ins(call.direction, call.sizes, call.dtype, 16, HOST).items():
        values = generator.uniform(0.5, 1.5, view.shape)
        found[name] = values.astype(DTYPES[view.dtype].numpy)
    return found


@pytest.mark.kernels
@pytest.mark.parametrize("case", CASES)
def test_a_page_gives_the_bits_of_the_call(case: tuple[str, tuple[str, int, int]]) -> None:
    name, size = case
    for call in calls(name, *size):
        operands = drawn(call)
        found = []
        for planner in (planned_usually, paged):
            own = {key: value.copy() for key, value in operands.items()}
            norm = Norm(call.package, planner=planner)
            attrs = {
                attr.name: attr.default if attr.default is not None else 0.5 for attr in call.package.attrs
            }
            results = getattr(norm, call.direction.name)(**own, **attrs)
            found.append([*map(np.asarray, results), *own.values()])
        for want, got in zip(*found, strict=True):
            assert want.tobytes() == got.tobytes(), call.direction.name
