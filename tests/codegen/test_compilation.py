"""A compilation makes each stage once, whatever asks for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normgen
from normgen import bundled
from normgen.codegen import package
from normgen.codegen.compilation import Compilation
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir import grad
from normgen.runtime.norm import Norm
from normgen.verify import texts
from tests.cli.commands import SPEC, run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often backwards are derived, and packages made, where none are kept."""
    monkeypatch.setenv("NORMGEN_CACHE", "0")
    found: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            found[name] += 1
            return function(*given)

        return call

    monkeypatch.setattr(grad, "_backward", counted("derived", grad._backward))
    monkeypatch.setattr(package, "_package", counted("packaged", package._package))
    # (what is compiled on the host is no matter here)
    monkeypatch.setattr(texts, "check_syntax", lambda *_: None)
    return found


def test_a_loaded_norm_and_a_module_take_one_derivation(calls: Counter[str]) -> None:
    norm = normgen.load("rmsnorm")
    assert norm.reference is not None and calls == {"derived": 1, "packaged": 1}
    assert "def backward(" in normgen.compile_spec(SPEC)
    assert calls == {"derived": 2, "packaged": 2}


@pytest.mark.parametrize(
    ("arguments", "packaged"),
    [
        (["compile", "rmsnorm", "--emit", "module", "--emit", "cu"], 1),
        (["explain", "rmsnorm", "--emit", "grad"], 0),
        (["explain", "rmsnorm", "--emit", "cuda"], 1),
    ],
)
def test_a_command_takes_one_derivation(
    calls: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], packaged: int
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments).exit_code == 0
    assert (calls["derived"], calls["packaged"]) == (1, packaged)


@pytest.mark.kernels
def test_a_level_has_kernels_of_its_backward_alone(calls: Counter[str]) -> None:
    made = Compilation(load_definition(bundled.read("rmsnorm"), {}))
    above = made.differentiated
    assert above is made.differentiated and not calls
    assert above is not None and above.level is not None
    assert above.package.forward.strategies == ()
    assert [name for name, _ in above.programs] == ["backward"] and "backward" in above.plans()
    assert calls == {"derived": 1, "packaged": 1}
    norm = Norm(above.package)
    assert norm.backward_args == ("dgrad_x", "dgrad_w", "grad_y", "x", "w", "rstd")
    rows, row = np.ones((2, 4), np.float32), np.ones(4, np.float32)
    with pytest.raises(ValueError, match=r"rmsnorm_grad\.forward has no kernels"):
        norm.forward(rows, rows, row)
    norm.warmup({"...": 2, "D": 4}, device="cpu")


def test_what_has_no_gradient_has_no_level() -> None:
    nothing = "norm test\ninput x[D]: f8e4m3\noutput y[D]: f32 = 2 * x"
    assert Compilation(load_definition(Source("test.norm", nothing), {})).differentiated is None
    zero = "norm test\ninput x[D]\noutput y[D] = stop(x)"
    assert Compilation(load_definition(Source("test.norm", zero), {})).differentiated is None
