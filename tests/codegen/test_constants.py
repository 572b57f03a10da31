"""What a text reads and what a launch gives it: the constants of `Call.launch`."""

from __future__ import annotations

import re

import pytest

from normgen.package.constants import CONSTANTS, Constants, definitions
from tests.codegen.norms import packaged, source_of
from tests.codegen.test_golden import FOLDER

COMMENT = re.compile(r"\{#(?:.|\n)*?#\}|//.*|# .*")


def test_every_constant_is_read_by_some_template() -> None:
    """A constant that no template reads any more leaves the table."""
    rooms = ("templates/*/*.jinja", "kernel/*.py", "families/*/compile/*.py")
    texts = (path.read_text(encoding="utf-8") for room in rooms for path in FOLDER.parent.glob(room))
    code = (COMMENT.sub("", text) for text in texts)
    assert {word for text in code for word in re.findall(r"\w+", text)} >= {*CONSTANTS}


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
