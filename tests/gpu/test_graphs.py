"""CUDA graphs of norms: warm, cold, of two pools, on two streams, beside eager calls, of threads that end."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
chains = pytest.importorskip("tests.gpu.chains")
captured = chains.captured

from tests.threads import at_once  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
REPLAYS = 10

with_scratch = pytest.mark.parametrize("call", chains.WITH_SCRATCH, ids=str)


def _copied(found):
    return [[each.clone() for each in made] for made in found]


def _replayed(graph, made, times=REPLAYS):
    """What replays make, copied behind each of them on the current stream."""
    found = []
    for _ in range(times):
        graph.replay()
        found += _copied(made)
    return found


@pytest.mark.parametrize("call", chains.EVERY, ids=str)
def test_replays_have_the_bits_of_calls_alone(call):
    chain = chains.Chain(call)
    made, graph = captured(lambda: chain.run(4))
    chain.hold(_replayed(graph, made), "replayed")


@with_scratch
def test_a_graph_of_calls_that_were_never_made(call):
    """PyTorch asks for calls ahead, but who makes none is not to get wrong numbers."""
    chain = chains.Chain(replace(call, **_UNLIKE_OTHERS[call.spec]))
    made, graph = captured(lambda: chain.run(4), warm=0)
    chain.hold(_replayed(graph, made), "replayed without a call ahead")


_UNLIKE_OTHERS = {
    "batchnorm": {"sizes": (("B", 33), ("C", 5), ("...", 4000))},
    "rmsnorm": {"width": 776},
    "layernorm": {"width": 4104},
    "groupnorm": {"sizes": (("B", 3), ("C", 17), ("...", 4000))},
}


@with_scratch
def test_graphs_of_one_stream_with_pools_of_their_own_replay_at_once(call):
    chain_of = [chains.Chain(call), chains.Chain(call)]
    stream = torch.cuda.Stream()
    graphs = [captured(lambda chain=chain: chain.run(4), stream=stream) for chain in chain_of]
    _at_once(
        chain_of, [lambda g=graph, m=made: _replayed(g, m) for made, graph in graphs], "two graphs at once"
    )


@with_scratch
def test_graphs_of_one_pool_replay_one_after_the_other(call):
    chain_of = [chains.Chain(call), chains.Chain(call)]
    pool = torch.cuda.graph_pool_handle()
    graphs = [captured(lambda chain=chain: chain.run(4), pool=pool) for chain in chain_of]
    for chain, (made, graph) in zip(chain_of * 3, graphs * 3, strict=True):
        chain.hold(_replayed(graph, made, 2), "graphs of one pool")


@with_scratch
def test_replays_beside_eager_calls_on_the_stream_of_the_capture(call):
    chain_of = [chains.Chain(call), chains.Chain(call)]
    stream = torch.cuda.Stream()
    made, graph = captured(lambda: chain_of[0].run(4), stream=stream)

    def eager():
        return chain_of[1].run(4 * REPLAYS)

    _at_once(
        chain_of, [lambda: _replayed(graph, made), eager], "beside eager calls", [torch.cuda.Stream(), stream]
    )


def _at_once(chain_of, runs, what, streams=None):
    """Run these on streams of their own, all behind a long kernel, so that they overlap on the device."""
    streams = streams or [torch.cuda.Stream() for _ in runs]
    torch.cuda.synchronize()
    found = []
    for stream, run in zip(streams, runs, strict=True):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(chains.CYCLES)
            found.append(run())
    torch.cuda.synchronize()
    for chain, each in zip(chain_of, found, strict=True):
        chain.hold(each, what)


@with_scratch
def test_a_graph_outlives_the_thread_that_captured_it(call):
    chain = chains.Chain(call)
    ((made, graph),) = at_once(lambda: captured(lambda: chain.run(4)))
    gc.collect()
    fill = list(chains.filled())  # who takes what was given back must not find it written
    chain.hold(_replayed(graph, made), "captured by a thread that ended")
    assert all(map(chains.untouched, fill)), "memory of others was written"
