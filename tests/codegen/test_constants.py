"""What a text reads and what a launch sets: the constants of `FormRecord` and of `Call.launch`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen import bundled
from normgen.codegen.package import package
from normgen.dsl import load_definition
from normgen.package.constants import CONSTANTS
from normgen.package.operands import FormRecord
from normgen.runtime.planning.choose import plan_launches
from tests.codegen import windowing
from tests.codegen.norms import H200, bound, package_of, packaged
from tests.test_snapshot import ATTRS


def test_every_constant_is_read_by_some_text() -> None:
    """Over all bundled specs, and one whose windows lie along the innermost axis: a constant that no text
    reads any more leaves the table."""
    forms: list[FormRecord] = []
    every = [package(load_definition(bundled.read(name), ATTRS.get(name, {}))) for name in bundled.names()]
    for made in (*every, package_of(windowing.text(windowing.LAST))):
        passes = [made.forward, *([made.backward] if made.backward else [])]
        forms += [form for record in passes for kernel in record.kernels for form in kernel.forms]
    assert {name for form in forms for name in form.constants if name in CONSTANTS} == set(CONSTANTS)


def test_a_constant_that_no_schedule_sets_is_a_fault() -> None:
    record = packaged("rmsnorm").forward
    binding = bound(record, "f32", **{"...": 64, "D": 256})
    assert plan_launches(record, binding, H200).launches
    (strategy, *_) = record.strategies
    (kernel,) = strategy.kernels
    forms = tuple(replace(form, constants=(*form.constants, "STAGES_")) for form in kernel.forms)
    broken = replace(record, strategies=(replace(strategy, kernels=(replace(kernel, forms=forms),)),))
    with pytest.raises(AssertionError, match=r"STAGES_.*which no schedule sets"):
        plan_launches(broken, binding, H200)
