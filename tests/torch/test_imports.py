"""What PyTorch functions import, and when: no compiler before something is to be compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import normgen
import normgen.torch as nt
from normgen import bundled

ROOMS = ("normgen.torch.nn", "normgen.torch.patching")
COMPILERS = ("lark", "jinja2", "normgen.dsl", "normgen.ir.nodes", "normgen.kernel", "normgen.codegen")
CALL = """
x, w = torch.randn(4, 8), torch.randn(8, requires_grad=True)
function(x, w).sum().backward()
"""


def imported(code: str, *names: str) -> set[str]:
    """Which of these modules there are after some lines of a fresh process."""
    script = f"import sys, torch\n{code}\nprint('after:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(names) & set(done.stdout.partition("after:")[2].split())


def test_importing_imports_nothing_that_is_not_asked_for() -> None:
    assert not imported("import normgen.torch as nt\nnt.load", *COMPILERS, *ROOMS)
    assert imported("import normgen.torch as nt\nnt.nn, nt.patch", *ROOMS) == set(ROOMS)


def test_what_was_compiled_before_is_loaded_and_differentiated_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "generated.py").write_text(normgen.compile_spec(bundled.read("layernorm").text))
    load = f"sys.path.insert(0, {str(tmp_path)!r})\nimport generated, normgen.torch as nt\n"
    load += "function = nt.load(generated)"
    assert not imported(load + CALL, *COMPILERS)
    assert set(COMPILERS[2:]) <= imported(load + "\nfunction(torch.zeros(4, 8).double())", *COMPILERS)
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path))
    code = "import normgen.torch as nt\nfunction = nt.load('layernorm')"
    assert imported(code, *COMPILERS) == set(COMPILERS)
    assert not imported(code, *COMPILERS)


def test_the_public_names() -> None:
    assert set(nt.__all__) <= set(dir(nt)) and nt.nn.RMSNorm
    with pytest.raises(AttributeError, match=r"module 'normgen\.torch' has no attribute 'lod'"):
        _ = nt.lod
