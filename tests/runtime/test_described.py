"""What `inspect.signature`, `help` and notebooks say of a norm, and calls of the norm itself."""

from __future__ import annotations

import inspect
import pickle
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import normgen

SPEC = """norm pair "Scales by a root mean square < 1."
attr eps = 1e-6 "added to the mean"
attr gamma
input x[..., D] "values"
param w[D] = 1
state count[D] = 0
save r[...] = rsqrt(mean[D](x^2) + eps)
output y[..., D] = x * r * w + gamma
output z[..., D] = x * 2
update count = count + 1
"""


@pytest.fixture(scope="module")
def norm() -> Any:
    return normgen.load(SPEC)


def test_the_signature_of_each_call_is_its_own(norm: Any) -> None:
    assert str(inspect.signature(norm)) == (
        "(x, w=None, count=None, *, eps: float = 1e-06, gamma: float, out=None, stream=None)"
    )
    forward = inspect.signature(norm.forward)
    assert list(forward.parameters)[:5] == ["x", "w", "count", "eps", "gamma"]
    assert forward.parameters["save"].default is True
    backward = inspect.signature(norm.backward)
    assert list(backward.parameters)[:5] == ["dy", "dz", "x", "w", "r"]
    assert backward.parameters["wrt"].kind is inspect.Parameter.KEYWORD_ONLY
    assert inspect.signature(normgen.load("softmax")) != inspect.signature(norm)


def test_docs_say_what_is_taken_and_returned(norm: Any) -> None:
    assert "x: input [..., D]: values" in norm.forward.__doc__
    assert "dx: gradient of x [..., D], of the type of x" in norm.backward.__doc__
    assert "gamma: float" in norm.__doc__ and "r: save" not in norm.__doc__
    assert norm.__doc__.startswith("Scales by a root mean square < 1.\n")


@pytest.mark.kernels
def test_a_norm_is_called_directly(norm: Any) -> None:
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
    made = norm.forward(x, gamma=0.5)
    y, z = norm(x, gamma=0.5)
    assert np.array_equal(y, made.y) and np.array_equal(z, made.z)
    assert norm(x, gamma=0.5)._fields == ("y", "z")
    alone = normgen.load("rmsnorm")
    assert type(alone(x)) is np.ndarray
    out = np.empty_like(x)
    assert alone(x, out={"y": out}) is out
    with pytest.raises(TypeError, match="eps_"):
        alone(x, eps_=1.0)


def test_copies_describe_themselves_too(norm: Any) -> None:
    again = pickle.loads(pickle.dumps(norm))
    assert inspect.signature(again.backward) == inspect.signature(norm.backward)


def test_notebooks_show_formulas(norm: Any) -> None:
    shown = norm._repr_html_()
    ElementTree.fromstring(shown.replace("&#x2061;", ""))
    assert "mean square &lt; 1" in shown and shown.count("<math>") > 6
    assert "<strong>backward</strong>" in shown
    assert norm.reference._repr_html_() in shown


def test_a_module_shows_formulas_and_what_it_takes() -> None:
    made: dict[str, Any] = {}
    exec(normgen.compile_spec(SPEC), made)
    assert "<math>" in made["NORM"]._repr_html_() and "gamma" in made["NORM"]._repr_html_()
    assert "gamma" in inspect.signature(made["NORM"]).parameters
