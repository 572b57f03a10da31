"""Calls on several streams, whose operands and results are given up while kernels are still to run."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from random import Random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
sequences = pytest.importorskip("tests.gpu.sequences")
chains = pytest.importorskip("tests.gpu.chains")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
with_scratch = pytest.mark.parametrize("call", chains.WITH_SCRATCH, ids=str)
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


@pytest.mark.parametrize("index", range(16))
def test_a_sequence_whose_calls_go_to_streams_in_turn(index, seed):
    random = Random(f"streams {seed} {index}")
    streams = [torch.cuda.Stream() for _ in range(3)]

    @contextlib.contextmanager
    def around():
        stream, current = random.choice(streams), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield
        for each in streams:  # a backward runs on the stream of its forward
            current.wait_stream(each)

    calls = sequences.draw_sequence(random, sequences.ON_GPU, steps=24)
    assert sequences.play(calls, random, "cuda", around) == 24


@with_scratch
def test_streams_at_once_have_the_bits_of_calls_alone(call):
    """Each waits behind a long kernel, so that they overlap on the device."""
    chain_of = [chains.Chain(call) for _ in range(3)]
    assert all(chain.want for chain in chain_of)
    found = []
    for chain in chain_of:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(chains.CYCLES)
            found.append(chain.run(12))
    for chain, each in zip(chain_of, found, strict=True):
        chain.hold(each, "streams at once")


@with_scratch
def test_what_is_given_up_early_is_not_written_late(call):
    """While kernels of a side stream are still to run, other memory of that size is taken on another."""
    chain = chains.Chain(call)
    assert chain.want
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(chains.CYCLES)
        for _ in range(10):
            chain.run(2)  # whose results nobody keeps
    gc.collect()
    fill = list(chains.filled())
    torch.cuda.synchronize()
    assert all(map(chains.untouched, fill)), "memory of others was written"
    chain.hold(chain.run(4), "afterwards")


@with_scratch
def test_a_stream_whose_handle_is_given_out_again(call):
    """The driver's own streams, as other libraries have them."""
    chain = chains.Chain(call)
    assert chain.want
    driver, fill = ctypes.CDLL("libcuda.so.1"), []
    for _ in range(6):
        handle = ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(handle), NON_BLOCKING) == 0
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
            found = chain.run(6)
            torch.cuda.current_stream().synchronize()
        chain.hold(found, "a stream of the driver")
        assert driver.cuStreamDestroy_v2(handle) == 0
        gc.collect()
        torch.cuda.empty_cache()
        fill += chains.filled()
    assert all(map(chains.untouched, fill)), "memory of others was written"


@with_scratch
def test_zeros_of_one_stream_serve_no_other(call):
    """The first calls on each of two streams, the second one not waiting for the first, which is late."""
    late, early = torch.cuda.Stream(), torch.cuda.Stream()
    chain_of = [chains.Chain(call), chains.Chain(call)]
    assert all(chain.want for chain in chain_of)
    torch.cuda.synchronize()
    with torch.cuda.stream(late):
        torch.cuda._sleep(chains.CYCLES)
        first = chain_of[0].run(2)
    with torch.cuda.stream(early):
        second = chain_of[1].run(2)
    chain_of[1].hold(second, "beside a stream that is late")
    chain_of[0].hold(first, "on a stream that is late")
