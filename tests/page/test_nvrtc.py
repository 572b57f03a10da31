"""A page compiles by itself, without a warning."""

from __future__ import annotations

import pytest

from normgen import bundled
from normgen.ahead.page import told_apart
from normgen.devices.cuda import nvrtc
from tests.cli.commands import run
from tests.codegen.norms import packaged
from tests.page.calls import KINDS, Call, calls

FEW = ("groupnorm", "rmsnorm", "batchnorm")
ALONE = ("-default-device",)  # no more options than a page asks for


def compiled(text: str, options: tuple[str, ...]) -> tuple[str, str]:
    """The PTX of a text, and what NVRTC says of it. For no real architecture, which takes half the time."""
    with nvrtc._compiled(text, "compute_90", options) as program:
        api = nvrtc.find_nvrtc().api
        ptx, said = (nvrtc._read(api, program, part) for part in ("PTX", "ProgramLog"))
    return ptx.rstrip(b"\0").decode(), said.rstrip(b"\0").decode()


def cases() -> list[object]:
    """Every spec in one kind of call, and a few in all."""
    return [
        pytest.param(name, kind, marks=() if name in FEW else pytest.mark.thorough, id=f"{name}-{kind}")
        for place, name in enumerate(bundled.names())
        for kind in (range(len(KINDS)) if name == "layernorm" else (place % len(KINDS),))
    ]


@pytest.mark.nvrtc
@pytest.mark.parametrize(("name", "kind"), cases())
def test_a_page_compiles(name: str, kind: int) -> None:
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
    """The page of a call compiles, without a warning, and has all of its kernels."""
    ptx, said = compiled(call.page, ALONE)
    assert said == ""
    for launch in told_apart(call.plan.launches):
        assert f".entry {launch.entry}(" in ptx


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
