"""Which specs have kernels: every claim of "What has kernels" in docs/language.md."""

from __future__ import annotations

import pytest

import normgen
from normgen.diagnostics import SpecError

SOUND = {
    "several sets of axes": "input x[A, B, D]\noutput y[A, B, D] = x * sum[D](x) * sum[A](x) * sum[A, D](x)",
    "windows in windows": "input x[B, C]\noutput y[B, C] = sum[C: -100 .. 100](sum[C: -100 .. 100](x)^2)",
    "another order": "input x[..., D]\noutput y[D, ...] = stop(x * sum[D](x))",
    "another order of elements": "input x[A, D]\ninput z[D, A]\noutput y[A, D] = x + z",
    "a product of matrices": "input x[B, D]\ninput w[E, D]\noutput y[B, E] = stop(sum[D](x * w))",
}
REFUSED = {
    "another order of a cotangent": "input x[..., D]\noutput y[D, ...] = x * sum[D](x)",
    "another order of an operand": "input x[A, D]\ninput z[D, A]\noutput y[A, D] = stop(x * sum[D](x * z))",
    "three blocks of axes": "input x[A, B, D]\noutput y[D, B, A] = stop(x * sum[D](x))",
    "the gradients of a product": "input x[B, D]\ninput w[E, D]\noutput y[B, E] = sum[D](x * w)",
    "a product of columns": "input x[B, D]\ninput w[D, E]\noutput y[B, E] = stop(sum[D](x * w))",
}


@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_spec_has_kernels(text: str) -> None:
    norm = normgen.load(f"norm example\n{text}\n")
    assert norm.forward_args


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_spec_without_kernels_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="no kernel yet"):
        normgen.load(f"norm example\n{text}\n")
