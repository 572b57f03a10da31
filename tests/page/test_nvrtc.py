"""A page compiles by itself, without a warning, to the instructions of the texts that the call compiles."""

from __future__ import annotations

import re

import pytest

from normgen import bundled
from normgen.devices.cuda import nvrtc
from normgen.package.device_functions import inlined
from normgen.page.page import told_apart
from tests.cli.commands import run
from tests.codegen.norms import packaged
from tests.page.calls import KINDS, Call, calls

FEW = ("groupnorm", "rmsnorm", "batchnorm")
_COMPARED = re.compile(r"setp\.(lt|le|gt|ge)\.s32.*")
# An index that is doubled: the one way or the other, by what stands around it.
_DOUBLED = re.compile(r"(mul\.wide\.s32\s+_, _, 2|shl\.b64\s+_, _, 1);")
_JOINS = re.compile(r"(and|or|not)\.pred")
_STAGES = re.compile(r"constexpr int STAGES = [1-9]")
# What moves data, waits, or computes with elements.
_LASTING = re.compile(
    r"(@\S+\s+)?((?!ld\.param)(ld|st|cp|atom|red)[.]|(bar|barrier|mbarrier|fence|membar|shfl|vote|griddepcontrol)[.]|"
    r"[\w.:]*[.](b?f16|b?f16x2|f32|f64|e4m3x2|e5m2x2)\b|call)"
)
_OFFSET = re.compile(r"\+\d+(?=\])")
_NAME = re.compile(r"\w+(?=_param_\d)|%\w+|\$L__BB\w+|_Z\w+|__cuda_local_var_\w+|__local_depot\d+")


ALONE = ("-default-device",)  # no more options than a page asks for


def compiled(text: str, options: tuple[str, ...]) -> tuple[str, str]:
    """The PTX of a text, and what NVRTC says of it. For no real architecture, which takes half the time."""
    with nvrtc._compiled(text, "compute_90", options) as program:
        api = nvrtc.find_nvrtc().api
        ptx, said = (nvrtc._read(api, program, part) for part in ("PTX", "ProgramLog"))
    return ptx.rstrip(b"\0").decode(), said.rstrip(b"\0").decode()


def instructions(ptx: str, entry: str) -> list[str]:
    """Those of an entry, without the names of registers. In no order, and a comparison is as good as its
    opposite: the compiler may take independent ones in another order, and branch the other way."""
    start = at = ptx.index("{", ptx.index(f".entry {entry}("))
    depth = 0
    while depth or at == start:
        depth += {"{": 1, "}": -1}.get(ptx[at], 0)
        at += 1
    lines = (line.partition("//")[0].strip() for line in ptx[start:at].splitlines())
    named = (_NAME.sub("_", line) for line in lines if line and not line.startswith((".reg", ".loc")))
    kept = (_COMPARED.sub("setp", line) for line in named if not _JOINS.match(line))
    return sorted(_DOUBLED.sub("doubled", line) for line in kept)


def lasting(found: list[str]) -> list[str]:
    """Of instructions those that are not of indices and loops."""
    return sorted(_OFFSET.sub("", line) for line in found if _LASTING.match(line))


def cases() -> list[object]:
    """Every spec in one kind of call, and a few in all."""
    return [
        pytest.param(name, kind, marks=() if name in FEW else pytest.mark.thorough, id=f"{name}-{kind}")
        for place, name in enumerate(bundled.names())
        for kind in (range(len(KINDS)) if name == "layernorm" else (place % len(KINDS),))
    ]


@pytest.mark.nvrtc
@pytest.mark.parametrize(("name", "kind"), cases())
def test_a_page_has_the_instructions_of_the_call(name: str, kind: int) -> None:
    for call in calls(name, *KINDS[kind]):
        check(call)


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", ["layernorm", "softmax"])
def test_texts_of_one_kernel_stand_in_one_page(name: str) -> None:
    """Of rows that blocks share, every level of reductions has a launch, of the same kernel."""
    both = list(calls(name, "f32", 999_999, 1))
    entries = [[launch.entry for launch in call.plan.launches] for call in both]
    assert all(len(set(each)) < len(each) for each in entries)
    for call in both:
        check(call)


def check(call: Call) -> None:
    """The page of a call against its texts."""
    got, said = compiled(call.page, ALONE)
    assert said == ""
    launches = call.plan.launches
    for launch, named in zip(launches, told_apart(launches), strict=True):
        want, said = compiled(inlined(launch.source), nvrtc.OPTIONS)
        assert said == "", launch.entry
        had, wanted = instructions(got, named.entry), instructions(want, launch.entry)
        if had != wanted and _STAGES.search(launch.source):
            # The compiler counts stages in another way where functions have become shorter. That indices are
            # right all the same is what `test_execution.py` finds, which runs pages.
            had, wanted = lasting(had), lasting(wanted)
        assert wanted and had == wanted, named.entry


@pytest.mark.nvrtc
def test_every_form_compiles_in_one_text() -> None:
    text = run("compile", "rmsnorm", "--emit", "cu", "--no-verify", "-o", "-").stdout
    ptx, _ = compiled(text, ALONE)
    package = packaged("rmsnorm")
    assert package.backward is not None
    strategies = (*package.forward.strategies, *package.backward.strategies)
    kernels = [kernel for strategy in strategies for kernel in strategy.kernels]
    entries = {f"{kernel.name}_{form.form}" for kernel in kernels for form in kernel.forms}
    assert entries and all(f".entry {entry}(" in ptx for entry in entries)
