"""Where PyTorch is missing, nothing of this folder is collected; the summary of the run says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import HAS_TORCH
from tests.torch.modes import forget_calls, without_kernels

os.environ["NORMGEN_CPU"] = "kernels"  # what these tests look at; `default_mode` is what users have
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


@pytest.fixture(autouse=True)
def _nothing_compiled():
    """No test meets what PyTorch compiled before: it compiles one function a few times only, and all that is
    handed to `torch.compile` as it is counts as one."""
    if HAS_TORCH:
        import torch

        torch._dynamo.reset()


@pytest.fixture
def runs(monkeypatch):
    """The steps that run in Python, by name, each with the results that are asked of it. No call is known
    from the tests before, whose operators may run in C++."""
    from normgen.torch.steps import Step

    forget_calls()

    noted = []
    run = Step.run

    def note(self, tensors, numbers, wanted):
        noted.append((self.name, wanted.names))
        return run(self, tensors, numbers, wanted)

    monkeypatch.setattr(Step, "run", note)
    return noted


@pytest.fixture
def prepared(runs):
    """The steps that run, none of which was known before."""
    return runs


if HAS_TORCH:
    from normgen.torch.native import EXTENSION

    EXTENSION.build()  # before any test module loads a norm, whose operators are then in C++ too


@pytest.fixture
def extension():
    """What is in C++, by which known calls are made wherever it can be built."""
    return EXTENSION.loaded


@pytest.fixture
def launcher(monkeypatch, extension):
    """What launches for the calls in C++, and notes it."""
    from normgen.torch import native
    from tests.fakes.launcher import HostLauncher

    if extension is None:
        pytest.skip(native.EXTENSION.fault)
    launcher = HostLauncher()
    monkeypatch.setattr(native, "launcher_of", launcher.of)
    yield launcher
    forget_calls()  # which know it


@pytest.fixture
def default_mode():
    """CPU tensors as users have them."""
    with without_kernels():
        yield


@pytest.fixture
def in_python(monkeypatch):
    """All calls are made in Python, as where the extension cannot be built: operators that run in C++ since
    the tests before know none."""
    from normgen.torch import function, native

    forget_calls()

    missing = native._Extension()
    missing.fault = "it is left out"
    monkeypatch.setattr(native, "EXTENSION", missing)
    monkeypatch.setattr(function, "EXTENSION", missing)
    monkeypatch.setattr(
        function.NormFunction, "_fast", property(lambda _: None, lambda *_: None), raising=False
    )


@pytest.fixture(params=("C++", "Python"))
def load(request):
    """Norms by name, whose calls are made in C++ once they are known, or in Python."""
    import normgen.torch as nt

    if request.param == "Python":
        request.getfixturevalue("in_python")
    return nt.load


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


@pytest.fixture
def calls(monkeypatch):
    """The activations that are called with their norm."""
    from normgen.torch.patching import holding

    found, computed = [], holding._computed
    monkeypatch.setattr(holding, "_computed", lambda *given: found.append(given[1].name) or computed(*given))
    return found


@pytest.fixture
def sums(monkeypatch):
    """The norms that are called with a sum."""
    from normgen.torch.patching import fusing

    found, compute = [], fusing.compute
    monkeypatch.setattr(
        fusing, "compute", lambda *given, **named: found.append(1) or compute(*given, **named)
    )
    return found
