"""How near a module of another library must come to a norm: where the verdict turns."""

from __future__ import annotations

import pytest

from tests.torch.norms import torch

probes = pytest.importorskip("normgen.torch.patching.probes")
watching = pytest.importorskip("normgen.torch.patching.watching")
SAME, NEAR, APART = probes.Verdict.SAME, probes.Verdict.NEAR, probes.Verdict.APART


@pytest.mark.parametrize(
    ("dtype", "units", "every", "verdict"),
    [
        (torch.float32, 16, 1, SAME),
        (torch.float32, 64, 1, APART),
        (torch.float64, 16, 1, SAME),
        (torch.float64, 2**34, 1, NEAR),
        (torch.float64, 2**36, 1, APART),
        *((dtype, 1, 64, SAME) for dtype in probes.SHORT),
        *((dtype, 1, 16, NEAR) for dtype in probes.SHORT),
        *((dtype, 4, 1, NEAR) for dtype in probes.SHORT),
        *((dtype, 16, 1, APART) for dtype in probes.SHORT),
    ],
)
def test_results_agree_to_a_few_units_in_few_elements(dtype, units, every, verdict):
    """Of ones, of which one in so many is off by so many units of the last place."""
    want = torch.ones(4, 64, dtype=dtype)
    got = want.clone()
    got[:, ::every] += units * torch.finfo(dtype).eps
    assert probes._agreement(got, want) is verdict


@pytest.mark.parametrize(
    ("fit", "eps"),
    [(1.0000005e-5, 1e-5), (1.000004e-5, 1.000004e-5), (5e-21, 0.0), (4e-20, 4e-20), (-1e-5, None)],
)
def test_a_fit_is_the_number_that_it_comes_near(fit, eps):
    probe = probes.Probe(watching.Watch(torch.nn.Identity), {"eps": 1e-5}, 4, (), ())
    probe.watch.read.add("eps")
    assert probe._rounded(fit) == eps


def test_a_path_tells_lengths_from_dimensions():
    with watching.Path((3, 7)) as path:
        for number in (5, 6, 3):
            torch.ones(()).mul(number)
    told = [given[1] for function, given, _ in path.steps if function is torch.Tensor.mul]
    assert told == [5, "length", "length"]
