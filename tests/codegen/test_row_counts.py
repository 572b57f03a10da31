"""However many rows calls have, a kernel of one width and type has at most four texts, known ahead, and
others beyond 2^31 elements."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product
from math import prod

import pytest

from normgen.launching.launch import Binding
from normgen.launching.machine import Machine
from normgen.runtime.planning.choose import plan_launches
from tests.codegen.norms import H200, ROWS, bound, packaged
from tests.covering import AMPERE
from tests.sampling import paired

DEVICES = (
    H200,
    replace(H200, name="H100", multiprocessors=114, cache=50 << 20),
    replace(AMPERE, cache=40 << 20),
)
# Aligned and not, short and long: of each form of the rows family.
WIDTHS = (64, 255, 1026, 4096, 5119, 20001, 65536, 300000)
MOST = 100_000
_drawn = random.Random(9)
COUNTS = sorted(
    {*range(1, 34, 4), *(2**k + d for k in range(4, 17, 2) for d in (-1, 0, 1)), 132, 133, 165, 660, MOST}
    | {_drawn.randint(34, MOST) for _ in range(10)}
)


def calls(name: str, direction: str, dtype: str, width: int) -> list[Binding]:
    """Calls of one width and type with all numbers of rows."""
    record = getattr(packaged(name), direction)
    match name:
        case "adaln_modulate":  # the rows of B segments
            ways = [{"B": b, "S": -(-n // b)} for n in COUNTS for b in (1, 2, 7, 33, 1000) if b <= n]
            ways += [{"B": n, "S": 1} for n in COUNTS if n * width < 1 << 30]  # scratch below 8 GB
        case "qk_norm":
            ways = [{"rest": n, "H": 8, "K": 2} for n in COUNTS]
        case _:
            ways = [{"rest": n} for n in COUNTS]
    return [bound(record, dtype, D=width, **way) for way in ways]


@pytest.mark.parametrize(("name", "device", "direction"), paired(ROWS, DEVICES, ("forward", "backward")))
def test_four_texts_at_most_and_all_of_them_known(name: str, device: Machine, direction: str) -> None:
    package = packaged(name)
    record = getattr(package, direction)
    widths = WIDTHS[::2] if name in ("adaln_modulate", "qk_norm") else WIDTHS
    for dtype, width in product(("bf16", "f32"), widths):
        every = calls(name, direction, dtype, width)
        found: dict[str, set[str]] = defaultdict(set)
        far: set[str] = set()
        for binding in every:
            seen: Counter[str] = Counter()
            for launch in plan_launches(record, binding, device).launches:
                kernel = kernel_of(launch.entry)
                seen[kernel] += 1  # where blocks share rows, several launches are of one kernel
                large = prod(dict(binding.extents).values()) >= 1 << 31
                (far if large else found[f"{kernel}, launch {seen[kernel]}"]).add(launch.source)
        known, *others = (
            {launch.source for launch in plan_launches(record, binding, device).alike()}
            for binding in (every[len(every) // 2], every[0], every[-1])
        )
        for kernel, texts in found.items():
            where = f"{kernel} {dtype} {width}"
            # (a second stage has its own for each way that blocks leave sums, and for few segments)
            most = 6 if "_second_stage" in kernel else 4
            assert len(texts) <= most, f"{where}: {len(texts)} texts"
            assert texts <= known, f"{where}: a text that nobody knew of"
        assert far <= known
        assert others == [known, known], "whatever the call has"


_FORM = re.compile(r"_(?:registers|pipeline|word_aligned|row_tile|cooperative|multipass|batch)$")


def kernel_of(entry: str) -> str:
    """A kernel with all its forms, of which calls run one; the second stage and what clears are kernels."""
    return entry if entry.endswith(("_second_stage", "_clear")) else _FORM.sub("", entry)


def test_texts_for_arrays_of_more_than_2_billion_elements() -> None:
    """What has no registers for 64-bit offsets has another text, which is known ahead."""
    for name in ("rmsnorm", "layernorm"):
        record = packaged(name).forward
        call = (bound(record, "bf16", rest=rows, D=4096) for rows in (1 << 15, 1 << 22))
        small, large = (plan_launches(record, each, H200) for each in call)
        taken = {x.source for x in (*small.launches, *large.launches)}
        assert len(taken) <= 2 and taken <= {x.source for x in small.alike()}
