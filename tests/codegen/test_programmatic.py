"""Programmatic dependent launch: who asks for it, and that no kernel touches memory before it has waited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from normgen.cli.sizes import usual_sizes
from normgen.devices.cuda.compile import compile_text
from normgen.kernel import templates
from normgen.launching.launch import Launch
from normgen.launching.machine import Machine
from normgen.package.direction import directions
from normgen.package.records import Package
from normgen.runtime.calls.binding import bind
from normgen.runtime.calls.sizes import stand_ins
from normgen.runtime.planning.choose import alternatives
from tests.codegen.norms import H200, packaged, source_of
from tests.sampling import sampled

ABLE = replace(H200, programmatic=True)
WAIT, LET_IN = "programmatic_wait();", "programmatic_launch();"
# One of each family, and one with several strategies.
SPECS = (
    "layernorm",
    "batchnorm",
    "batchnorm_channels_last",
    "layernorm2d",
    "local_response_norm",
    "rmsnorm_fp8",
)


def launches_of(package: Package, device: Machine, **sizes: int) -> Iterator[Launch]:
    """Every launch of every strategy of both directions."""
    for direction in filter(None, directions(package)):
        views = stand_ins(direction, usual_sizes(package, sizes), "bf16", 16, ("cuda", 0))
        binding = bind(direction, views, {}, tuple(direction.results)).binding
        for found in alternatives(direction.record, binding, device):
            for each in found.kernels:
                yield from each.lowered.launches


@pytest.mark.parametrize("name", SPECS)
def test_a_launch_that_may_start_early_waits_by_itself(name: str) -> None:
    for launch in launches_of(packaged(name), ABLE):
        kernel = launch.source[launch.source.index('extern "C" __global__') :]
        assert launch.programmatic
        assert kernel.count(WAIT) == kernel.count(LET_IN) == 1
        assert kernel.index(WAIT) < kernel.index(LET_IN)
    for launch in launches_of(packaged(name), H200):
        assert not launch.programmatic
        assert "programmatic_" not in launch.source


TEMPLATES = Path(templates.__file__).parents[1] / "templates"
CODE = sorted({*TEMPLATES.rglob("*.jinja"), *TEMPLATES.rglob("*.cuh")})
COMMENTS = re.compile(r"//[^\n]*|\{#.*?#\}", re.DOTALL)


@pytest.mark.parametrize("file", CODE, ids=lambda file: str(file.relative_to(TEMPLATES)))
def test_no_text_loads_as_if_its_memory_were_constant(file: Path) -> None:
    """ptxas moves such loads above the wait."""
    assert not re.search(r"\b__ldg\b|\.nc\b|__restrict__", COMMENTS.sub("", file.read_text()))


@pytest.mark.parametrize("name", SPECS)
def test_only_what_a_text_writes_alone_is_restricted(name: str) -> None:
    """Loads of restricted parameters that are only read become such loads."""
    for record in filter(None, (packaged(name).forward, packaged(name).backward)):
        for kernel in record.kernels:
            reads = {o.tensor for o in (*kernel.reads, *kernel.final_reads)}
            results = {o.tensor for o in (*kernel.writes, *kernel.finals)} - reads
            for form in kernel.forms:
                head = source_of(form)[source_of(form).index('extern "C" __global__') :].partition(") {")[0]
                declared = head[head.rindex("(") + 1 :].split(",")
                for parameter, text in zip(form.parameters, declared, strict=True):
                    restricted = parameter.kind == "pointer" and parameter.name in results
                    assert ("__restrict__" in text) == restricted, (form.entry, text)


# Norms and sizes with which some strategy takes a form.
FORMS = {
    "rows pipeline": ("layernorm", {}, "layernorm_backward_pipeline"),
    "columns stream": ("layernorm2d", {"C": 65536}, "layernorm2d_forward_multipass"),
    "tiles": ("rmsnorm_fp8", {}, "rmsnorm_fp8_forward_2_tiles"),
    "windows march": ("local_response_norm", {}, "local_response_norm_backward_march"),
}
# Whatever reads or writes memory other than a block's own.
TOUCHING = re.compile(r"^\s*(?:@\S+\s+)?(ld|st|cp|red|atom|prefetch)\.(?!param|shared|local)", re.MULTILINE)


@pytest.mark.nvcc
@pytest.mark.parametrize("form", sampled(FORMS, 0, 3))
def test_nothing_is_touched_before_the_wait(form: str) -> None:
    norm, sizes, entry = FORMS[form]
    package = packaged(norm)
    launch = next(each for each in launches_of(package, ABLE, **sizes) if each.entry == entry)
    compiled = compile_text(launch.source, "sm_90", target="ptx")[0].decode()
    before, _, after = compiled[compiled.index(".entry") :].partition("griddepcontrol.wait;")
    assert TOUCHING.search(after) and not TOUCHING.search(before)
    assert "griddepcontrol" not in before and after.count("griddepcontrol.launch_dependents;") >= 1
    older = compile_text(launch.source, "sm_80", target="ptx")[0].decode()
    assert "griddepcontrol" not in older
