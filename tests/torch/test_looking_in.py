"""Modules of normgen for what looks into them: `torch.fx`, TorchScript, tools that compare classes, and calls
with what is no tensor."""

from __future__ import annotations

import numpy as np
import pytest

from tests.torch.norms import nt, torch

nn = torch.nn

# A module of each class, and the shapes of what it is called with.
MODULES = {
    "RMSNorm": (lambda: nt.nn.RMSNorm(4), [(3, 4)]),
    "LayerNorm": (lambda: nt.nn.LayerNorm(4), [(3, 4)]),
    "GroupNorm": (lambda: nt.nn.GroupNorm(2, 4), [(3, 4)]),
    "BatchNorm1d": (lambda: nt.nn.BatchNorm1d(4), [(3, 4)]),
    "BatchNorm2d": (lambda: nt.nn.BatchNorm2d(4), [(3, 4, 2, 2)]),
    "BatchNorm3d": (lambda: nt.nn.BatchNorm3d(4), [(3, 4, 2, 2, 2)]),
    "SyncBatchNorm": (lambda: nt.nn.SyncBatchNorm(4), [(3, 4, 2, 2)]),
    "InstanceNorm1d": (lambda: nt.nn.InstanceNorm1d(4), [(3, 4, 2)]),
    "InstanceNorm2d": (lambda: nt.nn.InstanceNorm2d(4), [(3, 4, 2, 2)]),
    "InstanceNorm3d": (lambda: nt.nn.InstanceNorm3d(4), [(3, 4, 2, 2, 2)]),
    "LocalResponseNorm": (lambda: nt.nn.LocalResponseNorm(2), [(3, 4, 2)]),
    "Softmax": (lambda: nt.nn.Softmax(-1), [(3, 4)]),
    "LogSoftmax": (lambda: nt.nn.LogSoftmax(-1), [(3, 4)]),
    "Softmax2d": (lambda: nt.nn.Softmax2d(), [(3, 4, 2, 2)]),
    "AddRMSNorm": (lambda: nt.nn.AddRMSNorm(4), [(3, 4)] * 2),
    "GatedRMSNorm": (lambda: nt.nn.GatedRMSNorm(4), [(3, 4)] * 2),
    "AdaLayerNorm": (lambda: nt.nn.AdaLayerNorm(4), [(3, 2, 4), (3, 4), (3, 4)]),
    "QKNorm": (lambda: nt.nn.QKNorm(2), [(3, 4)] * 2),
    "GroupNormSiLU": (lambda: nt.nn.GroupNormSiLU(2, 4), [(3, 4)]),
    "from_spec": (lambda: nt.nn.from_spec("rmsnorm", sizes={"D": 4}), [(3, 4)]),
}
every_module = pytest.mark.parametrize(("make", "shapes"), MODULES.values(), ids=MODULES)


def test_all_modules_are_looked_at():
    lazy = {name for name in nt.nn.__all__ if name.startswith("Lazy")}
    assert {*MODULES, "SpecModule"} == {*nt.nn.__all__} - lazy


class Holder(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, *given):
        return self.norm(*given)


def _holder(norm, count):
    """A model whose forward has as many arguments by name, as fx wants them."""
    text = ", ".join(f"x{i}" for i in range(count))
    members = {}
    exec(f"def forward(self, {text}): return self.norm({text})", members)
    return type("Holder", (Holder,), {"forward": members["forward"]})(norm)


@every_module
def test_modules_are_leaves_where_fx_traces(make, shapes):
    model = _holder(make().double(), len(shapes)).eval()
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    traced = torch.fx.symbolic_trace(model)
    calls = [(node.op, node.target) for node in traced.graph.nodes if node.op.startswith("call")]
    assert calls == [("call_module", "norm")] and traced.norm is model.norm
    torch.testing.assert_close(traced(*given), model(*given))


def test_patched_modules_are_leaves_too():
    model = nn.Sequential(nn.LayerNorm(4), nn.Softmax(-1))
    nt.patch(model)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0", "1"]


def test_a_module_is_no_root_of_a_trace():
    with pytest.raises(TypeError, match=r"^torch\.fx cannot trace LayerNorm itself"):
        torch.fx.symbolic_trace(nt.nn.LayerNorm(4))


@pytest.mark.parametrize("wrong", [[1.0], 2.0, "text", np.ones((3, 4), np.float32)], ids=type)
@every_module
def test_what_is_no_tensor_is_a_type_error(make, shapes, wrong):
    module = make()
    for place in range(len(shapes)):
        given = [torch.randn(shape) for shape in shapes]
        given[place] = wrong
        with pytest.raises(TypeError, match=rf" takes tensors, but \w+ is of type {type(wrong).__name__}$"):
            module(*given)


@every_module
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript_says_what_to_do(make, shapes):
    with pytest.raises(
        RuntimeError, match=r"^TorchScript does not support .*, a module of normgen: .* torch\.jit\.trace"
    ):
        torch.jit.script(nn.Sequential(make()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript_says_so_of_patched_modules_and_takes_what_is_put_back():
    from tests.torch.test_fusing import Prenorm

    for model in (nn.Sequential(nn.LayerNorm(4)), Prenorm()):
        nt.patch(model, fuse=True)
        with pytest.raises(RuntimeError, match=r"which normgen has patched: call nt\.unpatch first"):
            torch.jit.script(model)
    model = nn.Sequential(nn.LayerNorm(4))
    nt.patch(model)
    nt.unpatch(model)
    assert torch.jit.script(model)(torch.ones(2, 4)).shape == (2, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_tools_that_compare_classes_say_that_one_is_patched():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).eval()
    nt.patch(model)
    with pytest.raises(AssertionError, match=r"BatchNorm2d' patched by normgen: nt\.unpatch puts it back>"):
        torch.ao.quantization.fuse_modules(model, [["0", "1", "2"]])
    nt.unpatch(model)
    fused = torch.ao.quantization.fuse_modules(model, [["0", "1", "2"]])
    assert isinstance(fused[1], nn.Identity)
    assert repr(type(model[1])) == "<class 'torch.nn.modules.batchnorm.BatchNorm2d'>"


EMPTY = [
    ("LayerNorm", (0,), (3, 0)),
    ("LayerNorm", ((0, 3),), (2, 0, 3)),
    ("LayerNorm", ((3, 0), 1e-5, False), (2, 3, 0)),
    ("LayerNorm", (3,), (0, 3)),
    ("RMSNorm", (0,), (3, 0)),
    ("RMSNorm", ((0, 3),), (2, 0, 3)),
    *[(name, (dim,), shape) for name in ("Softmax", "LogSoftmax")
      for dim, shape in ((-1, (3, 0)), (0, (0, 3)), (1, (0, 3)), (1, (2, 0, 3)), (2, (2, 0, 3)), (0, (0,)))],
    ("Softmax2d", (), (2, 0, 3, 4)),
    ("Softmax2d", (), (2, 3, 0, 4)),
    ("GroupNorm", (2, 4), (0, 4, 3)),
    ("BatchNorm1d", (4,), (0, 4)),
    ("InstanceNorm1d", (4,), (2, 4, 0)),
    ("LocalResponseNorm", (2,), (0, 4, 3)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "arguments", "shape"), EMPTY)
def test_inputs_without_elements_are_as_in_pytorch(name, arguments, shape, dtype):
    found = []
    for home in (nt.nn, nn):
        module = getattr(home, name)(*arguments).to(dtype)
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        y = module(x)
        y.sum().backward()
        found.append((y, x.grad, [each.grad for each in module.parameters()], dict(module.state_dict())))
    torch.testing.assert_close(*found)
