"""What a text reads and what a launch gives it: the constants of `Call.launch`."""

from __future__ import annotations

import pytest

from normgen.package.constants import CONSTANTS, Constants, definitions
from tests.codegen import windowing
from tests.codegen.norms import Some, package_of, packaged, source_of


def test_every_constant_is_read_by_some_text() -> None:
    """A constant that no text reads any more leaves the table: over specs that have all families and forms,
    and one whose windows lie along the innermost axis."""
    names = ("dyt", "scalenorm", "batchnorm_channels_last", "groupnorm", "rmsnorm_fp8")
    names += ("local_response_norm_recomputed",)
    asked = Some()
    for made in (*map(packaged, names), package_of(windowing.text(windowing.LAST))):
        for record in filter(None, (made.forward, made.backward)):
            for form in (form for kernel in record.kernels for form in kernel.forms):
                form.text(asked)
    assert asked.keys() >= set(CONSTANTS)


def test_constants_are_defined_beside_what_they_mean() -> None:
    """Neighbours that mean the same stand below that."""
    given = {"VEC": 8, "LENGTH": 2**40, "ONE_X": True, "x_t": "float", "y_t": "__half"}
    assert definitions(given) == (
        "constexpr int VEC = 8;  // elements of a vector\n"
        "constexpr long long LENGTH = 1099511627776;  // elements of a row\n"
        "constexpr bool ONE_X = true;  // whether a vector needs one element of this operand\n"
        "// type of this operand's elements\nusing x_t = float;\nusing y_t = __half;\n"
    )
    assert definitions({}) == ""


def test_a_constant_that_is_not_given_is_a_mistake() -> None:
    form = packaged("rmsnorm").forward.kernels[0].forms[0]
    with pytest.raises(KeyError, match="CLUSTER"):
        form.text(Constants())


def test_constants_are_the_same_whatever_their_order() -> None:
    one, other = Constants(VEC=8, LENGTH=64), Constants(LENGTH=64, VEC=8)
    assert one == other and hash(one) == hash(other) and one.digest == other.digest
    assert one.digest != Constants(VEC=8, LENGTH=65).digest
    assert source_of(packaged("rmsnorm").forward.kernels[0].forms[0]).count("THREADS = 4;") == 1
