"""Calls of up to 2^33 elements, on any device: each has launches that the device takes, or a reason why none.

They are planned and compiled, which takes no memory for arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import log2, prod
from operator import itemgetter
from random import Random

import pytest
from hypothesis import given, note, reject, seed, settings
from hypothesis import strategies as st

from normgen.devices.host.compile import check_syntax
from normgen.diagnostics import SpecError
from normgen.launching.call import INT_LIMIT
from normgen.launching.launch import Launch, Slot, parameters_of
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.launching.support import NoSchedule
from normgen.package.records import Package
from normgen.runtime.planning.choose import plan_launches
from tests.axis_specs import axis_specs
from tests.channel_specs import channel_specs
from tests.codegen.norms import SMALL, bound, package_of, packaged
from tests.planning.judged import DEVICES
from tests.strategies import COMPILED, well_typed_specs
from tests.verify.test_segments import segments

MACHINES = (*DEVICES.values(), SMALL, HOST_MACHINE)
MOST = 33  # bits of the number of elements
REASONS = ("a grid has at most", "the limit is", "takes 32-bit numbers")


def drawn_sizes(made: Package, random: Random) -> dict[str, int]:
    """Lengths of axes: most of the elements on one of them, or dealt out to several."""
    sizes = {axis.name: axis.extent or 1 for axis in made.axes}
    free = [axis.name for axis in made.axes if axis.extent is None]
    random.shuffle(free)
    left = 2.0 ** random.uniform(28, MOST)
    for axis in free:
        share = random.choice((1.0, 1.0, random.random(), 0.1))
        length = int(2.0 ** (share * max(log2(left), 0.0))) if axis != free[-1] else int(left)
        sizes[axis] = max(1, length // 8 * 8 if random.random() < 0.5 else length)
        left = max(1.0, left / sizes[axis])
    return sizes


def plans(made: Package, sizes: Mapping[str, int], dtype: str, device: Machine) -> Iterator[Launch]:
    """The launches of both directions; none where a call is refused, with a reason and what to do."""
    lengths = {"rest": 1} | {"rest" if axis == "..." else axis: n for axis, n in sizes.items()}
    for record in filter(None, (made.forward, made.backward)):
        try:
            plan = plan_launches(record, bound(record, dtype, **lengths), device)
        except NoSchedule as refusal:
            assert prod(sizes.values()) > INT_LIMIT
            assert any(reason in str(refusal) for reason in REASONS), refusal
            assert "split" in str(refusal)
            continue
        partials = {name: prod(shape) for name, shape, _ in plan.workspace if "." in name}
        for launch in plan.launches:
            legal(launch)
            if "using index_t = int;" in launch.source:
                assert all(partials.get(name, 0) < 2**31 for name in (*launch.reads, *launch.writes))
            yield launch


def legal(launch: Launch) -> None:
    """What every device asks of a launch; and that its numbers are of the widths that it packs."""
    x, y, z = launch.grid
    assert 0 < x < 2**31 and 0 < y < 2**16 and 0 < z < 2**16, launch.grid
    assert x % launch.cluster == 0 and "constexpr long long LENGTH" not in launch.source
    scalars = [v.name for v in launch.values if isinstance(v, Slot) and v.kind == "scalar"]
    launch.packed({}, dict.fromkeys(scalars, 1.0))
    # what is counted in 32 bits, one step past its end included
    number = {name: int(value) for name, value in re.findall(r"constexpr int (\w+) = (\d+);", launch.source)}
    names = parameters_of(launch.source, launch.entry, len(launch.values))
    given = dict(zip(names, zip(launch.values, launch.format, strict=True), strict=True))
    if given.get("rows", ("", "q"))[1] == "i" and "blocks_per_segment" in given:
        step = given["blocks_per_segment"][0] * number.get("TEAMS", 1) * number.get("BATCH", 1)
        assert given["rows"][0] + step < 2**31
    assert all(value <= INT_LIMIT for value in number.values())


def drawn_package(text: str) -> Package:
    """The package of a drawn spec; a spec whose axes no tensor shares has no kernels, and is drawn anew."""
    try:
        return package_of(text)
    except SpecError as fault:
        assert [each.code for each in fault.diagnostics] == ["unsupported"]
        reject()


def check(text: str, random: Random) -> list[Launch]:
    made, device, dtype = drawn_package(text), random.choice(MACHINES), random.choice(("f32", "bf16"))
    sizes = drawn_sizes(made, random)
    note(f"{device.name} {dtype} {sizes}")
    return list(plans(made, sizes, dtype, device))


@pytest.mark.parametrize(
    ("number", "specs", "examples"),
    [
        (0, segments().map(itemgetter(0)), 16),
        (1, channel_specs(), 8),
        (2, axis_specs(), 8),
        (3, well_typed_specs(), 10),
        pytest.param(4, axis_specs() | channel_specs(), 300, marks=pytest.mark.thorough),
    ],
)
def test_drawn_calls_are_legal_or_refused(number: int, specs: st.SearchStrategy[str], examples: int) -> None:
    found: dict[str, Launch] = {}

    @seed(number)
    @given(specs, st.randoms(use_true_random=False))
    @settings(COMPILED, max_examples=examples)
    def each(text: str, random: Random) -> None:
        found.update((launch.source, launch) for launch in check(text, random))

    each()
    assert len(found) > examples
    some = {f"{launch.entry}_{n}": launch for n, launch in enumerate(list(found.values())[:30])}
    check_syntax({name: launch.source.replace(launch.entry, name) for name, launch in some.items()})


MEAN = """norm whole
input x[..., A, B]
param p[A] = 1
let m = mean[..., A, B](x)
output y[..., A, B] = tanh(x) * (p + m)
"""


@pytest.mark.parametrize("device", MACHINES, ids=lambda device: device.name)
@pytest.mark.parametrize(
    ("spec", "sizes", "refused"),
    [
        ("rmsnorm", {"...": 2**31 + 1, "D": 1}, False),
        ("rmsnorm", {"...": 2, "D": 2**32}, True),
        ("softmax2d", {"B": 81_000_000, "C": 9000, "H": 1, "W": 4096}, False),
        (MEAN, {"...": 7_072_242_504, "A": 1, "B": 1}, False),
    ],
)
def test_named_calls(spec: str, sizes: dict[str, int], refused: bool, device: Machine) -> None:
    made = package_of(spec) if "\n" in spec else packaged(spec)
    assert any(plans(made, sizes, "bf16", device)) != refused
