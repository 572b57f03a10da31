"""Runs of channels and heads that straddle groups, of any length on any number of ranks: in float64, on
simulated ranks, beside the program that knows no ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from normgen import arrays, bundled
from normgen.codegen.compilation import Compilation
from normgen.codegen.ranks import rank_compilation
from normgen.dsl import load_definition
from normgen.dtypes import round_to
from normgen.ir.reference import evaluate
from normgen.launching.layout import Lengths, shape_of
from normgen.package.direction import directions
from normgen.package.records import dims_text
from normgen.package.spread import PairRecord
from normgen.runtime.ranks.division import Block, Division, Span, divided
from normgen.runtime.ranks.group import run_together
from normgen.runtime.ranks.steps import LocalCall, Stages
from normgen.runtime.ranks.straddling import Straddling
from normgen.torch.ranks.float64 import by_operators
from normgen.torch.ranks.group import TensorMemory
from normgen.verify.draw import scalar_values
from tests.ir.specs import draw

TOLERANCE = 1e-9  # of float64, whose sums are in another order
# A spec; what fixes the length of an axis; the dimensions of two axes.
SPECS = (
    ("groupnorm", "groups", ("(G C)",)),
    ("groupnorm_silu", "groups", ("(G C)",)),
    ("groupnorm_channels_last", "groups", ("(G C)",)),
    ("groupnorm_silu_channels_last", "groups", ("(G C)",)),
    ("adagn", "groups", ("(G C)",)),
    ("gated_rmsnorm_grouped", "groups", ("(G D)",)),
    ("rmsnorm_quantized_group", "group", ("(G E)",)),
    ("qk_norm", "head_dim", ("(H D)", "(K D)")),
)


@dataclass(frozen=True)
class Call:
    """A direction by its name and its order, with arrays by axes and what it gives."""

    direction: str
    order: int
    arrays: dict[str, Any]
    results: dict[str, Any]


@cache
def compilation(name, attr, value):
    return Compilation(load_definition(bundled.read(name), {attr: value}))


@cache
def on_ranks(name, attr, value, dims, ranks, order):
    made = rank_compilation(compilation(name, attr, value).definition, dims, ranks)
    return made if order == 1 else made.differentiated


@cache
def stages_of(name, attr, value, dims, ranks, order, direction):
    made = on_ranks(name, attr, value, dims, ranks, order)
    wanted = [r.tensor.name for r in dict(made.whole.programs)[direction].results]
    computes = by_operators(made.program(direction, wanted, blocks=True))
    return Stages(made.record(direction, wanted, blocks=True), computes)


def calls_of(made, extents):
    """The forward, the backward, and the derivative of that."""
    rng, definition = np.random.default_rng(3), made.definition
    arrays = draw(definition, None, extents, seed=3)
    for order, level in ((1, made), (2, made.differentiated)):
        for direction, program in level.programs:
            for tensor in program.operands:
                arrays.setdefault(tensor.name, rng.standard_normal([extents[axis] for axis in tensor.order]))
            types = {t.name: t.dtype or "f64" for t in program.operands}
            results = evaluate(program, arrays, extents, scalar_values(program), True, types)
            yield Call(direction, order, {t.name: arrays[t.name] for t in program.operands}, results)
            arrays |= results


def shared(tensor, divisions, rank):
    """Which dimension of a tensor ranks have a run of, the run, and how much room there is for it."""
    for at, dim in enumerate(tensor.dims):
        for each in divisions:
            end = sum(each.lengths[: rank + 1])
            if dims_text((dim,)) == each.pair.name:
                return at, Span(end - each.lengths[rank], each.lengths[rank]), each.lengths[rank]
            if dim == (each.pair.outer,) and not each.all_owned:
                return at, each.owned[rank], room(each, rank)
    return None


def room(division, rank):
    if division.pair.groups is None:
        return -(-division.lengths[rank] // division.members)
    return division.owned[rank].length


def flat(tensor, values):
    shape, at = [], 0
    for dim in tensor.dims:
        shape.append(int(np.prod(values.shape[at : at + len(dim)])))
        at += len(dim)
    return values.reshape(shape)


def as_arrays(call):
    """A call of tensors, which tells and takes arrays and has these as results."""
    answer = None
    while True:
        try:
            told = call.send(answer)
        except StopIteration as stop:
            return {name: each.numpy() for name, each in stop.value.items()}
        answer = torch.from_numpy((yield told.numpy()))


def run(call, key, divisions, extents):
    """Of each result what the ranks have of it, beside the value."""
    ranks = len(divisions[0].lengths)
    made = on_ranks(*key, ranks, call.order)
    stages = stages_of(*key, ranks, call.order, call.direction)
    direction = dict(zip(("forward", "backward"), directions(made.signature), strict=True))[call.direction]
    whole = dict(compilation(*key[:3]).programs if call.order == 1 else made.whole.programs)
    tensors = {t.name: t for t in whole[call.direction].operands}
    types = {n: "f64" if t.dtype in (None, "f32") else t.dtype for n, t in tensors.items()}

    def of_rank(rank):
        operands = {}
        for each, tensor in tensors.items():
            operands[each] = array = flat(tensor, call.arrays[each])
            if found := shared(tensor, divisions, rank):
                at, span, length = found
                array = np.take(array, range(span.start, span.end), at)
                missing = [(0, 0)] * array.ndim
                missing[at] = 0, length - span.length
                operands[each] = np.pad(array, missing)
        axes = {**extents, **{d.pair.name: d.lengths[rank] for d in divisions}}
        axes |= {d.pair.outer: room(d, rank) for d in divisions}
        lengths = Lengths(axes, (extents["..."],))
        results = {n: (shape_of(each, lengths), "f64") for n, each in direction.results.items()}
        numbers = scalar_values(made.whole.definition.program)
        memory = TensorMemory(torch.device("cpu"), torch.float64)
        given = {name: torch.from_numpy(np.array(each, np.float64)) for name, each in operands.items()}
        like = arrays.view(next(iter(given.values())))
        local = LocalCall(given, numbers, like, memory, lengths, results, types, False, rank)
        return (yield from as_arrays(local.run([*Straddling(stages, direction, divisions, local).steps()])))

    got = run_together([of_rank(rank) for rank in range(ranks)])
    for result in whole[call.direction].results:
        parts = [each[result.tensor.name] for each in got]
        kind = result.tensor.dtype
        want = flat(result.tensor, call.results[result.tensor.name])
        want = want if kind in (None, "f32") else round_to(want, kind)
        found = [shared(result.tensor, divisions, rank) for rank in range(ranks)]
        if found[0] is not None:
            at = found[0][0]
            kept = [np.take(p, range(s.length), at) for p, (_, s, _) in zip(parts, found, strict=True)]
            yield result.tensor.name, np.concatenate(kept, at), want
        elif dict(stages.record.placements)[result.tensor.name] == "part":
            yield result.tensor.name, sum(parts), want
        else:
            assert all(np.array_equal(each, parts[0]) for each in parts), "whole results have the same bits"
            yield result.tensor.name, parts[0], want


def worst(key, divisions):
    """The largest error of all results in all directions, relative to the largest value of each result."""
    made = compilation(*key[:3])
    extents = {axis.name: axis.extent or 2 for axis in made.definition.program.axes} | {"...": 3}
    for each in divisions:
        extents |= {each.pair.outer: each.groups, each.pair.inner: each.members}
    error = 0.0
    for call in calls_of(made, extents):
        for _, got, want in run(call, key, divisions, extents):
            assert got.shape == want.shape
            error = max(error, float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-3)))
    return error


def runs_of(spec, groups, members, cuts):
    """The runs of each dimension, cut at shares of its length; the key that finds what is compiled."""
    name, attr, dims = spec
    of_groups = attr == "groups"
    divisions = []
    for k, dim in enumerate(dims):
        outer, inner = dim.strip("()").split()
        count = groups + k
        ends = [0, *sorted(round(cut * count * members) for cut in cuts), count * members]
        shared = not of_groups or count % (len(cuts) + 1) == 0
        pair = PairRecord(outer, inner, count if of_groups else None, None if of_groups else members, shared)
        divisions.append(divided(pair, [b - a for a, b in pairwise(ends)]))
    return (name, attr, groups if of_groups else members, dims), tuple(divisions)


@pytest.mark.parametrize("spec", SPECS, ids=[spec[0] for spec in SPECS])
@settings(max_examples=8, deadline=None)
@given(
    groups=st.integers(1, 4),
    members=st.integers(1, 4),
    cuts=st.lists(st.floats(0, 1), min_size=0, max_size=7),
)
def test_any_runs_have_the_results_of_the_whole(spec, groups, members, cuts):
    """On 1 to 8 ranks, some of which may have nothing; forward, backward, second derivatives."""
    key, divisions = runs_of(spec, groups, members, cuts)
    assert worst(key, divisions) < TOLERANCE


@pytest.mark.parametrize("spec", SPECS, ids=[spec[0] for spec in SPECS])
def test_a_group_on_four_ranks_and_head_whole_and_tail_on_one(spec):
    key, divisions = runs_of(spec, 4, 4, (1 / 16, 2 / 16, 3 / 16, 3 / 16, 13 / 16))
    assert any(all(block.run.length for block in blocks) for each in divisions for blocks in each.blocks)
    assert worst(key, divisions) < TOLERANCE


def _counts_of_whole_groups(self, record, slots):
    return np.full_like(counts(self, record, slots), self.members)


def _tails_at_the_end_of_a_group(self, start, length):
    *others, tail = cut_in_blocks(self, start, length)
    moved = Span(self.members - tail.members.length, tail.members.length)
    return (*others, Block(tail.run, tail.groups, moved))


def _without_the_last_rank(self, sent, held, every):
    every = every.clone()
    every[-1] = 0
    return gathered(self, sent, held, every)


counts, cut_in_blocks, gathered = Division.numbers, Division._blocks, Straddling.gathered


@pytest.mark.parametrize(
    ("where", "name", "fault", "spec"),
    [
        (Division, "numbers", _counts_of_whole_groups, SPECS[0]),
        (Division, "_blocks", _tails_at_the_end_of_a_group, SPECS[-1]),
        (Straddling, "gathered", _without_the_last_rank, SPECS[0]),
    ],
)
def test_faults_are_seen(where, name, fault, spec, monkeypatch):
    key, divisions = runs_of(spec, 3, 4, (5 / 12, 9 / 12))
    assert worst(key, divisions) < TOLERANCE
    monkeypatch.setattr(where, name, fault)
    key, divisions = runs_of(spec, 3, 4, (5 / 12, 9 / 12))
    assert worst(key, divisions) > 0.1


def test_runs_that_are_no_groups_together_are_refused():
    with pytest.raises(
        ValueError, match=r"\(G C\) is 10 over all ranks \(6\+4\), which is not a multiple of G = 3"
    ):
        divided(PairRecord("G", "C", 3, None, True), (6, 4))
