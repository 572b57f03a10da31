"""The page as a reader sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from normgen.cli import exits
from tests.cli.commands import run
from tests.digests import digest

SIZES = ("--size", "D=4096", "--size", "...=32768")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_page(direction: str, golden: Callable[[str, str], None]) -> None:
    """It says what a kernel is launched with, and has no branch that its constants decide.

    The forward is there to be read. Of the backward, which is twice as long, a digest tells whether it is as
    it was.
    """
    done = run("explain", "rmsnorm", "--emit", "cuda", "--direction", direction, *SIZES)
    assert (done.exit_code, done.stderr) == (0, "")
    text = str(done.stdout)
    if direction == "forward":
        golden("page.forward.cu", text)
        kernel = text.partition("// ---- rmsnorm_forward_registers ")[2]
        assert kernel.count("\n") <= 110 and text.count("\n") <= 500
    else:
        golden("page.backward.txt", f"{digest(text)}\n")
        assert "clusters of 2 blocks" in text and "bytes of dynamic shared memory" in text
        assert text.index("rmsnorm_backward_pipeline -") < text.index("rmsnorm_backward_second_stage -")
        assert "rows = 32768, blocks_per_segment = 198\n" in text
    kernels = text[text.index("// grid (") :]
    assert "if constexpr" not in kernels and "__nv_fp8" not in text and "__half " not in text


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for arguments, said in (
        (("-o", "here"), "-o is for --emit cuda"),
        (("--emit", "cuda", "--size", "E=3"), "no axis is called E"),
        (("--emit", "cuda", "-o", "page.cu"), "'page.cu' should be a directory"),
        (("--emit", "cuda", "--dtype", "f64"), "'f64' is not one of"),
        (("--emit", "cuda", "--direction", "sideways"), "'sideways' is not one of"),
    ):
        done = run("explain", "rmsnorm", *arguments)
        assert done.exit_code == exits.USAGE and said in done.stderr
    spec = tmp_path / "one_way.norm"
    spec.write_text("norm n\ninput x[..., D]: f8e4m3\noutput y[..., D]: f8e4m3 = x\n")
    done = run("explain", str(spec), "--emit", "cuda", "--direction", "backward")
    assert done.exit_code == exits.USAGE and "n has no backward" in done.stderr


def test_a_page_goes_where_it_is_told(tmp_path: Path) -> None:
    spec = tmp_path / "twice.norm"
    spec.write_text("norm twice\ninput x[..., D]\noutput y[..., D] = 2 * x\n")
    arguments = ("explain", str(spec), "--emit", "cuda", "--direction", "forward")
    path = tmp_path / "made" / "twice_forward.cu"
    assert run(*arguments, "-o", str(path.parent)).stdout == ""
    assert path.read_text() == run(*arguments).stdout
    path.write_text("mine")
    assert run(*arguments, "-o", str(path.parent)).exit_code == exits.USAGE
    assert path.read_text() == "mine"
    assert run(*arguments, "-o", str(path.parent), "--force").exit_code == exits.OK
