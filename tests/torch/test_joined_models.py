"""Blocks with norms joined to what follows them, compiled and of other libraries."""

from __future__ import annotations

import pytest

from tests.torch.joined_blocks import JOINED, Basic, Summed
from tests.torch.joining import agree, fused, images, outcome
from tests.torch.norms import torch


@pytest.mark.parametrize("training", (True, False))
@pytest.mark.parametrize("make", (Basic, Summed, JOINED["branched"][0], JOINED["sequential"][0]))
def test_compilers_see_one_graph(make, training):
    theirs, ours, _ = fused(make().double().train(training))
    graphs = []

    def backend(graph, given):
        graphs.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch.compiler.reset()
    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    x = images()
    torch.testing.assert_close(compiled(x), theirs(x))
    names = {str(each) for each in graphs}
    ours = {name for name in names if name.startswith("normgen.")}
    assert ours and not [name for name in names - ours if "relu" in name or "_norm" in name]


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
def test_compiled_blocks_train(backend):
    theirs, ours, _ = fused(Basic())
    torch.compiler.reset()
    x = images(torch.float32)
    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    want = outcome(theirs, x)
    got = outcome(ours, x, compiled)
    torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


def test_blocks_of_torchvision(calls):
    resnet = pytest.importorskip("torchvision.models.resnet")
    torch.manual_seed(0)
    model = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], num_classes=3, width_per_group=8).double()
    theirs, ours, report = fused(model)
    assert {each.spec for each in report.fused} == {
        "batchnorm and relu (bn1)",
        "batchnorm and relu (bn1, bn2); batchnorm, sum and relu (bn3)",
    }
    agree(ours, theirs, torch.randn(4, 3, 64, 64, dtype=torch.float64), 1e-8)
    assert len(calls) == 3 * (1 + 4 * 3)


def test_blocks_of_diffusers(calls):
    block = pytest.importorskip("diffusers.models.resnet").ResnetBlock2D
    model = block(in_channels=4, out_channels=8, temb_channels=6, groups=2).double()
    theirs, ours, report = fused(model)
    assert [each.spec for each in report.fused] == ["groupnorm and silu (norm1, norm2)"]
    given = images(), torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(ours(*given), theirs(*given))
    assert calls == ["silu", "silu"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("make", (Basic, Summed, JOINED["sequential"][0]))
def test_tracers_see_modules_of_pytorch_and_export_sees_what_is_joined(make):
    theirs, ours, _ = fused(make().double().eval())
    x = images()
    want = theirs(x)
    torch.testing.assert_close(torch.fx.symbolic_trace(ours)(x), want)
    torch.testing.assert_close(torch.jit.trace(ours, x)(x), want)
    exported = torch.export.export(ours, (x,))
    torch.testing.assert_close(exported.module()(x), want)
    targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert [name for name in targets if name.startswith("normgen.")]
    assert not [name for name in targets if "aten.relu" in name or "hardtanh" in name]


def test_gradients_of_samples():
    theirs, ours, _ = fused(Basic().double().eval())
    x = images()
    parameters = {name: p.detach() for name, p in theirs.named_parameters()}
    got, want = (
        torch.vmap(torch.func.grad(_loss), in_dims=(None, 0, None))(parameters, x, each)
        for each in (ours, theirs)
    )
    torch.testing.assert_close(got, want)


def _loss(parameters, x, module):
    return torch.func.functional_call(module, parameters, (x[None],)).sin().sum()


def test_a_sequential_is_cut_and_grows_as_before(calls):
    theirs, ours, _ = fused(JOINED["sequential"][0]().double().eval())
    x = images()
    torch.testing.assert_close(ours[:2](x), theirs[:2](x))
    assert not calls
    for each in (theirs, ours):
        each.insert(1, torch.nn.Conv2d(4, 4, 1, bias=False).double())
        torch.nn.init.ones_(each[1].weight)
    torch.testing.assert_close(ours(x), theirs(x))
