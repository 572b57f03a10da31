"""What `make test-gpu` runs on a GPU, in small on the CPU: random sequences of calls, and chains."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random

import pytest

from tests.sampling import sampled
from tests.torch.norms import torch

sequences = pytest.importorskip("tests.gpu.sequences")
chains = pytest.importorskip("tests.gpu.chains")


@pytest.mark.parametrize("seed", sampled(range(40), *range(6)))
def test_a_sequence_of_calls_agrees_with_float64(seed):
    random = Random(seed)
    calls = sequences.draw_sequence(random, sequences.ON_HOST, steps=12)
    assert sequences.play(calls, random, "cpu", nullcontext) == 12


@pytest.mark.parametrize("name", ["batchnorm", "add_rmsnorm"])
def test_a_chain_sees_a_call_that_has_other_bits(name):
    attrs = (("training", True),) if name == "batchnorm" else ()
    chain = chains.Chain(chains.Call(name, attrs, 3, 8), "cpu")
    chain.hold(chain.run(4), "in turn")
    found = chain.run(2)
    found[1][0] = found[1][0] + 1
    with pytest.raises(AssertionError, match=r"1 of .* results differ: .'turn 1: "):
        chain.hold(found, "in turn")


def test_what_is_wrong_by_more_than_its_bound_is_seen():
    call = chains.Call("rmsnorm", (), 3, 8)
    for spoil in (_spoil_output, _spoil_gradient, _spoil_memory):
        made = sequences.forward(sequences.place(call, "cpu"))
        sequences.differentiate(made)
        sequences.check(made)
        spoil(made)
        with pytest.raises(AssertionError, match=r"rmsnorm, .*: "):
            sequences.check(made)


def _spoil_output(made):
    made.outputs["y"] = made.outputs["y"] * (1 + 1e-4)


def _spoil_gradient(made):
    made.gradients["w"] = made.gradients["w"].bfloat16()


def _spoil_memory(made):
    with torch.no_grad():
        made.memory["x"][0][-1] = 0
