"""What drop-ins keep of the modules of PyTorch, and how they differ in no other way than their kernels."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgen.torch")

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


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _pair(name, arguments, **options):
    return [getattr(home, name)(*arguments, **options) for home in (nt.nn, torch.nn)]


def _same(got, want, tolerance=1e-12):
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance, equal_nan=True)


@every_case
def test_a_few_steps_of_training_and_then_evaluation_agree(name, arguments, shape):
    mine, theirs = (module.double() for module in _pair(name, arguments))
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64)
        _same(mine(x), theirs(x))
    _same(dict(mine.state_dict()), dict(theirs.state_dict()))
    _same(mine.eval()(x), theirs.eval()(x))
    assert repr(mine) == repr(theirs)


@every_case
def test_modules_are_copied_and_pickled(name, arguments, shape):
    mine, _ = _pair(name, arguments)
    mine.double()
    x = torch.randn(shape, dtype=torch.float64)
    saved = io.BytesIO()
    torch.save(mine, saved)
    saved.seek(0)
    copies = [copy.deepcopy(mine), pickle.loads(pickle.dumps(mine)), torch.load(saved, weights_only=False)]
    want = mine(x)
    for each in copies:
        assert type(each) is type(mine)
        _same(each(x), want)


@every_case
def test_modules_begin_on_the_meta_device(name, arguments, shape):
    if name in ("LocalResponseNorm", "Softmax", "LogSoftmax", "Softmax2d"):
        pytest.skip("it has no parameters")
    mine, theirs = _pair(name, arguments, device="meta")
    assert [p.device.type for p in mine.parameters()] == ["meta"] * len(list(theirs.parameters()))
    assert mine.eval()(torch.empty(shape, device="meta")).shape == shape
    mine.to_empty(device="cpu").reset_parameters()
    _, theirs = _pair(name, arguments)
    _same(dict(mine.state_dict()), dict(theirs.state_dict()))
    skipped = torch.nn.utils.skip_init(type(mine), *arguments)
    assert [p.shape for p in skipped.parameters()] == [p.shape for p in mine.parameters()]


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(
    ("name", "arguments", "shape"),
    [("RMSNorm", (8,), (4, 8)), ("BatchNorm1d", (8,), (4, 8, 3)), ("Softmax", (0,), (4, 6))],
)
def test_all_of_a_module_may_be_of_16_bits(name, arguments, shape, dtype):
    mine, theirs = (module.to(dtype) for module in _pair(name, arguments))
    x = torch.randn(shape, dtype=dtype)
    _same(mine(x), theirs(x), torch.finfo(dtype).eps)
    _same(dict(mine.state_dict()), dict(theirs.state_dict()), torch.finfo(dtype).eps)


def test_an_eps_of_none_is_that_of_the_computation():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        mine, theirs = (module.to(dtype) for module in _pair("RMSNorm", (8,)))
        x = 1e-4 * torch.randn(4, 8, dtype=dtype)
        _same(mine(x), theirs(x), 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dim", (0, 1, 2, 3, -1, -4))
@pytest.mark.parametrize("name", ("Softmax", "LogSoftmax"))
def test_softmax_goes_along_any_dimension(name, dim):
    mine, theirs = _pair(name, (dim,))
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    for each in (x, x.transpose(1, 2), x[:, ::2], x.to(memory_format=torch.channels_last)):
        _same(mine(each), theirs(each))


def test_softmax_chooses_a_dimension_as_pytorch_does():
    for shape in ((), (3,), (3, 4), (3, 4, 5), (3, 4, 5, 2)):
        mine, theirs = _pair("Softmax", ())
        x = torch.randn(shape, dtype=torch.float64)
        with pytest.warns(UserWarning, match="mplicit dimension"):
            _same(mine(x), theirs(x))


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
    mine, theirs = _pair(name, arguments)
    x = torch.randn(shape)
    with pytest.raises(Exception) as refused:
        theirs(x)
    with pytest.raises(refused.type) as found:
        mine(x)
    assert found.type is refused.type
    assert "\n" not in str(found.value)


def test_a_batch_norm_in_evaluation_takes_one_value_and_refuses_a_negative_eps():
    mine, theirs = (module.eval() for module in _pair("BatchNorm1d", (6,)))
    x = torch.randn(1, 6)
    _same(mine(x), theirs(x), 1e-6)
    mine.eps = -1.0
    with pytest.raises(ValueError, match="eps must be non-negative"):
        mine(x)


@pytest.mark.parametrize("space", (1, 2, 3))
@pytest.mark.parametrize("kind", ("BatchNorm", "InstanceNorm"))
def test_lazy_modules_become_drop_ins(kind, space):
    name = f"{kind}{space}d"
    x = torch.randn(4, 6, *(3, 2, 2)[:space], dtype=torch.float64)
    mine, theirs = (getattr(home, f"Lazy{name}")(dtype=torch.float64) for home in (nt.nn, torch.nn))
    got = mine(x)
    _same(got, theirs(x))
    assert "Recorded" in type(got.grad_fn).__name__ or not got.requires_grad
    assert type(mine) is getattr(nt.nn, name)
    _same(mine(x), theirs(x))
    _same(dict(mine.state_dict()), dict(theirs.state_dict()))


def test_drop_ins_are_what_tools_look_for():
    mine, _ = _pair("BatchNorm2d", (6,))
    assert isinstance(mine, torch.nn.BatchNorm2d)
    converted = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(mine))
    assert type(converted[0]) is torch.nn.SyncBatchNorm
    frozen = torch.nn.utils.fuse_conv_bn_eval(torch.nn.Conv2d(3, 6, 1).eval(), mine.eval())
    assert isinstance(frozen, torch.nn.Conv2d)


def test_old_checkpoints_load():
    mine, theirs = _pair("BatchNorm1d", (6,))
    state = theirs.state_dict()
    del state["num_batches_tracked"]
    state._metadata = {}
    mine.load_state_dict(state)
    assert mine.num_batches_tracked == 0


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
@every_case
def test_traces_are_of_the_operators_of_pytorch(name, arguments, shape):
    mine, theirs = (module.double() for module in _pair(name, arguments))
    x, other = torch.randn(2, *shape, dtype=torch.float64)
    traced = torch.jit.trace(mine.eval(), x)
    assert "normgen::" not in str(traced.inlined_graph)
    _same(traced(other), theirs.eval()(other))
