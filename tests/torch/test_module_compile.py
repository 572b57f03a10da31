"""Modules under `torch.compile`: whole graphs, made of our operators and of none of PyTorch's norms."""

from __future__ import annotations

import copy

import pytest

from normgen import bundled

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgen.torch")

CASES = [
    (lambda: nt.nn.RMSNorm((2, 4)), [(3, 2, 4)]),
    (lambda: nt.nn.LayerNorm(8), [(3, 8)]),
    (lambda: nt.nn.GroupNorm(2, 8), [(3, 8, 5)]),
    (lambda: nt.nn.BatchNorm1d(8), [(3, 8)]),
    (lambda: nt.nn.BatchNorm2d(8).eval(), [(3, 8, 2, 2)]),
    (lambda: nt.nn.InstanceNorm1d(8, track_running_stats=True), [(3, 8, 5)]),
    (lambda: nt.nn.LocalResponseNorm(3), [(3, 8, 5)]),
    (lambda: nt.nn.Softmax(0), [(3, 8)]),
    (lambda: nt.nn.AddRMSNorm(8), [(3, 8), (3, 8)]),
    (lambda: nt.nn.QKNorm(4), [(3, 5, 2, 4), (3, 5, 1, 4)]),
    (lambda: nt.nn.from_spec("batchnorm", sizes={"C": 8}), [(3, 8)]),
]


def _outcome(module, call, given):
    """Results, gradients and buffers of a call."""
    made = call(*given)
    outputs = made if isinstance(made, tuple) else (made,)
    wanted = [*given, *module.parameters()]
    gradients = torch.autograd.grad(sum(each.sin().sum() for each in outputs), wanted)
    return outputs, gradients, list(module.buffers())


@pytest.mark.parametrize(("make", "shapes"), CASES)
def test_modules_compile_whole(make, shapes):
    torch.manual_seed(0)
    module = make().double()
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    other = copy.deepcopy(module)
    want = _outcome(other, other, given)
    names = []

    def keep(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    got = _outcome(module, torch.compile(module, backend="aot_eager", fullgraph=True), given)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)
    torch._dynamo.reset()
    torch.compile(module, backend=keep, fullgraph=True)(*given)
    assert any(name.startswith("normgen.") for name in names)
    assert not any("norm" in name or "softmax" in name for name in names if not name.startswith("normgen."))


def test_a_module_is_compiled_before_its_first_call():
    text = bundled.read("rmsnorm").text.replace("norm rmsnorm", "norm compiled_first")
    module = nt.nn.from_spec(text, sizes={"D": 8}, dtype=torch.float64)
    x = torch.randn(3, 8, dtype=torch.float64)
    got = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(got, torch.nn.functional.rms_norm(x, (8,), None, 1e-6))


DYNAMIC = [
    (lambda: nt.nn.RMSNorm((2, 4)), (2, 4)),
    (lambda: nt.nn.BatchNorm1d(8), (8, 5)),
    (lambda: nt.nn.GroupNorm(2, 8), (8, 5)),
    (lambda: nt.nn.Softmax(0), (8,)),
]


@pytest.mark.parametrize(("make", "shape"), DYNAMIC)
def test_modules_are_exported(make, shape):
    module = make().double()
    x = torch.randn(3, *shape, dtype=torch.float64)
    lengths = ({0: torch.export.Dim("batch", min=2)},)
    exported = torch.export.export(copy.deepcopy(module), (x,), dynamic_shapes=lengths)
    longer = torch.cat((x, x))
    torch.testing.assert_close(exported.module()(longer), module(longer), atol=1e-12, rtol=1e-12)
    assert any(str(node.target).startswith("normgen.") for node in exported.graph.nodes)
