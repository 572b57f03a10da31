"""Norms whose axes are spread over ranks, as programs: what is exchanged, and that results are right."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings

from normgen.codegen.ranks import spread_record
from normgen.codegen.strategies.ranks import spread
from normgen.diagnostics import Source, SpecError
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.ir.centre import centre
from normgen.ir.grad import backward
from normgen.ir.kinds import Unspreadable
from normgen.ir.levels import differentiated
from normgen.ir.nodes import reductions
from normgen.ir.program import Program
from normgen.ir.reference import evaluate, new_states
from normgen.verify.draw import attr_choices, scalar_values
from tests.axis_specs import axis_specs
from tests.channel_specs import channel_specs
from tests.codegen.spreading import cut, joined, pieces, run
from tests.ir.specs import NAMES, bundled, draw, written
from tests.strategies import well_typed_specs

LENGTHS = {"B": 4, "C": 9, "D": 12, "...": 6, "H": 6, "W": 6, "K": 6, "E": 9, "S": 9}
TOLERANCE = 1e-9  # of float64, whose sums are in another order


@dataclass(frozen=True)
class Call:
    """A direction of a spec with arrays: its program, the cotangents in which it is linear, its arrays, the
    lengths of its axes, its float attrs and its results."""

    label: str
    program: Program
    cotangents: tuple[str, ...]
    arrays: dict[str, Any]
    extents: dict[str, int]
    scalars: dict[str, float]
    results: dict[str, Any]


@cache
def calls(name, twice=False):
    """Each direction of a bundled spec; with `twice` the derivative of its backward instead."""
    return calls_of(bundled(name), twice)


def calls_of(definition, twice=False):
    fixed = {axis.name: axis.extent for axis in definition.program.axes if axis.extent is not None}
    extents = {"...": 6, **{a.name: LENGTHS.get(a.name, 4) for a in definition.program.axes}, **fixed}
    rng = np.random.default_rng(3)
    arrays = draw(definition, None, extents, seed=3)
    scalars = scalar_values(definition.program)
    results = evaluate(definition.program, arrays, extents, scalars)
    forward = Call("forward", definition.program, (), dict(arrays), extents, scalars, results)
    found = [] if twice else [forward]
    arrays |= {**results, **new_states(definition.program, results)}
    for label, program, of in derivatives(definition, twice):
        for tensor in program.operands:
            arrays.setdefault(tensor.name, rng.standard_normal([extents[axis] for axis in tensor.order]))
        results = evaluate(program, arrays, extents, scalars)
        cotangents = tuple(f"d{each}" for each in of)
        found.append(Call(label, program, cotangents, dict(arrays), extents, scalars, results))
    return found


def derivatives(definition, twice):
    if definition.of and not twice:
        yield "backward", backward(definition), definition.of
    elif twice and (level := differentiated(definition)) is not None:
        yield "double", backward(level.definition), level.definition.of


def axes_of(program):
    fixed = {axis.name for axis in program.axes if axis.extent is not None}
    tensors = (*program.operands, *(r.tensor for r in program.results))
    return [a for a in dict.fromkeys(a for t in tensors for a in t.order) if a not in fixed]


def worst(made, call, axes, ranks):
    """The largest error of a spread program, relative to the largest value of each result."""
    program, extents = call.program, call.extents
    orders = {t.name: t.order for t in program.operands}
    cuts = {axis: cut(extents[axis], ranks) for axis in axes}
    given = {name: pieces(call.arrays[name], order, cuts) for name, order in orders.items()}
    locals_ = [{**extents, **{axis: cuts[axis][rank] for axis in axes}} for rank in range(ranks)]
    arrays = [{name: each[rank] for name, each in given.items()} for rank in range(ranks)]
    got = run(made, arrays, locals_, call.scalars)
    results = {r.tensor.name: r.tensor.order for r in program.results}
    results |= {f"update:{u.state}": orders[u.state] for u in program.updates}
    found = 0.0
    for name, order in results.items():
        value = joined(name, made.placements[name], order, [each[name] for each in got], axes)
        scale = max(np.abs(call.results[name]).max(initial=0), 1e-3)
        found = max(found, float(np.abs(value - call.results[name]).max(initial=0)) / scale)
    return found


def compare(every, counts):
    """All axes of some calls, over so many ranks; how many exchanges they took."""
    rounds = 0
    for call in every:
        for axis in axes_of(call.program):
            try:
                made = spread(call.program, frozenset({axis}), call.cotangents)
            except Unspreadable:
                continue
            rounds += len(made.rounds)
            for ranks in counts:
                error = worst(made, call, [axis], ranks)
                assert error < TOLERANCE, (call.program.name, call.label, axis, ranks, error)
    return rounds


@pytest.mark.parametrize("name", NAMES)
def test_three_ranks_have_the_results_of_one(name):
    """Of which one has no elements."""
    compare(calls(name), (3,))


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_ranks_have_the_results_of_one(name):
    compare(calls(name), (2, 8))
    compare(calls(name, twice=True), (2, 3, 8))


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.thorough)])
def test_drawn_specs_on_ranks_have_the_results_of_one(examples):
    rounds = []

    @given(well_typed_specs() | channel_specs() | axis_specs())
    @settings(deadline=None, derandomize=True, database=None, max_examples=examples)
    def check(text):
        note(text)
        rounds.append(compare(calls_of(definition_of(text)), (3,)))

    check()
    assert sum(rounds) > len(rounds), "most of them exchange something"


def definition_of(text):
    source = Source("drawn.norm", text)
    return load_definition(source, attr_choices(parse(source), {})[-1])


# A norm, an axis; the floats that a rank tells in each round of the forward and of the backward.
EXCHANGES = (
    ("rmsnorm", "D", ([1], [1])),
    ("add_rmsnorm", "D", ([1], [1])),
    ("gated_rmsnorm", "D", ([1], [1])),
    ("layernorm", "D", ([3], [3])),
    ("groupnorm", "C", ([3], [3])),
    ("groupnorm", "...", ([3], [3])),
    ("groupnorm_silu", "...", ([3], [2])),
    ("softmax", "D", ([2], [1])),
    ("log_softmax", "D", ([2], [1])),
    ("batchnorm", "B", ([3], [3])),
    ("batchnorm", "...", ([3], [3])),
    ("batchnorm-eval", "B", ([], [])),
    ("rmsnorm", "...", ([], [])),
    ("qk_norm", "H", ([], [])),
    ("rmsnorm_quantized_row", "D", ([1, 1], [1])),
)


@pytest.mark.parametrize(("name", "axis", "floats"), EXCHANGES)
def test_ranks_exchange_the_least(name, axis, floats):
    every = [spread(call.program, frozenset({axis}), call.cotangents) for call in calls(name)]
    assert tuple([len(told) for told in made.told] for made in every) == floats


def test_gradients_of_what_is_whole_are_parts_and_cost_no_pass():
    _, call = calls("batchnorm")
    made = spread(call.program, frozenset({"B"}), call.cotangents)
    assert dict(made.placements) == {"dx": "shard", "dw": "part", "db": "part"}
    assert "db" in {r.tensor.name for r in made.rounds[0].results}, "the statistics have summed it already"
    (dw,) = (r.expr for r in made.apply.results if r.tensor.name == "dw")
    assert not reductions(dw), "its sums are among what this rank has told"


def test_several_axes_of_the_same_ranks():
    """Queries and keys have heads of their own; or are normalized over all of them, in one exchange."""
    for call in calls("qk_norm"):
        made = spread(call.program, frozenset({"H", "K"}), call.cotangents)
        assert not made.rounds
        assert worst(made, call, ["H", "K"], 3) < TOLERANCE
    definition = written(
        "norm both\ninput q[..., D]\ninput k[..., E]\n"
        "output a[..., D] = q * rsqrt(mean[D](q^2) + 1e-6)\noutput b[..., E] = k * rsqrt(mean[E](k^2) + 1e-6)"
    )
    made = spread(definition.program, frozenset({"D", "E"}))
    assert [len(told) for told in made.told] == [2]


def test_the_extreme_of_values_with_a_mean_is_told_as_an_extreme():
    text = (
        "norm t\ninput x[..., D]\noutput y[..., D] = (x - mean[D](x)) * abs(x)\noutput v[...] = max[D](x)\n"
    )
    assert compare(calls_of(written(text)), (3,))


def test_a_value_is_told_once_what_it_is_made_of_is_whole():
    text = "norm t\ninput x[B, S, D]\nlet s = mean[D](tanh(sum[B](tanh(x))))\n"
    definition = written(text + "output y[B, S, D] = tanh(tanh(mean[S](s))) + x + 0.5 * s")
    assert compare(calls_of(definition), (3,))


@pytest.mark.parametrize("output", ["y[B] = mean[D](x)", "y[B, D] = w * mean[D](x)"])
def test_a_gradient_that_is_the_same_along_a_spread_axis_is_a_shard(output):
    definition = written(f"norm t\ninput x[B, D]\nparam w[D]\noutput z[B, D] = x * w\noutput {output}")
    *_, call = every = calls_of(definition)
    assert compare(every, (3,))
    made = spread(call.program, frozenset({"D"}), call.cotangents)
    assert made.placements["dx"] == "shard"


def test_a_gradient_of_nothing_but_another_is_a_shard():
    definition = written("norm t\ninput x[B, D]\nparam w[D]\noutput y[B, D] = w * mean[D](x)\ngrad y wrt x")
    *_, call = every = calls_of(definition)
    assert compare(every, (3,))
    assert not call.program.results[0].expr.axes & {"D"}, "it does not vary along D"


def test_states_are_read_before_they_are_updated():
    """`apply` is given the old value, since `merge` has updated the state by then."""
    text = "norm t\ninput x[B, C]\nstate running[C] = 1\nupdate running = lerp(running, mean[B](x), 0.25)\n"
    made = spread(written(text + "output y[B, C] = x - running").program, frozenset({"B"}))
    assert "running" in {t.name for t in made.merge.operands}
    assert "running" not in {t.name for t in made.apply.operands}


def test_a_name_of_the_spec_is_never_taken():
    text = "norm t\nattr size_D = 2\ninput x[Rank, D]\nparam count_D[D]\nparam t1[D]\n"
    definition = written(text + "output y[Rank, D] = size_D * x * rsqrt(mean[D](x^2)) * count_D * t1")
    made = spread(definition.program, frozenset({"D"}))
    assert made.names.rank == "Rank2" and made.names.size("D") == "size2_D"
    assert made.names.count("D") == "count2_D" and made.told[0][0].name == "t2"


def test_infinities_of_one_rank_do_no_harm_to_others():
    """A vocabulary that is padded by -inf, a row that is -inf everywhere, one with +inf, and a NaN."""
    merged = written("norm t\ninput x[..., D]\noutput y[...] = logsumexp[D](x)")
    for definition in (bundled("softmax"), bundled("log_softmax"), merged):
        program = centre(definition.program)
        x = np.random.default_rng(1).standard_normal((5, 12))
        x[:, 6:], x[2], x[3, 1], x[4, 2] = -np.inf, -np.inf, np.inf, np.nan
        made, wanted = spread(program, frozenset({"D"})), evaluate(program, {"x": x}, {"...": 5, "D": 12})
        got = run(made, [{"x": each} for each in np.split(x, 3, 1)], [{"...": 5, "D": 4}] * 3)
        assert len(made.rounds) == 1
        y = got[0]["y"] if definition is merged else np.concatenate([each["y"] for each in got], 1)
        np.testing.assert_allclose(y, wanted["y"], rtol=1e-12)


def test_a_large_mean_costs_no_accuracy():
    program = bundled("layernorm").program
    x = (np.random.default_rng(2).standard_normal((4, 4096)) + 1e4).astype(np.float32)
    arrays = {"x": x, "w": np.ones(4096), "b": np.zeros(4096)}
    wanted = evaluate(program, arrays, {"...": 4, "D": 4096})["y"]
    given = [{n: a[..., k : k + 512] for n, a in arrays.items()} for k in range(0, 4096, 512)]
    got = run(spread(program, frozenset({"D"})), given, [{"...": 4, "D": 512}] * 8, {"eps": 1e-5}, np.float32)
    assert np.abs(np.concatenate([each["y"] for each in got], 1) - wanted).max() < 5e-6


@pytest.mark.parametrize(("name", "axis"), [("batchnorm", "B"), ("layernorm", "D"), ("rmsnorm_fp8", "G")])
def test_stages_have_kernels(name, axis):
    has_kernels(bundled(name), axis)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_all_stages_have_kernels(name):
    definition = bundled(name)
    for axis in axes_of(definition.program):
        try:
            has_kernels(definition, axis)
        except SpecError as fault:
            assert [each.code for each in fault.diagnostics] == ["spread"]


def has_kernels(definition, axis):
    for program in (definition.program, backward(definition)) if definition.of else (definition.program,):
        record = spread_record(definition, program, [axis])
        for stage in (*record.rounds, record.merge, record.apply):
            assert stage.package is None or stage.package.forward.strategies
