"""What a case must give where an axis is empty: zeros, but for results that it does not concern."""

from __future__ import annotations

import pytest

from normgen.verify.cases import make_case, same_dtype
from tests.verify.subjects import bundled_subject, prove

CASES = (
    ("batchnorm", (("training", False),), {"B": 0, "C": 3, "...": 4}),
    ("rmsnorm_quantized_static", (("e5m2", False),), {"...": 0, "D": 3}),
    ("layernorm", (), {"...": 0, "D": 3}),
)


@pytest.mark.parametrize(("name", "attrs", "sizes"), CASES)
def test_results_that_an_empty_axis_does_not_concern_are_what_they_are_without_it(
    name: str, attrs: tuple[tuple[str, object], ...], sizes: dict[str, int]
) -> None:
    subject = bundled_subject(name, attrs)
    prove(subject, make_case(subject.definition, 1, 1, same_dtype("f32"), sizes))
