"""The bundled specs, one by one and as a family; the prelude's functions."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normgen.diagnostics import Source
from normgen.dsl import ast, load_definition
from normgen.dsl.functions import prelude
from normgen.dsl.syntax import parse
from normgen.ir.grad import backward
from normgen.ir.program import Definition
from normgen.ir.reference import check_gradient, evaluate

from .loading import load

PATHS = sorted((Path(__file__).parent.parent.parent / "specs").glob("*.norm"))
REQUIRED: dict[str, dict[str, object]] = {
    "adagn": {"groups": 2},
    "gated_rmsnorm_grouped": {"groups": 2},
    "groupnorm": {"groups": 2},
    "groupnorm_channels_last": {"groups": 2},
    "groupnorm_silu": {"groups": 2},
    "groupnorm_silu_channels_last": {"groups": 2},
    "qk_norm": {"head_dim": 4},
}
# Specs whose `x` or `y` is a value on the way, and not an array.
INNER = ("qk_norm", "rmsnorm_fp8", "rmsnorm_quantized_static")


def source(path: Path) -> Source:
    return Source(path.name, path.read_text(encoding="utf-8"))


def bundled(name: str, **attrs: object) -> Definition:
    path = next(p for p in PATHS if p.stem == name)
    return load_definition(source(path), {**REQUIRED.get(name, {}), **attrs})


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_every_bundled_spec(path: Path) -> None:
    """Documented, and things alike have names alike."""
    definition = bundled(path.stem)
    program, spec = definition.program, parse(source(path))
    assert program.name == path.stem and not definition.warnings
    assert definition.of and definition.wrt
    assert re.search(r"(arXiv:\d{4}\.\d{4,5}|, (19|20)\d\d)\)", program.doc), "no reference"
    undocumented = [s.name.text for s in spec.statements if isinstance(s, ast.Attr) and not s.doc]
    undocumented += [t.name for t in program.operands if t.role in ("param", "state") and not t.doc]
    assert not undocumented
    docs = {t.name: t.doc for t in program.operands}
    assert docs.get("w", "gain") == ("gain, less 1" if "_zero_centred" in path.stem else "gain")
    assert docs.get("b", "bias") == "bias"
    if path.stem not in INNER:
        text = path.read_text(encoding="utf-8")
        assert "x" in docs and any(r.tensor.name == "y" for r in program.results)
        assert ("save   rstd" in text) == ("rsqrt(" in text)
    # Norms that PyTorch has take any eps, as they do there.
    assert all(a.low in (0, None) for a in program.attrs if a.name == "eps")


# ---- the prelude


RNG = np.random.default_rng(1)
ROWS, EXTENTS = RNG.normal(size=(3, 8)), {"...": 3, "D": 8, "B": 3}

ERF = np.vectorize(math.erf)
FUNCTIONS: dict[str, Any] = {
    "mean[D](x)": lambda x: x.mean(1),
    "var[D](x)": lambda x: x.var(1),
    "rms[D](x)": lambda x: np.sqrt((x**2).mean(1)),
    "relu(x)": lambda x: np.maximum(x, 0),
    "silu(x)": lambda x: x / (1 + np.exp(-x)),
    "gelu(x)": lambda x: x * (1 + ERF(x / math.sqrt(2))) / 2,
    "gelu_tanh(x)": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "softplus(x)": lambda x: np.log1p(np.exp(x)),
    "lerp(x, 2, 0.25)": lambda x: 0.75 * x + 0.5,
    "clamp(x, -0.5, 0.25)": lambda x: np.clip(x, -0.5, 0.25),
    "softmax[D](x)": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    "log_softmax[D](x)": lambda x: x - np.log(np.exp(x).sum(1, keepdims=True)),
    "logsumexp[D](x)": lambda x: np.log(np.exp(x).sum(1)),
}


def test_every_function_of_the_prelude_is_tested() -> None:
    assert {re.match(r"\w+", call)[0] for call in FUNCTIONS} == set(prelude())  # type: ignore[index]


@pytest.mark.parametrize("call", FUNCTIONS)
def test_functions_of_the_prelude(call: str) -> None:
    want = FUNCTIONS[call](ROWS)
    axes = "..." if want.ndim == 1 else "..., D"
    definition = load(f"norm t\ninput x[..., D]\noutput y[{axes}] = {call}\n")
    np.testing.assert_allclose(evaluate(definition.program, {"x": ROWS}, EXTENTS)["y"], want)
    arrays = {"x": ROWS, "dy": RNG.normal(size=want.shape)}
    (error,) = check_gradient(definition, backward(definition), arrays, EXTENTS).values()
    assert error < 1e-8


def test_functions_at_large_arguments() -> None:
    x = np.array([[-1e4, -100, 0, 100, 1e4]])
    definition = load("norm t\ninput x[..., D]\noutput y[..., D] = softplus(x)\n")
    got = evaluate(definition.program, {"x": x}, {"...": 1, "D": 5})["y"]
    np.testing.assert_allclose(got, [[0, 0, math.log(2), 100, 1e4]], atol=1e-30)
    derived = evaluate(backward(definition), {"x": x, "dy": np.ones_like(x)}, {"...": 1, "D": 5})["dx"]
    np.testing.assert_allclose(derived, [[0, 0, 0.5, 1, 1]], atol=1e-30)
