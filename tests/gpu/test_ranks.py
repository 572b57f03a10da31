"""Norms whose axes are spread over two GPUs, by NCCL and by peer memory, also within kernels, beside
those of one process: `make test-gpus`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("normgen.torch")
processes = pytest.importorskip("tests.torch.spread_processes")

if torch.cuda.device_count() < 2:
    pytest.skip("there are no two GPUs", allow_module_level=True)


@pytest.fixture(scope="module", params=["collective", "peer-memory", "in-kernel", "auto"])
def two(request, tmp_path_factory):
    variables = {
        processes.SET: "gpu",
        "NORMGEN_TEST_RANKS_ON": "cuda",
        "NORMGEN_RANKS_BACKEND": request.param,
    }
    from tests.torch.gloo import faults

    return faults("tests.torch.spread_processes", 2, tmp_path_factory.mktemp(request.param), variables)


@pytest.mark.parametrize("name", [check.__name__ for check in processes.SETS["gpu"]])
def test_two_gpus_have_the_results_of_one(name, two):
    for fault in two:
        assert not fault[name], fault[name]
