"""Every bundled norm, forward and backward, queued behind a long kernel: the same bits as one by one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
chains = pytest.importorskip("tests.gpu.chains")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
TURNS = 12


@pytest.mark.parametrize("call", chains.EVERY, ids=str)
def test_calls_behind_a_long_kernel_have_the_bits_of_calls_alone(call):
    chain = chains.Chain(call)
    assert chain.want, "and all is compiled"
    torch.cuda._sleep(chains.CYCLES)
    found = chain.run(TURNS)
    chain.hold(found, "queued")
