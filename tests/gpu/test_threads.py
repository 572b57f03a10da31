"""Threads that call at once, on streams of their own, and threads that Python has not made."""

from __future__ import annotations

import gc
from random import Random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
sequences = pytest.importorskip("tests.gpu.sequences")
chains = pytest.importorskip("tests.gpu.chains")

from tests.threads import at_once, foreign  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
THREADS = 4


def _on_a_stream(work):
    """This in the order of a new stream, to its end."""

    def run():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            made = work()
        stream.synchronize()
        return made

    return run


@pytest.mark.parametrize("index", range(8))
def test_sequences_of_threads_at_once_agree_with_float64(index, seed):
    """All threads draw the same kinds of calls, so that they meet in every cache."""

    def play(thread):
        random = Random(f"threads {seed} {index}")
        calls = list(sequences.draw_sequence(random, sequences.ON_GPU, steps=24))
        order = Random(thread)
        order.shuffle(calls)
        return sequences.play(iter(calls), order, "cuda")

    assert (
        at_once(*(_on_a_stream(lambda n=n: play(n)) for n in range(THREADS)), seconds=200) == [24] * THREADS
    )


@pytest.mark.parametrize("call", chains.WITH_SCRATCH, ids=str)
def test_threads_on_one_stream_have_the_bits_of_calls_alone(call):
    """Launches of one thread come in between those of another."""
    chain_of = [chains.Chain(call) for _ in range(THREADS)]
    assert all(chain.want for chain in chain_of)
    stream = torch.cuda.Stream()

    def work(chain):
        with torch.cuda.stream(stream):
            return chain.run(20)

    found = at_once(*(lambda c=chain: work(c) for chain in chain_of))
    for chain, each in zip(chain_of, found, strict=True):
        chain.hold(each, "threads on one stream")


@pytest.mark.parametrize("call", chains.WITH_SCRATCH, ids=str)
def test_threads_that_python_has_not_made(call):
    """Python forgets such a thread after each of its calls, and all that was its own."""
    chain = chains.Chain(call)
    assert chain.want
    fill = []

    def work():
        found = chain.run(4)
        torch.cuda.synchronize()
        gc.collect()
        fill.extend(chains.filled())  # who takes what was given back must not find it written
        return found

    for found in foreign(work):
        chain.hold(found, "a foreign thread")
    assert all(map(chains.untouched, fill)), "memory of others was written"


def test_threads_that_end_leave_nothing_behind():
    chain = chains.Chain(chains.WITH_SCRATCH[0])
    assert chain.want

    def work():
        at_once(_on_a_stream(lambda: chain.run(2)))
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    for _ in range(3):
        before = work()
    streams = 32  # that PyTorch has in all: a stream may have scratch memory of its own
    after = [work() for _ in range(2 * streams)]
    assert after[-1] == after[streams], (before, after)
