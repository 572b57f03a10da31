"""Norms in `torch.compile`, `torch.export` and `make_fx`: one node in one graph, and the same results."""

from __future__ import annotations

import io

import pytest

from tests.torch.norms import batch, drawn, every_case, gradients, nt, rms, same, torch

testing = pytest.importorskip("torch._dynamo.testing")
proxy_tensor = pytest.importorskip("torch.fx.experimental.proxy_tensor")

# Whatever PyTorch warns of, but for what our own backend and its recording of backwards bring about.
pytestmark = pytest.mark.filterwarnings(
    "error", "ignore:.*boxed arguments:UserWarning", "ignore:The .grad attribute:UserWarning"
)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def _nodes(graph):
    """What a graph computes, without the taking apart of tuples."""
    return [
        str(node.target)
        for node in graph.graph.nodes
        if node.op == "call_function" and "getitem" not in str(node.target)
    ]


def _compiled(function, backend="aot_eager", **options):
    return torch.compile(function, fullgraph=True, backend=backend, **options)


@every_case
def test_a_compiled_norm_is_a_node_forward_and_a_node_backward(case):
    norm, operands, graphs = case.mine, case.draw(), testing.AotEagerAndRecordGraphs()
    compiled = _compiled(lambda *operands: norm(*operands, eps=1e-4), graphs)
    same(compiled(*operands), case.theirs(*operands, eps=1e-4))
    same(gradients(compiled, operands), gradients(lambda *o: case.theirs(*o, eps=1e-4), operands))
    assert _nodes(graphs.graphs[0]) == [str(norm.ops.forward)]
    assert [_nodes(graph) for graph in graphs.fw_graphs] == [[str(norm.ops.forward)]]
    assert [_nodes(graph) for graph in graphs.bw_graphs] == [[str(norm.ops.backward)]]


@every_case
def test_one_graph_serves_every_batch(case):
    counter, (_, *params) = testing.CompileCounterWithBackend("aot_eager"), case.draw()
    compiled = _compiled(case.mine, counter, dynamic=True)
    counts = set()
    for length in (6, 7, 9):  # none the length of another axis
        operands = [drawn(length, *case.shapes[0][1:]), *params]
        same(compiled(*operands), case.theirs(*operands))
        same(gradients(compiled, operands), gradients(case.theirs, operands))
        counts.add(counter.frame_count)
    assert len(counts) == 1


def test_an_attr_may_change_from_call_to_call():
    norm, x = nt.load("rmsnorm"), torch.randn(3, 8)
    compiled = _compiled(lambda x, eps: norm(x, eps=eps))
    for eps in (1e-5, 1e-3, 0.5):
        same(compiled(x, eps), rms(x, None, eps))


def test_states_are_written_by_a_compiled_norm():
    norm, x, w, graphs = nt.load("batchnorm"), drawn(4, 6, 5), drawn(6), testing.AotEagerAndRecordGraphs()
    mine, theirs = ([torch.zeros(6), torch.ones(6)] for _ in range(2))
    compiled = _compiled(lambda x, w, m, v: norm(x, w, None, m, v, momentum=0.2), graphs)
    for _ in range(2):
        got, want = compiled(x, w, *mine), batch(x, w, None, *theirs, momentum=0.2)
        same(got, want)
        same(mine, theirs)
        same(*(torch.autograd.grad(each.sin().sum(), (x, w)) for each in (got, want)))
    (graph,) = graphs.fw_graphs
    assert set(_nodes(graph)) == {str(norm.ops.forward), "aten.copy.default", "aten.copy_.default"}


def test_several_outputs_and_saves_come_out_of_a_compiled_norm():
    norm, operands = nt.load("add_rmsnorm"), [drawn(3, 8), drawn(3, 8)]
    for function, fields in ((norm, ("h", "y")), (norm.with_saved, ("h", "y", "rstd"))):
        got, want = _compiled(function)(*operands), function(*operands)
        assert got._fields == want._fields == fields
        same(tuple(got), tuple(want))
        same(*(torch.autograd.grad(h.sin().sum() + y.cos().sum(), operands) for h, y, *_ in (got, want)))


def test_inductor_compiles_what_is_around_a_norm():
    norm, operands = nt.load("rmsnorm"), [drawn(4, 64), drawn(64)]

    def block(x, w):
        return norm(x.exp(), w).tanh()

    same(gradients(_compiled(block, "inductor"), operands), gradients(block, operands))


class Model(torch.nn.Module):
    """Two norms, of which one has states."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))
        self.rms, self.batch = nt.load("rmsnorm"), nt.load("batchnorm")

    def forward(self, x, z):
        return self.rms(x, self.weight) + 1, self.batch(z, running_mean=self.mean, running_var=self.var)


@pytest.mark.parametrize("strict", (True, False), ids=("strict", "traced"))
@pytest.mark.parametrize("grad", (True, False), ids=("grad", "no_grad"))
def test_an_exported_model_keeps_its_norms(strict, grad):
    z = torch.randn(4, 6, 5)
    dynamic = ({0: torch.export.Dim("batch")}, None)
    with torch.set_grad_enabled(grad):
        exported = torch.export.export(Model(), (torch.randn(4, 8), z), strict=strict, dynamic_shapes=dynamic)
        stored = io.BytesIO()
        torch.export.save(exported, stored)
        stored.seek(0)
        again = torch.export.load(stored)
        for each in (exported.module(), again.module(), again.run_decompositions().module()):
            model, x = Model(), torch.randn(7, 8)
            same(each(x, z), model(x, z))
            same((each.mean, each.var), (model.mean, model.var))
            each.mean.zero_()
            each.var.fill_(1)


@pytest.mark.parametrize("mode", ("real", "fake", "symbolic"))
@every_case
def test_make_fx_sees_operators(case, mode):
    norm, operands = case.mine, case.draw()
    graph = proxy_tensor.make_fx(lambda *o: gradients(norm, o), tracing_mode=mode)(*operands)
    ours = [node for node in _nodes(graph) if node.startswith("normgen")]
    assert ours == [str(norm.ops.forward), str(norm.ops.backward)]
    same(graph(*operands), gradients(case.theirs, operands))


TEXT = "norm loaded_inside\ninput x[..., D]\nparam w[D] = 1\noutput y[..., D] = 3 * x * w\n"


def _written(tmp_path):
    path = tmp_path / "loaded_inside.norm"
    path.write_text(TEXT)
    return str(path)


@pytest.mark.parametrize(
    ("source", "attrs"),
    [
        (lambda _: "rmsnorm", {}),
        (lambda _: "groupnorm", {"groups": 2}),
        (lambda _: "add_rmsnorm", {}),
        (lambda _: TEXT, {}),
        (_written, {}),
    ],
    ids=["name", "attrs", "tuple", "text", "path"],
)
def test_a_norm_is_loaded_where_it_is_compiled(source, attrs, tmp_path):
    source = source(tmp_path)
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    operands = (x, x + 1) if source == "add_rmsnorm" else (x,)

    def model(*operands):
        made = nt.load(source, **attrs)(*operands)
        return made.y.sin() if isinstance(made, tuple) else made.sin()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        want, got = model(*operands), compiled(*operands)
        same(got, want)
        same(torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x))
    assert nt.load(source, **attrs) is nt.load(source, **attrs)
