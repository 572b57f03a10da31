"""The table of a generated module: which form of a kernel runs when."""

from __future__ import annotations

import re

import pytest

from normgen import bundled
from normgen.ahead.forms import ARCH, DTYPE, LENGTHS, forms_table, launches_taken
from normgen.families import NAMES as FAMILIES
from normgen.families import half
from normgen.launching.machine import usual_machine
from normgen.package.direction import directions
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning.choose import plan_launches
from normgen.runtime.planning.registry import family_of
from tests.codegen import windowing
from tests.codegen.norms import package_of, packaged

NAMES = ("rmsnorm", "batchnorm_channels_last", "rmsnorm_fp8", "local_response_norm", "instancenorm")


@pytest.mark.parametrize("length", [64, 1001, 16384, 262144])
def test_the_table_says_what_is_planned(length: int) -> None:
    """With some other number of rows too."""
    package = packaged("rmsnorm")
    parts = re.split(r"^(forward|backward):$", "\n".join(forms_table(package)), flags=re.MULTILINE)
    listed = dict(zip(parts[1::2], parts[2::2], strict=True))
    for direction in filter(None, directions(package)):
        binding = bind_sizes(direction, {"...": 700, "D": length}, DTYPE).binding
        launches = plan_launches(direction.record, binding, usual_machine(ARCH)).launches
        planned = {launch.entry.removeprefix(f"rmsnorm_{direction.name}_") for launch in launches}
        entries = re.findall(r"^  (\w+) .*((?:\n     .*)*)", listed[direction.name], flags=re.MULTILINE)
        assert {form for form, lengths in entries if re.search(rf"\b{length}\b", lengths)} == planned


def test_every_form_is_in_the_table_with_what_it_is_for() -> None:
    source = bundled.read("groupnorm_channels_last")
    assert source is not None
    others = package_of(source.text, groups=4), package_of(windowing.text(windowing.LAST))
    found = set()
    for package in (*map(packaged, NAMES), *others):
        lines = forms_table(package)
        assert max(len(line) for line in lines if line.startswith("  ")) <= 78  # names may be of any length
        for record in filter(None, (package.forward, package.backward)):
            for kernel in record.kernels:
                for form in kernel.forms:
                    use = family_of(kernel).uses[form.form]
                    found.add(use)
                    assert f"  {form.form:13} {use}" in lines
    assert found >= {use for name in FAMILIES for use in half(name, "launch").uses.values()}


def test_each_length_is_taken_by_something() -> None:
    package = packaged("softmax")
    for direction in filter(None, directions(package)):
        found = launches_taken(package, direction).values()
        assert {length for lengths in found for length in lengths} == {*LENGTHS}
