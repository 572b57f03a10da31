"""What a text reads and what a launch sets: the constants of `FormRecord` and of `Call.launch`."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from normgen.package.constants import CONSTANTS, listed, listing
from normgen.runtime.planning.choose import plan_launches
from tests.codegen import windowing
from tests.codegen.norms import H200, bound, package_of, packaged


def test_every_constant_is_read_by_some_text() -> None:
    """A constant that no text reads any more leaves the table: over specs that have all families and forms,
    and one whose windows lie along the innermost axis."""
    names = ("dyt", "scalenorm", "batchnorm_channels_last", "groupnorm", "rmsnorm_fp8")
    names += ("local_response_norm_recomputed",)
    found: set[str] = set()
    for made in (*map(packaged, names), package_of(windowing.text(windowing.LAST))):
        for record in filter(None, (made.forward, made.backward)):
            found.update(name for k in record.kernels for form in k.forms for name in form.constants)
    assert found >= set(CONSTANTS)


def test_a_text_is_launched_with_definitions_in_place_of_its_list() -> None:
    text = (
        "// above\n\n"
        + listed([("N", "elements"), ("x_t", "types"), ("y_t", "types")])
        + "\nint f() { return N; }\n"
    )
    found = listing(text)
    assert found.names == ("N", "x_t", "y_t")
    assert found.filled(lambda name: f"define {name};") == (
        "// above\n\ndefine N;  // elements\n// types\ndefine x_t;\ndefine y_t;\n\nint f() { return N; }\n"
    )
    assert listing("int f();\n").names == () and listing("int f();\n").filled(str) == "int f();\n"


def test_what_a_text_reads_is_all_defined_where_it_is_launched() -> None:
    """The list of the text is what the compiler gets, with values."""
    record = packaged("rmsnorm").forward
    (launch,) = plan_launches(record, bound(record, "bf16", **{"...": 64, "D": 4096}), H200).launches
    (form,) = [f for f in record.strategies[0].kernels[0].forms if f.entry == launch.entry]
    for name, meaning in (
        (name, meaning) for names, meaning in listing(form.source).entries for name in names
    ):
        assert re.search(rf"^(constexpr \w+|using|#define) {name}\b.*", launch.source, re.MULTILINE), name
        assert f"// {meaning}" in launch.source
    assert "constexpr int LENGTH = 4096;  // elements of a row" in launch.source
    assert listing(launch.source).names == ()


def test_a_constant_that_no_schedule_sets_is_a_fault() -> None:
    record = packaged("rmsnorm").forward
    binding = bound(record, "f32", **{"...": 64, "D": 256})
    assert plan_launches(record, binding, H200).launches
    (strategy, *_) = record.strategies
    (kernel,) = strategy.kernels
    entry = "//   STAGES_: rows of another time\n//   THREADS"
    forms = tuple(replace(f, source=f.source.replace("//   THREADS", entry)) for f in kernel.forms)
    broken = replace(record, strategies=(replace(strategy, kernels=(replace(kernel, forms=forms),)),))
    with pytest.raises(AssertionError, match=r"STAGES_.*which no schedule sets"):
        plan_launches(broken, binding, H200)
