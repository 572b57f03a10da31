"""What a rank has of the values of a norm whose axes are spread, and what ranks must exchange."""

from __future__ import annotations

import pytest

from normgen.ir.grad import backward
from normgen.ir.kinds import Unspreadable, kinds
from normgen.ir.program import made_of_cotangents
from normgen.ir.show import show
from tests.ir.specs import bundled, written

# A norm, an axis; of the forward, then of the backward: the results that are not shards, and the values that
# are needed whole.
CASES = (
    ("rmsnorm", "D", {"rstd": "whole"}, ["sum[D](x^2) / size[D]"], {}, ["sum[D](w * dy * x)"]),
    ("rmsnorm", "...", {}, [], {"dw": "sum"}, []),
    ("layernorm", "...", {}, [], {"dw": "sum", "db": "sum"}, []),
    ("softmax", "D", {}, ["max[D](x)", "sum[D](exp(x - stop(max[D](x))))"], {}, ["sum[D](dy * y)"]),
    ("qk_norm", "H", {"rk": "whole", "kn": "whole"}, [], {"dk": "whole", "dwq": "sum", "dwk": "whole"}, []),
    ("batchnorm", "C", {}, [], {}, []),
)


def look(program, axis):
    roots = {r.tensor.name: r.expr for r in program.results}
    gradients = made_of_cotangents(program.operands, *roots.values())
    found = kinds(roots.values(), frozenset({axis}), gradients)
    others = {name: found.of[e] for name, e in roots.items() if found.of[e] != "shard"}
    return others, [show(node) for node in found.needed]


@pytest.mark.parametrize(("name", "axis", "forward", "needed", "gradients", "also"), CASES)
def test_what_a_rank_has(name, axis, forward, needed, gradients, also):
    definition = bundled(name)
    assert look(definition.program, axis) == (forward, needed)
    assert look(backward(definition), axis) == (gradients, also)


def test_a_sum_stays_a_part_through_what_is_linear_in_it():
    text = "norm t\ninput x[..., D]\noutput y[...] = 2 * sum[D](x) + 3 * sum[D](x^2)\n"
    assert look(written(text).program, "D") == ({"y": "sum"}, [])
    text = "norm t\ninput x[..., D]\noutput y[...] = sum[D](x) + 1\n"
    assert look(written(text).program, "D") == ({"y": "whole"}, ["sum[D](x)"])


def test_of_a_product_of_sums_the_one_of_cotangents_stays_a_part():
    text = "norm t\ninput x[..., D]\noutput y[..., D] = x * sum[D](x)\nsave s[...] = sum[D](x)\n"
    others, needed = look(backward(written(text)), "D")
    assert (others, needed) == ({}, ["sum[D](dy * x)"])


def test_what_no_rank_can_compute_is_refused():
    with pytest.raises(Unspreadable, match="has windows along C"):
        look(bundled("local_response_norm").program, "C")
    program = bundled("rmsnorm").program
    with pytest.raises(Unspreadable, match=r"varies over \.\.\. and D"):
        kinds([r.expr for r in program.results], frozenset({"...", "D"}))
