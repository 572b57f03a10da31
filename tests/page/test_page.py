"""The page as a reader sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from normgen.page.tokens import nest, templates_of, tokenise
from normgen.page.tree import declarations
from tests.cli.commands import run

SIZES = ("--size", "D=4096", "--size", "...=32768")


def shown(direction: str) -> str:
    done = run("explain", "rmsnorm", "--emit", "cuda", "--direction", direction, *SIZES)
    assert (done.exit_code, done.stderr) == (0, "")
    return str(done.stdout)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_page(direction: str, golden: Callable[[str, str], None]) -> None:
    golden(f"page.{direction}.cu", shown(direction))


def test_the_forward_is_short() -> None:
    text = shown("forward")
    kernel = text.partition("// ---- rmsnorm_forward_registers ")[2]
    assert kernel.count("\n") <= 120 and text.count("\n") <= 600


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_nothing_is_there_that_nothing_names(direction: str) -> None:
    found = tokenise(shown(direction))
    names = [token.text for token in found if token.kind == "name"]
    for each in declarations(nest(found, templates_of(found))):
        if each.name and each.kind != "other":
            assert names.count(each.name) > 1 or each.name.startswith(("rmsnorm", "kernel_")), each.name
    for word in (
        "NORMGEN_HOST",
        "#if ",
        "if constexpr (SHIFTED",
        "if constexpr (BULK",
        "__nv_fp8",
        "__half ",
    ):
        assert word not in shown(direction)


def test_what_a_kernel_is_launched_with_is_said() -> None:
    text = shown("backward")
    assert "clusters of 2 blocks" in text and "bytes of dynamic shared memory" in text
    assert text.index("rmsnorm_backward_ring -") < text.index("rmsnorm_backward_finalise -")
    assert "rows = 32768, blocks_per_segment = 198\n" in text
