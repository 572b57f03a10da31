"""PyTorch's private names: norms go on where a release lacks one of them."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from normgen import bundled
from normgen.torch import private
from tests.torch.norms import gradients, layer, nt, same, torch

HOMES = {
    "torch.autograd.function": ("_SingleLevelFunction",),
    "torch._functorch.utils": ("enable_single_level_autograd_function",),
    "torch.autograd.forward_ad": ("_set_fwd_grad_enabled",),
    "torch._functorch.pyfunctorch": ("TransformType", "retrieve_current_functorch_interpreter"),
    "torch._subclasses.fake_tensor": ("FakeTensorMode",),
    "torch": ("_VF", "_add_batch_dim", "_remove_batch_dim"),
    "torch._C": (
        "_are_functorch_transforms_active",
        "_len_torch_dispatch_stack",
        "_AutoDispatchBelowAutograd",
        "_after_autograd_keyset",
        "_dispatch_keys",
        "_parse_dispatch_key",
        "_is_any_autocast_enabled",
        "_vmapmode_increment_nesting",
        "_vmapmode_decrement_nesting",
    ),
}
NAMES = [(home, name) for home, names in HOMES.items() for name in (*names, *[""][: home != "torch"])]


@pytest.fixture
def lacking(monkeypatch, request):
    """A PyTorch that lacks one of the names, or a whole module."""
    home, name = request.param
    found = importlib.import_module

    def hiding(module, package=None):
        if module != home:
            return found(module, package)
        if not name:
            raise ModuleNotFoundError(home)
        return SimpleNamespace(**{each: value for each, value in vars(found(home)).items() if each != name})

    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", hiding)
        importlib.reload(private)
    yield "_".join((home, name or "all")).replace(".", "_")
    importlib.reload(private)


def test_the_names_are_those_that_are_looked_for(monkeypatch):
    seen = []
    found = importlib.import_module
    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", lambda *a, **n: seen.append(a[0]) or found(*a, **n))
        importlib.reload(private)
        private.fake_mode()
    assert set(HOMES) <= set(seen)
    assert private.LEVELS is not None and private.fake_mode() is not None
    importlib.reload(private)


@pytest.mark.parametrize("lacking", NAMES, ids="-".join, indirect=True)
def test_norms_go_on_where_a_name_is_missing(lacking, in_python):
    norm = nt.load(bundled.read("layernorm").text + f"# without {lacking}\n")
    operands = [torch.randn(3, 2, 8), torch.rand(8), torch.randn(8)]
    same(norm(*operands), layer(*operands))
    for each in operands:
        each.requires_grad_()
    same(gradients(norm, operands), gradients(layer, operands))
    first = torch.autograd.grad(norm(*operands).sin().sum(), operands, create_graph=True)
    second = torch.autograd.grad(layer(*operands).sin().sum(), operands, create_graph=True)
    same(*(torch.autograd.grad(each[0].sin().sum(), operands[0]) for each in (first, second)), 1e-4)
    compiled = torch.compile(lambda *o: norm(*o), fullgraph=True, backend="aot_eager")
    same(gradients(compiled, operands), gradients(layer, operands))


def test_autocast_is_as_ever_without_a_mode_of_fakes(monkeypatch):
    from normgen.torch import autocast

    monkeypatch.setattr(autocast, "fake_mode", lambda: None)
    assert autocast._widens_rms_norm.__wrapped__() is False
