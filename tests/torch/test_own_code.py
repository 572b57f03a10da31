"""Where patched norms and drop-ins run PyTorch's own code: on a CPU, and where a compiler does as well."""

from __future__ import annotations

import copy

import pytest

from tests.torch.norms import nt, torch

testing = pytest.importorskip("torch._dynamo.testing")
choice = pytest.importorskip("normgen.torch.choice")


class LlamaRMSNorm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, size))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Within(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


class Redirected(torch.nn.BatchNorm1d):
    def forward(self, x):
        return torch.nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training
        )


MODELS = {
    "drop-in rms": lambda: torch.nn.RMSNorm(12),
    "drop-in layer": lambda: torch.nn.LayerNorm(12),
    "drop-in group": lambda: torch.nn.GroupNorm(2, 12),
    "drop-in batch": lambda: torch.nn.BatchNorm1d(12),
    "drop-in instance": lambda: torch.nn.InstanceNorm1d(12, track_running_stats=True),
    "drop-in softmax": lambda: torch.nn.Softmax(-1),
    "look-alike": lambda: LlamaRMSNorm(12),
    "within": lambda: Within(12),
    "redirected": lambda: Redirected(12),
}


def _patched(name):
    own = torch.nn.Sequential(torch.nn.Identity(), MODELS[name]())
    patched = copy.deepcopy(own)
    assert len(nt.patch(patched).replaced) == 1
    return own, patched


def _results(model, x):
    x = x.clone().requires_grad_()
    y = model(x)
    return y, *torch.autograd.grad(y.float().sin().sum(), (x, *model.parameters()))


@pytest.mark.filterwarnings("ignore:Mismatch dtype:UserWarning")
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=("f32", "bf16"))
@pytest.mark.parametrize("compiled", (False, True), ids=("eager", "compiled"))
@pytest.mark.parametrize("name", MODELS)
def test_a_patched_norm_on_a_cpu_is_its_own_code_to_the_bit(default_mode, runs, name, compiled, dtype):
    own, patched = _patched(name)
    runs.clear()  # what `patch` has looked at
    x, (mine, theirs) = torch.randn(3, 12, 12, dtype=dtype), (patched, own)
    if compiled:
        mine, theirs = (torch.compile(each, backend="eager", fullgraph=True) for each in (mine, theirs))
    torch.testing.assert_close(_results(mine, x), _results(theirs, x), rtol=0, atol=0)
    for got, want in zip(patched.buffers(), own.buffers(), strict=True):
        assert torch.equal(got, want)
    assert not runs


@pytest.mark.parametrize("name", MODELS)
def test_kernels_run_on_a_cpu_when_they_are_asked_for(runs, name):
    _, patched = _patched(name)
    runs.clear()
    patched(torch.randn(3, 12, 12))
    assert runs


@pytest.mark.parametrize("training", (True, False), ids=("training", "evaluation"))
def test_one_process_normalizes_its_batches_on_a_cpu(default_mode, training):
    own, synchronized = torch.nn.BatchNorm1d(12).train(training), nt.nn.SyncBatchNorm(12).train(training)
    x = torch.randn(5, 12)
    for got, want in zip(_results(synchronized, x), _results(own, x), strict=True):
        assert torch.equal(got, want)
    assert torch.equal(synchronized.running_var, own.running_var)


def test_a_wish_that_is_not_known_is_refused(monkeypatch):
    monkeypatch.setenv("NORMGEN_CPU", "kernel")
    with pytest.raises(ValueError, match="NORMGEN_CPU is 'kernel': set it to kernels, or unset it"):
        choice._cpu_kernels.__wrapped__()


# Whether each kind of norm runs kernels when compiled, on other devices than a CPU. All do in eager mode.
COMPILED = {
    "drop-in rms": True,
    "drop-in group": True,
    "drop-in batch": False,
    "drop-in instance": False,
    "redirected": False,
    "look-alike": True,
}


def _graph(model, x):
    """The names of what a compiled model calls."""
    graphs = testing.EagerAndRecordGraphs()
    torch.compile(model, backend=graphs, fullgraph=True)(x)
    return " ".join(str(node.target) for graph in graphs.graphs for node in graph.graph.nodes)


@pytest.mark.parametrize("name", COMPILED)
def test_norms_with_running_statistics_run_their_own_code_when_compiled(runs, name):
    _, patched = _patched(name)
    runs.clear()
    patched, x = patched.to("meta"), torch.empty(3, 12, 12, device="meta")
    with torch.no_grad():
        patched(x)
    assert runs
    assert ("normgen" in _graph(patched, x)) is COMPILED[name]


@pytest.mark.parametrize("fuse", (False, True), ids=("plain", "fused"))
@pytest.mark.parametrize("training", (True, False), ids=("training", "evaluation"))
def test_a_compiled_residual_network_has_no_call_of_kernels(fuse, training):
    """Its norms are fused with what surrounds them by the compiler."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(4, 4, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(4)
            self.relu = torch.nn.ReLU()

        def forward(self, x):
            identity = x
            out = self.conv(x)
            out = self.norm(out)
            out += identity
            return self.relu(out)

    model = torch.nn.Sequential(Block(), Block()).train(training)
    report = nt.patch(model, fuse=fuse)
    assert len(report.replaced) == 2 and bool(report.fused) is fuse
    graph = _graph(model.to("meta"), torch.empty(2, 4, 6, 6, device="meta"))
    assert graph.count("batch_norm") == 2 and "normgen" not in graph
