"""The steps of a compilation: a polynomial of the spec's size, whatever its values share; and their limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from normgen.api import compile_spec
from normgen.diagnostics import SpecError
from normgen.ir import limit
from normgen.ir.grad import backward
from normgen.ir.limit import MOST_STEPS, limited
from normgen.ir.nodes import walk
from normgen.ir.reference import evaluate
from normgen.ir.show import LONGEST_PART, show, show_program
from normgen.ir.work import counted
from tests.sampling import sampled

from .specs import written

# Lines of a chain: `{p}` is the value of the line before, `{q}` that of the one before that.
LINES = (
    "{p} * {p} + exp({p})",
    "{p} * x + {p}",
    "max({p}, x) * {p} + {p}",
    "{p} * {p} if {p} > 0 else exp({p})",
    "(1 + {p}^2)^{q}",
    "{p} - mean[D]({p})",
    "{p} * rsqrt(mean[D]({p}^2) + 1)",
    "mean[D]({p} * x) * {p} + {q}",
    "abs({p}) * {q}",
    "sum[D: -1..1]({p} * {q}) + {p}",
    "tanh({p}) * sigmoid({q}) * {p} + {q}",
    "bf16({p} * {p}) + {q}",
    "{p} / (1 + abs({q}))",
)


def chain(line: str, length: int, kind: str = "let") -> str:
    values = ["x", "x"]
    text = "norm chain\ninput x[..., D]\n"
    for i in range(length):
        axes = "" if kind == "let" else "[..., D]"
        text += f"{kind} a{i}{axes} = {line.format(p=values[-1], q=values[-2])}\n"
        values.append(f"a{i}")
    return f"{text}output y[..., D] = {values[-1]}\n"


def steps_to_compile(text: str) -> int:
    with counted() as work:
        compile_spec(text)
    return work.done


def steps_to_derive(text: str) -> int:
    with counted() as work:
        show_program(backward(written(text)))
    return work.done


def test_64_lines_that_use_the_line_before_twice() -> None:
    """Some three times the steps of the largest bundled spec."""
    assert steps_to_compile(chain("{p} * {p} + exp({p})", 64)) < 400_000


def test_towers_of_powers() -> None:
    text = f"norm tower\ninput h[..., D]\noutput y[..., D] = {' ^ '.join(['h'] * 65)} ^ 2\n"
    assert steps_to_compile(text) < MOST_STEPS / 10


@pytest.mark.parametrize("line", sampled(LINES, 0, 2, 8, 9, 10))
def test_twice_the_lines_are_at_most_32_times_the_work(line: str) -> None:
    """Where each line doubled it, these would be 64 times."""
    for kind in ("let", "save"):
        once, twice = (steps_to_derive(chain(line, n, kind)) for n in (6, 12))
        assert twice <= 32 * once


# A line of a random spec, and which of the values so far its two operands are, counted from the last.
LETS = st.lists(
    st.tuples(st.sampled_from(LINES), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=14
)


@settings(max_examples=25, deadline=None)
@given(LETS, st.lists(st.booleans(), min_size=14, max_size=14))
@example([("{p} * {p} + exp({p})", 0, 0)] * 14, [True] * 14)
def test_values_that_share_what_they_are_made_of(lets: list[tuple[str, int, int]], saved: list[bool]) -> None:
    values = ["x"]
    text = "norm shared\ninput x[..., D]\n"
    for i, (line, p, q) in enumerate(lets):
        operands = {"p": values[-1 - min(p, i)], "q": values[-1 - min(q, i)]}
        head = f"save a{i}[..., D]" if saved[i] else f"let a{i}"
        text += f"{head} = {line.format(**operands)}\n"
        values.append(f"a{i}")
    text += f"output y[..., D] = {values[-1]} + {values[len(values) // 2]}\n"
    assert steps_to_derive(text) <= 2_000 * (len(lets) + 1) ** 3


# ---------------------------------------------------------------------------------------------- derivatives


def test_a_chain_is_derived_as_a_product() -> None:
    """One factor for each line, not the sum of all paths."""
    derived = backward(written(chain("{p} * {p} + exp({p})", 3)))
    (gradient,) = derived.results
    names = {b.expr: b.name for b in derived.bindings}
    assert show(gradient.expr, names) == "dy * (exp(a1) + 2 * a1) * (2 * x + exp(x)) * (exp(a0) + 2 * a0)"


def test_what_selects_made_zero_stays_zero_in_long_chains() -> None:
    """The root's derivative at 0 is infinite; no branch that is taken there depends on it."""
    text = "input x[D]\nlet r = sqrt(x)\n" + "".join(
        f"let a{i} = ({p} * {p} + x if x > 0 else x)\n"
        for i, p in enumerate(["r", *(f"a{k}" for k in range(7))])
    )
    definition = written(f"{text}output y[D] = a7")
    got = evaluate(backward(definition), {"x": np.array([0.0, 0.5]), "dy": np.ones(2)}, {"D": 2})["dx"]
    assert got[0] == 1
    assert np.isfinite(got[1])


def test_what_is_long_is_left_out() -> None:
    definition = written(chain("{p} * {p} + exp({p})", 40))
    (result,) = definition.program.results
    assert len(show(result.expr)) < 4 * LONGEST_PART
    assert "..." in show(result.expr)
    assert "..." not in show(next(node for node in walk(result.expr) if len(list(walk(node))) == 10))


def test_programs_are_shown_whole() -> None:
    """A value that is long and used twice has a line of its own."""
    text = show_program(backward(written(chain("{p} / (1 + abs({q}))", 12))))
    assert "(...)" not in text and "* ..." not in text
    assert "\nlet s1 = " in text
    assert len(text) < 50_000


# ------------------------------------------------------------------------------------------------ the limit


def test_what_takes_too_many_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = written(chain("{p} * {p} + exp({p})", 8))
    monkeypatch.setattr(limit, "MOST_STEPS", 500)
    with pytest.raises(SpecError) as refusal:
        backward(definition)
    assert str(refusal.value) == (
        "error[size]: the backward of `chain` takes more than 500 steps\n"
        "  --> test.norm:11:1\n"
        "   |\n"
        "11 | output y[..., D] = a7\n"
        "   | ^^^^^^^^^^^^^^^^^^^^^ computed from 25 values\n"
        "   |\n"
        "   = help: split it into several norms: an output of one can be an input of the next"
    )


def test_so_is_what_nests_too_deeply() -> None:
    definition = written("input x[D]\noutput y[D] = x")
    with (
        pytest.raises(SpecError, match="planning of `test` nests too deeply"),
        limited(definition, "planning"),
    ):
        raise RecursionError
