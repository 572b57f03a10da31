"""Texts compiled before they are written: which forms there are, and what is said of one at fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from normgen.codegen.package import package
from normgen.devices.host.compile import check_syntax
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.errors import TextFault
from normgen.ir.program import Definition
from normgen.package.records import Package
from normgen.verify.draw import attr_choices
from normgen.verify.texts import check_texts, forms, texts
from tests.codegen.device_files import read_anew
from tests.sampling import sampled
from tests.verify.subjects import bundled_source

pytestmark = pytest.mark.kernels

SOUND = '// a kernel\nconstexpr int n = 1;\nextern "C" __global__ void first(float* y) { y[n] = 1; }\n'
OTHER = SOUND.replace("n = 1", "n = 2").replace("first", "second")


def made(name: str) -> tuple[Definition, Package]:
    source = bundled_source(name)
    definition = load_definition(source, attr_choices(parse(source), {})[-1])
    return definition, package(definition)


@pytest.mark.parametrize("name", ["softmax2d", "local_response_norm", "rmsnorm"])
def test_every_form_has_a_text(name: str) -> None:
    definition, kernels = made(name)
    found = texts(definition, kernels)
    assert found.keys() == forms(kernels) and len(found) >= 4
    check_texts(definition, kernels)


@pytest.mark.parametrize("name", sampled(["batchnorm", "rmsnorm_quantized_static"], 1))
def test_every_kernel_has_a_text_of_some_form(name: str) -> None:
    """What is missing are forms that only tuning may choose at these lengths."""
    definition, kernels = made(name)
    found = texts(definition, kernels)
    passes = [each for each in (kernels.forward, kernels.backward) if each is not None]
    for kernel in (kernel for one in passes for kernel in one.kernels):
        assert {form.entry for form in kernel.forms} & found.keys(), kernel.name
    assert all(entry in found for entry in forms(kernels) if entry.endswith("_second_stage"))
    check_texts(definition, kernels)


def test_texts_share_no_names_and_one_at_fault_is_one_line_with_its_place() -> None:
    check_syntax({"first": SOUND, "second": OTHER})
    spoiled = OTHER.replace("y[n]", "y[at_C]")
    with pytest.raises(TextFault, match=r"second, line 3: .*at_C.* was not declared") as raised:
        check_syntax({"first": SOUND, "second": spoiled})
    assert "\n" not in str(raised.value) and raised.value.exit_code == 70
    kept = Path(str(raised.value).rpartition(" in ")[2].rstrip(")"))
    assert "at_C" in kept.read_text() and "error:" in kept.read_text()
    kept.unlink()


def test_a_fault_of_the_device_functions_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "inline float broken() { return nothing; }\n"
    read_anew(monkeypatch, lambda name: broken)
    with pytest.raises(TextFault, match="device functions, line 3"):
        check_syntax({"first": f"{SOUND}// broken\nfloat other = broken();\n"})
