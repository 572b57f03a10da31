"""What kernel texts call things themselves, no operand may be called there."""

from __future__ import annotations

import re
from importlib import resources

import ml_dtypes
import numpy as np
import pytest

from normgen.codegen.names import RESERVED, Names
from normgen.runtime.norm import Norm
from tests.codegen.norms import package_of
from tests.proof.subjects import CHECKED

TEMPLATES = resources.files("normgen") / "templates"
# A declared variable, lambda or parameter whose whole name stands in the template. (Operands begin with a
# small letter, so that constants and types cannot be meant.)
DECLARED = re.compile(
    r"\b(?:int|float|bool|auto|index_t|arrival_t|word_t|char\*?|unsigned int|\w*Moments|Exponentials)"
    r"\s+(?!const\b)(?:const\s+)?&?([a-z_]\w*)(?=\s*(?:[=;,()\[:]|\{(?!\{)))"
)
# Parameters of lambdas that name no operand.
INSIDE = {"k", "e"}


def declared(template: str) -> set[str]:
    text = re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL)
    return set(DECLARED.findall(re.sub(r"//.*", "", text))) - INSIDE


@pytest.mark.parametrize("name", sorted(p.name for p in TEMPLATES.iterdir() if p.name.endswith(".cu.jinja")))
def test_what_a_template_declares_is_reserved(name):
    found = declared((TEMPLATES / name).read_text())
    assert found or name == "clear.cu.jinja"
    assert not found - RESERVED


def test_what_macros_declare_is_reserved():
    for path in TEMPLATES.iterdir():
        if path.name.endswith("_macros.jinja"):
            assert not declared(path.read_text()) - RESERVED, path.name


def test_companions_of_an_operand_are_its_own():
    names = Names()
    assert names.take("w_slanted") == "w_slanted"
    assert names.take("w") == "w_"


# Words of the forms that sum over rows.
WORDS = ("whole", "shift", "bits", "next", "slice", "start", "w_slanted")


@pytest.mark.parametrize("width", [1023, 1024])
def test_operands_of_such_names(width):
    factors = " * ".join(WORDS)
    params = "\n".join(f"param {word}[D]" for word in WORDS)
    text = f"norm clash\ninput x[..., D]\n{params}\noutput y[..., D] = x * rsqrt(mean[D](x^2)) * {factors}\n"
    norm = Norm(package_of(text)).on(CHECKED)
    random = np.random.default_rng(1)
    x = random.standard_normal((9, width)).astype(ml_dtypes.bfloat16)
    given = {word: np.ones(width, ml_dtypes.bfloat16) for word in WORDS}
    saved = norm.forward(x=x, **given)._asdict()
    known = {"x": x, "dy": x} | given | saved
    found = norm.backward(**{t.name: known[t.name] for t in norm.package.backward.reads})
    want = (x.astype(float) ** 2 / np.sqrt((x.astype(float) ** 2).mean(1, keepdims=True))).sum(0)
    np.testing.assert_allclose(found.dshift.astype(float), want, rtol=1e-2, atol=1e-2)
