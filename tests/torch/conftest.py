"""Where PyTorch is missing, nothing of this folder is collected; the summary of the run says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import HAS_TORCH

collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nearly all of these run kernels."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("kernels")


@pytest.fixture(autouse=True)
def _seed():
    if HAS_TORCH:
        import torch

        torch.manual_seed(0)


@pytest.fixture
def runs(monkeypatch):
    """The steps that run in Python, by name, each with the results that are asked of it."""
    from normgen.torch.steps import Step

    noted = []
    run = Step.run

    def note(self, tensors, numbers, wanted):
        noted.append((self.name, wanted.names))
        return run(self, tensors, numbers, wanted)

    monkeypatch.setattr(Step, "run", note)
    return noted


@pytest.fixture(scope="session")
def _launcher():
    from normgen.torch import native
    from tests.fakes.launcher import HostLauncher

    before = native.EXTENSION.loaded
    extension = native.EXTENSION.build()
    native.EXTENSION.loaded = before
    if extension is None:
        pytest.skip(native.EXTENSION.fault)
    return HostLauncher(), extension


@pytest.fixture
def launcher(monkeypatch, _launcher):
    """Known calls are made in C++, by what behaves as cuLaunchKernelEx does and runs kernels on the host."""
    from normgen.torch import native

    launcher, extension = _launcher
    monkeypatch.setattr(native, "launcher_of", launcher.of)
    monkeypatch.setattr(native.EXTENSION, "loaded", extension)
    launcher.launches.clear()
    launcher.codes.clear()
    return launcher


@pytest.fixture(params=("Python", "C++"))
def load(request):
    """Bundled norms by name, whose calls are made in Python, or in C++ once they are known."""
    import normgen.torch as nt
    from normgen import bundled

    own = ""
    if request.param == "C++":
        request.getfixturevalue("launcher")
        own = "\n# called in C++\n"  # another text, so that no other test has its functions
    return lambda name, **attrs: nt.load(bundled.read(name).text + own, **attrs)


@pytest.fixture
def on_gpu():
    """Autocast on a GPU, which need not be there, on tensors without values. (A backward needs the GPU.)"""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    with FakeTensorMode():
        yield torch.device("cuda")
    torch.set_autocast_enabled("cuda", enabled)
    torch.set_autocast_dtype("cuda", dtype)
