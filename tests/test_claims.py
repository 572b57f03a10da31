"""Tables of claims about normgen: each row names what proves it, and small claims are tried here.

A new row fails until somebody names its proof below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent

import pytest

import normgen
from normgen.diagnostics import SpecError
from normgen.dsl.functions import built_in_names
from normgen.dtypes import DEVICE_DTYPES

ROOT = Path(__file__).parent.parent
HERE = "tests/test_claims.py"
CHECKED = "tests/verify/test_specs.py::test_a_part_of_the_cases"
SECOND = "tests/torch/test_specs.py::test_kernels_of_second_derivatives_agree_with_float64"
SPREAD = "tests/codegen/test_ranks_refused.py::test_what_cannot_be_spread_is_refused_with_a_place_and_a_cure"
SCRIPTED = "test_torchscript_says_so_of_patched_modules_and_takes_what_is_put_back"
PATCHED = "test_norms_are_replaced_by_type_and_by_what_they_compute_and_the_rest_is_reported"

# By document and heading: how a row of the table below it begins, with cells joined by `: `, and its proofs.
CLAIMS: dict[tuple[str, str], dict[str, Sequence[str]]] = {
    ("README.md", "Compared with others"): {
        "you write: a spec:": ["tests/torch/test_notebook.py::test_every_cell_of_the_notebook_runs"],
        "derivatives: any order:": [SECOND],
        "schedules: predicted:": ["tests/bench/test_choices.py"],
        "batch, group and instance norm: yes:": [
            CHECKED,
            "specs/batchnorm.norm",
            "specs/groupnorm.norm",
            "specs/instancenorm.norm",
        ],
        "checked on a CPU: results, memory accesses:": [
            CHECKED,
            "tests/host/test_faults.py::test_planted_fault_is_reported",
        ],
        "fuses: what the spec says:": ["tests/test_cookbook.py::test_the_spec_of_a_recipe_passes_a_check"],
        "FP8 results; MXFP8, NVFP4: yes; no:": [
            "tests/dsl/test_quantisers.py::test_quantised_by_the_amax",
            f"{HERE}::test_no_element_type_is_block_scaled",
        ],
        "statistics across GPUs: yes:": [
            "tests/torch/test_spread.py::test_processes_have_the_results_of_one",
            "tests/gpu/test_ranks.py",
        ],
        "AMD GPUs; fast on CPUs: no; no:": [f"{HERE}::test_kernels_are_for_cuda"],
    },
    ("docs/how/something-else.md", "When to use something else"): {
        "a norm fused with any code": [
            "tests/torch/test_compile.py::test_a_compiled_norm_is_a_node_forward_and_a_node_backward"
        ],
        "no new dependency": ["tests/bench/test_report.py::test_pages_show_the_results_that_there_are"],
        "a norm fused into a matrix product": [f"{HERE}::test_what_has_kernels"],
        "layers that manage FP8 scales": [f"{HERE}::test_no_element_type_is_block_scaled"],
        "common norms from C++": ["tests/ahead/test_header.py::test_shapes_and_norms_go_into_one_program"],
        "a patched Hugging Face model": [f"tests/torch/test_patching.py::{PATCHED}"],
        "cross entropy of a large vocabulary": [f"{HERE}::test_what_has_kernels"],
        "a kernel that you write and edit": ["tests/cli/test_compile.py::test_files_of_others_are_refused"],
        "AMD, Intel or Apple GPUs": [f"{HERE}::test_kernels_are_for_cuda"],
        "speed on CPUs": [f"{HERE}::test_kernels_are_for_cuda"],
        "GPUs older than compute capability 8.0": ["tests/cli/test_exits.py"],
        "TorchScript, ONNX": [f"tests/torch/test_looking_in.py::{SCRIPTED}"],
        "a scan, a sort, a top-k, attention": [f"{HERE}::test_reductions_and_windows"],
    },
    ("docs/guides/ranks.md", "What cannot be sharded"): {
        "an axis that windows move along": [SPREAD],
        "an axis whose length the spec fixes": [SPREAD],
        "a dimension of groups": [
            "tests/torch/test_straddling.py::test_runs_that_are_no_groups_together_are_refused"
        ],
        "two axes of one tensor": [SPREAD],
        "an axis of a maximum over computed values": [SPREAD],
    },
    ("docs/faq.md", "Which GPUs, drivers and versions?"): {
        "GPU: compute capability 8.0": [
            "tests/cli/test_exits.py",
            "tests/codegen/test_nvcc.py::test_a_kernel_spills_nothing_and_fits",
            "bench/results/h100/results.json",
            "bench/results/h200/results.json",
        ],
        "driver": ["tests/runtime/test_nvrtc.py"],
        "nvcc or NVRTC": ["tests/runtime/test_nvcc.py"],
        "Python: 3.10": ["pyproject.toml"],
        "PyTorch: 2.11": ["pyproject.toml"],
    },
}
PROOFS = sorted({proof for claims in CLAIMS.values() for proofs in claims.values() for proof in proofs})
# Specs of whose kernels docs/language.md speaks, and why one has none.
PRODUCT = "norm n\ninput x[B, D]\ninput w[E, D]\noutput y[B, E] = sum[D](x * w)\n"
CROSSED = "norm n\ninput x[A, B, D]\ninput w[D, A]\noutput y[A, B, D] = x * w\n"
EXCHANGED = "norm n\ninput x[..., D]\noutput y[D, ...] = x - mean[D](x)\n"
NESTED = "norm n\ninput x[B, C]\nlet a = sum[C:-99..99](x)\noutput y[B, C] = sum[C:-99..99](a^2)\n"


def rows_of(document: str, heading: str) -> Iterator[str]:
    """The rows of the first table below a heading."""
    text = (ROOT / document).read_text(encoding="utf-8")
    below = re.split(rf"^#+ {re.escape(heading)}\n", text, flags=re.MULTILINE)[1]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table, f"{document} has no table below {heading!r}"
    for line in table[0].splitlines()[2:]:
        yield ": ".join(cell.strip() for cell in line.strip("|").split("|"))


@pytest.mark.parametrize("document, heading", CLAIMS)
def test_every_row_names_its_proof(document: str, heading: str) -> None:
    claims = CLAIMS[document, heading]
    rows = list(rows_of(document, heading))
    unproved = [row for row in rows if not row.startswith(tuple(claims))]
    assert not unproved, f"name what proves these rows of {document} in {HERE}"
    stale = [start for start in claims if not any(row.startswith(start) for row in rows)]
    assert not stale, f"{document} does not say this any more"


@pytest.mark.parametrize("proof", PROOFS)
def test_proofs_exist(proof: str) -> None:
    file, _, name = proof.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE)


def test_no_element_type_is_block_scaled() -> None:
    assert set(DEVICE_DTYPES) == {"f32", "f16", "bf16", "f8e4m3", "f8e5m2"}


def test_kernels_are_for_cuda() -> None:
    folders = {path.parent.name for path in (ROOT / "normgen" / "devices").glob("*/__init__.py")}
    assert folders == {"cuda", "host"}, "`host` runs the CUDA text to check it"


@pytest.mark.parametrize(
    "text, fault",
    [
        (PRODUCT, "no tensor has all of [B, D, E]"),
        (CROSSED, "`w[D, A]` does not have D as its innermost axes"),
        (EXCHANGED, None),
        (NESTED, None),
    ],
    ids=["product", "crossed", "exchanged", "nested"],
)
def test_what_has_kernels(text: str, fault: str | None) -> None:
    if fault is None:
        assert normgen.load(text).backward is not None
        return
    with pytest.raises(SpecError) as caught:
        normgen.load(text)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "unsupported" and fault in diagnostic.message


def test_reductions_and_windows() -> None:
    assert not {"cumsum", "cummax", "sort", "argsort", "topk"} & set(built_in_names())
    with pytest.raises(SpecError) as caught:
        normgen.load("norm n\ninput x[B, C]\noutput y[B, C] = max[C:-1..1](x)\n")
    assert {each.code for each in caught.value.diagnostics} == {"window"}


def test_the_spec_of_the_readme_is_the_bundled_one() -> None:
    """Without its comments."""
    shown = re.search(r"^```\n(norm rmsnorm\n.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert shown
    bundled = re.sub(r'\s*"[^"]*"', "", (ROOT / "specs" / "rmsnorm.norm").read_text(encoding="utf-8"))
    assert shown[1].split() == bundled.split()


def test_the_kernel_of_the_readme_is_what_is_printed() -> None:
    shown = re.search(r"^```cpp\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert shown
    printed = (ROOT / "tests" / "golden" / "page.forward.cu").read_text(encoding="utf-8")
    assert indent(shown[1], "    ", lambda line: not line.startswith("#")) in printed


def test_badges_say_what_the_project_says() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, key in (("license", "license"), ("python", "requires-python")):
        found = re.search(rf'^{key} = "(?:>=)?(.+)"$', project, re.MULTILINE)
        picture = (ROOT / "docs" / "images" / "badges" / f"{name}.svg").read_text(encoding="utf-8")
        assert found and re.search(rf">{re.escape(found[1])}\+?</text>", picture)
