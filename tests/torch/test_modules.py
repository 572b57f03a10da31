"""What drop-ins keep of the modules of PyTorch, and how they differ in no other way than their kernels."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

from tests.torch.norms import nt, torch

# (class, arguments of its constructor, shape of an input)
CASES = [
    ("RMSNorm", (6,), (4, 6)),
    ("RMSNorm", ((2, 3), -1e-3), (4, 2, 3)),
    ("LayerNorm", ((2, 3), -1e-3), (4, 2, 3)),
    ("GroupNorm", (2, 6, -1e-3), (4, 6, 5)),
    ("BatchNorm1d", (6,), (4, 6)),
    ("BatchNorm2d", (6, 1e-5, 1.5), (4, 6, 3, 2)),
    ("BatchNorm2d", (6, 1e-5, -0.5), (4, 6, 3, 2)),
    ("BatchNorm3d", (6, 1e-5, None), (4, 6, 3, 2, 2)),
    ("BatchNorm1d", (6, 1e-5, 0.1, False, False), (4, 6)),
    ("InstanceNorm1d", (6, -1e-3), (4, 6, 5)),
    ("InstanceNorm2d", (6, 1e-3, 1.5, True, True), (4, 6, 3, 2)),
    ("InstanceNorm3d", (6, 1e-3, None, True, True), (4, 6, 3, 2, 2)),
    ("LocalResponseNorm", (4, 0.1, -0.5, 2.0), (4, 6, 5)),
    ("Softmax", (-1,), (4, 6)),
    ("LogSoftmax", (1,), (4, 6, 5)),
    ("Softmax2d", (), (4, 6, 3, 2)),
]
NAMES = [f"{name}{arguments}" for name, arguments, _ in CASES]
every_case = pytest.mark.parametrize(("name", "arguments", "shape"), CASES, ids=NAMES)


def _pair(name, *arguments, **options):
    return [getattr(home, name)(*arguments, **options) for home in (nt.nn, torch.nn)]


def _same(got, want, tolerance=1e-12):
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance, equal_nan=True)


def _exact(*shape):
    return torch.randn(shape, dtype=torch.float64)


def copies(module):
    """Of a module, in three ways."""
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    return copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(saved, weights_only=False)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
@every_case
def test_drop_ins_train_and_are_copied_and_traced_as_in_pytorch(name, arguments, shape):
    mine, theirs = (module.double() for module in _pair(name, *arguments))
    for _ in range(3):
        x = _exact(*shape)
        _same(mine(x), theirs(x))
    for each in copies(mine):
        assert type(each) is type(mine)
        _same(each(x), copy.deepcopy(mine)(x))
    _same(dict(mine.state_dict()), dict(theirs.state_dict()))
    _same(mine.eval()(x), theirs.eval()(x))
    assert repr(mine) == repr(theirs)
    traced = torch.jit.trace(mine, x)
    assert "normgen::" not in str(traced.inlined_graph)
    _same(traced(2 * x), theirs(2 * x))


@pytest.mark.parametrize(("name", "arguments", "shape"), CASES[:12], ids=NAMES[:12])
def test_modules_begin_on_the_meta_device(name, arguments, shape):
    mine, theirs = _pair(name, *arguments)
    meta = getattr(nt.nn, name)(*arguments, device="meta")
    assert [p.device.type for p in meta.parameters()] == ["meta"] * len(list(theirs.parameters()))
    assert meta.eval()(torch.empty(shape, device="meta")).shape == shape
    meta.to_empty(device="cpu").reset_parameters()
    _same(dict(meta.state_dict()), dict(theirs.state_dict()))
    skipped = torch.nn.utils.skip_init(type(mine), *arguments)
    assert [p.shape for p in skipped.parameters()] == [p.shape for p in mine.parameters()]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
@every_case
def test_results_on_a_gpu_are_of_the_types_of_pytorch(name, arguments, shape, dtype, on_gpu, request):
    """Under autocast, and in float64, for which there are no kernels."""
    if None in arguments:
        pytest.skip("its momentum is that of a value")
    if dtype is torch.float64:
        torch.set_default_dtype(dtype)
        request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
        torch.set_autocast_enabled("cuda", False)
    with on_gpu:
        x = torch.empty(shape, dtype=dtype)
        mine, theirs = (module(x) for module in _pair(name, *arguments))
    assert (mine.dtype, mine.shape, mine.device) == (theirs.dtype, theirs.shape, theirs.device)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(
    ("name", "argument", "shape"),
    [("RMSNorm", 8, (4, 8)), ("BatchNorm1d", 8, (4, 8, 3)), ("Softmax", 0, (4, 6))],
)
def test_all_of_a_module_may_be_of_16_bits(name, argument, shape, dtype):
    mine, theirs = (module.to(dtype) for module in _pair(name, argument))
    x = torch.randn(shape, dtype=dtype)
    _same(mine(x), theirs(x), torch.finfo(dtype).eps)
    _same(dict(mine.state_dict()), dict(theirs.state_dict()), torch.finfo(dtype).eps)


def test_an_eps_of_none_is_that_of_the_computation():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        mine, theirs = (module.to(dtype) for module in _pair("RMSNorm", 8))
        x = 1e-4 * torch.randn(4, 8, dtype=dtype)
        _same(mine(x), theirs(x), 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", ("Softmax", "LogSoftmax"))
def test_softmax_goes_along_any_dimension(name):
    x = _exact(2, 3, 4, 5)
    for dim in (0, 1, 2, 3, -1, -4):
        mine, theirs = _pair(name, dim)
        for each in (x, x.transpose(1, 2), x[:, ::2], x.to(memory_format=torch.channels_last)):
            _same(mine(each), theirs(each))
    mine, theirs = _pair(name)
    for each in (x, x[0], x[0, 0], x[0, 0, 0], x[0, 0, 0, 0]):
        with pytest.warns(UserWarning, match="mplicit dimension"):
            _same(mine(each), theirs(each))


REFUSED = [
    ("RMSNorm", (6,), (4, 5)),
    ("LayerNorm", ((2, 3),), (2, 2)),
    ("LayerNorm", ((),), (2, 2)),
    ("GroupNorm", (2, 6), (6,)),
    ("GroupNorm", (2, 6), (4, 4, 3)),
    ("GroupNorm", (2, 2), (1, 2)),
    ("BatchNorm1d", (6,), (4, 6, 3, 2)),
    ("BatchNorm1d", (6,), (4, 5)),
    ("BatchNorm1d", (6,), (1, 6)),
    ("BatchNorm2d", (6,), (1, 6, 1, 1)),
    ("BatchNorm1d", (6, 0.0), (4, 6)),
    ("InstanceNorm1d", (6,), (4, 6, 1)),
    ("InstanceNorm1d", (6, 1e-5, 0.1, True), (4, 5, 3)),
    ("InstanceNorm2d", (6,), (4, 6)),
    ("LocalResponseNorm", (2,), (4, 6)),
    ("Softmax", (2,), (4, 6)),
    ("LogSoftmax", (-3,), (4, 6)),
    ("Softmax2d", (), (4, 6)),
]


@pytest.mark.parametrize(("name", "arguments", "shape"), REFUSED)
def test_what_pytorch_refuses_is_refused_with_its_exception(name, arguments, shape):
    mine, theirs = _pair(name, *arguments)
    x = torch.randn(shape)
    with pytest.raises(Exception) as refused:
        theirs(x)
    with pytest.raises(refused.type) as found:
        mine(x)
    assert found.type is refused.type
    assert "\n" not in str(found.value)


def test_a_batch_norm_in_evaluation_takes_one_value_and_refuses_a_negative_eps():
    mine, theirs = (module.eval() for module in _pair("BatchNorm1d", 6))
    x = torch.randn(1, 6)
    _same(mine(x), theirs(x), 1e-6)
    mine.eps = -1.0
    with pytest.raises(ValueError, match="eps must be non-negative"):
        mine(x)


@pytest.mark.parametrize("space", (1, 2, 3))
@pytest.mark.parametrize("kind", ("BatchNorm", "InstanceNorm"))
def test_lazy_modules_become_drop_ins(kind, space):
    x = _exact(4, 6, *(3, 2, 2)[:space])
    mine, theirs = _pair(f"Lazy{kind}{space}d", dtype=torch.float64)
    got = mine(x)
    _same(got, theirs(x))
    assert "Recorded" in type(got.grad_fn).__name__ or not got.requires_grad
    assert type(mine) is getattr(nt.nn, f"{kind}{space}d")
    _same(mine(x), theirs(x))
    _same(dict(mine.state_dict()), dict(theirs.state_dict()))


@pytest.mark.parametrize("home", [torch.nn, nt.nn])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}])
def test_batch_norms_of_all_batches_are_made_of_others_as_in_pytorch(home, training, options):
    """Modes, parameters and buffers stay, as they are and of what type."""
    model = torch.nn.Sequential(home.BatchNorm2d(6, 1e-3, 0.3, **options).bfloat16(), home.BatchNorm1d(3))
    model.train(training)[1].train(not training)
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    found = []
    for cls in (nt.nn.SyncBatchNorm, torch.nn.SyncBatchNorm):
        made = cls.convert_sync_batchnorm(copy.copy(model))
        assert all(type(each) is cls for each in made)
        own = [*made.named_parameters(), *made.named_buffers()]
        found.append(
            [made.training, [each.training for each in made], [(name, id(each)) for name, each in own]]
        )
        found[-1].append([(each.eps, each.momentum, each.affine, each.track_running_stats) for each in made])
    assert found[0] == found[1]


def test_drop_ins_are_what_tools_look_for():
    mine, theirs = _pair("BatchNorm2d", 6)
    converted = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(mine))
    assert type(converted[0]) is torch.nn.SyncBatchNorm
    frozen = torch.nn.utils.fuse_conv_bn_eval(torch.nn.Conv2d(3, 6, 1).eval(), mine.eval())
    assert isinstance(mine, torch.nn.BatchNorm2d) and isinstance(frozen, torch.nn.Conv2d)
    # Checkpoints of PyTorch before 0.4.1 load.
    state = theirs.state_dict()
    del state["num_batches_tracked"]
    state._metadata = {}
    mine.load_state_dict(state)
    assert mine.num_batches_tracked == 0


COMPILED = [
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


@pytest.mark.parametrize(("make", "shapes"), COMPILED)
def test_modules_compile_whole_to_our_operators_and_are_exported(make, shapes):
    module = make().double()
    given = [_exact(*shape).requires_grad_() for shape in shapes]
    other, names = copy.deepcopy(module), []
    want = _outcome(other, other, given)

    def keep(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    _same(_outcome(module, torch.compile(module, backend="aot_eager", fullgraph=True), given), want)
    torch._dynamo.reset()
    torch.compile(module, backend=keep, fullgraph=True)(*given)
    assert any(name.startswith("normgen.") for name in names)
    assert not any("norm" in name or "softmax" in name for name in names if not name.startswith("normgen."))
    lengths, batch = torch.export.ShapesCollection(), torch.export.Dim("batch", min=2)
    for each in given:
        lengths[each] = {0: batch}
    exported = torch.export.export(copy.deepcopy(module), tuple(given), dynamic_shapes=lengths)
    longer = [torch.cat((each, each)) for each in given]
    _same(exported.module()(*longer), module(*longer))
    assert any(str(node.target).startswith("normgen.") for node in exported.graph.nodes)


def test_a_module_is_compiled_before_its_first_call():
    text = 'norm compiled_first "Doubled."\ninput x[..., D]\nparam w[D] = 1\noutput y[..., D] = 2 * x * w\n'
    module = nt.nn.from_spec(text, sizes={"D": 8}, dtype=torch.float64)
    x = _exact(3, 8)
    _same(torch.compile(module, backend="aot_eager", fullgraph=True)(x), 2 * x)
