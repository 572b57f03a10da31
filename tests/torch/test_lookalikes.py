"""Norms of other libraries: told by what they compute, with the points at which they round."""

from __future__ import annotations

import pytest

from tests.torch.norms import nt, torch
from tests.torch.other_norms import (
    KNOWN,
    SHORT,
    AnnotatedNorm,
    ClippedNorm,
    DetachedNorm,
    DeviceNorm,
    EarlyNorm,
    EvaluatedNorm,
    FrozenGainNorm,
    GemmaNorm,
    LateNorm,
    Norm,
    PlainNorm,
)
from tests.torch.test_modules import copies

nn, watching = torch.nn, pytest.importorskip("normgen.torch.patching.watching")
IMAGES = ("layernorm2d", "groupnorm", "batchnorm")


def _taken(module, **options):
    """What the report says of a module that is replaced."""
    report = nt.patch(module, **options)
    assert not report.left, str(report)
    return report.replaced[0]


def _left(module):
    """Why a module is left."""
    cls = type(module)
    report = nt.patch(module)
    assert not report.replaced and type(module) is cls
    return report.left[0].reason


def _made(cls):
    return cls(32) if issubclass(cls, nn.LayerNorm) else cls()


@pytest.mark.parametrize(("cls", "spec"), KNOWN)
def test_a_norm_is_told_by_what_it_computes(cls, spec):
    module = _made(cls)
    x = torch.randn(2, 32, 3, 4) if spec in IMAGES else torch.randn(5, 32)
    theirs, ours = x.clone().requires_grad_(), x.clone().requires_grad_()
    want = module(theirs)
    assert _taken(module).spec == spec
    got = module(ours)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-5)
    got.sin().sum().backward()
    want.sin().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("cls", [DetachedNorm, FrozenGainNorm, ClippedNorm, EvaluatedNorm])
def test_what_computes_something_else_is_left(cls):
    assert _left(cls()) == "computes something that no bundled norm does"


def test_what_does_not_run_here_is_left():
    module = DeviceNorm()
    module.shapes = ([1], [2])  # cannot be a key
    assert _left(module) == "fails on the small CPU inputs by which patch tells norms"


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("cls", [EarlyNorm, LateNorm, GemmaNorm])
def test_rounding_points_are_kept(cls, dtype):
    module, x = cls().to(dtype), torch.randn(64, 32).to(dtype)
    want = module(x)
    assert _taken(module).type == cls.__name__
    assert (module(x) != want).float().mean() < 0.02


def test_rounding_once_is_asked_for_and_said():
    module, exact, x = EarlyNorm().to(torch.bfloat16), LateNorm(), torch.randn(64, 32).bfloat16()
    exact.load_state_dict(module.state_dict())
    found = _taken(module, dtype="once")
    assert (found.spec, found.note) == (
        "rmsnorm",
        "rounds less often for bf16 input with bf16 weight, f16 input with f16 weight, f64; "
        "runs the original code for bf16 input with f32 weight, f16 input with f32 weight",
    )
    assert (module(x) != exact(x.float()).bfloat16()).float().mean() < 0.02


def test_element_types_that_do_not_agree_run_as_before():
    module, x = EarlyNorm(), torch.randn(4, 32).bfloat16()
    want = module(x)
    assert "runs the original code for bf16 input with f32 weight, " in _taken(module).note
    assert want.dtype is torch.float32 and torch.equal(module(x), want)
    assert _taken(PlainNorm()).note.startswith("runs the original code for bf16, f16")


@pytest.mark.parametrize("cls", [PlainNorm, LateNorm])
def test_float64_is_computed_as_the_module_does(cls):
    module, x = cls().double(), torch.randn(4, 32, dtype=torch.float64, requires_grad=True)
    want = module(x)
    (slopes,) = torch.autograd.grad(want.sin().sum(), x)
    assert _taken(module).spec == "rmsnorm"
    got = module(x)
    torch.testing.assert_close(got, want, atol=1e-14, rtol=1e-13)
    torch.testing.assert_close(torch.autograd.grad(got.sin().sum(), x)[0], slopes, atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, *SHORT], ids=str)
@pytest.mark.parametrize(("cls", "spec"), KNOWN)
def test_autocast_on_a_gpu_changes_the_same_element_types_as_before(cls, spec, dtype, request):
    """Specs whose results autocast would widen too: those of a lookalike are what the module made of them."""
    module = _made(cls).to(dtype)
    assert _taken(module).spec == spec
    shape = (2, 32, 3, 4) if spec in IMAGES else (5, 32)
    found = []
    with request.getfixturevalue("on_gpu"):
        torch.set_default_dtype(dtype)
        fresh = _made(cls)
        torch.set_default_dtype(torch.float32)
        for fresh.__class__ in (cls, type(module)):
            found.append([fresh(torch.empty(shape, dtype=each)).dtype for each in (torch.float32, *SHORT)])
    assert found[0] == found[1]


def test_autocast_changes_no_element_type_and_modes_of_the_caller_do_not_mislead():
    module, x = EarlyNorm().bfloat16(), torch.randn(4, 32).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        want = module(x)
        _taken(module)
        assert module(x).dtype is want.dtype is torch.bfloat16
    with torch.device("meta"), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert _taken(EarlyNorm()).spec == "rmsnorm_llama"


def test_torchvisions_frozen_batch_norm_is_one():
    frozen = pytest.importorskip("torchvision.ops").FrozenBatchNorm2d(6)
    for buffer in frozen.buffers():
        buffer.uniform_(0.5, 2)
    x = torch.randn(2, 6, 3, 4)
    want, state = frozen(x), frozen.state_dict()
    assert _taken(frozen).spec == "batchnorm"
    torch.testing.assert_close(frozen(x), want, atol=2e-6, rtol=2e-5)
    assert list(frozen.state_dict()) == list(state)
    frozen.running_mean.zero_()  # what a module has is read at each call
    assert not torch.allclose(frozen(x), want)


def _changed(name, value):
    return lambda module: setattr(module, name, value)


class FlaggedNorm(Norm):
    flag = False

    def forward(self, x):
        return self.scaled(self.row(x) * self.weight) * (2 if self.flag else 1)

    def scaled(self, y):
        return y


CHANGES = {
    "eps": (LateNorm, _changed("eps", 0.5)),
    "eps by another name": (AnnotatedNorm, _changed("layer_eps", 0.5)),
    "flag": (FlaggedNorm, _changed("flag", True)),
    "method": (FlaggedNorm, _changed("scaled", lambda y: 2 * y)),
    "another gain": (
        PlainNorm,
        lambda module: setattr(module, "weight", nn.Parameter(torch.full((1,), 2.0))),
    ),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("cls", "change"), CHANGES.values(), ids=CHANGES)
def test_what_a_forward_reads_is_read_at_each_call(cls, change, compiled, prepared):
    module, other, x = cls(), cls(), 1e-3 * torch.randn(4, 32)
    other.load_state_dict(module.state_dict())
    _taken(module)
    run = torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
    torch.testing.assert_close(run(x), other(x), atol=2e-6, rtol=2e-5)
    assert prepared
    assert all(watching.is_as_watched(each, each.likeness.watched) for each in copies(module))
    for each in (module, other):
        change(each)
    torch.testing.assert_close(run(x), other(x), atol=2e-6, rtol=2e-5)


class KeepingNorm(PlainNorm):
    def forward(self, x):
        self.last = super().forward(x)
        return self.last


class ListingNorm(PlainNorm):
    seen = []

    def forward(self, x):
        return super().forward(x) * (1 + len(self.seen))


class AskingNorm(PlainNorm):
    """Decides by values, as far as is known for the same."""

    def forward(self, x):
        y = super().forward(x)
        return y if x.sum() > 0 else 1 * y


class LongNorm(PlainNorm):
    def forward(self, x):
        return super().forward(x) if x.shape[0] < 99 else x


class EmptyNorm(PlainNorm):
    """As where parameters are divided among processes."""

    def __init__(self):
        super().__init__(0)


REASONS = {
    KeepingNorm: "has side effects: it changes last",
    ListingNorm: "reads state that may change between calls: seen",
    AskingNorm: "computes differently for some values or sizes",
    LongNorm: "computes differently for some values or sizes",
    EmptyNorm: "its parameters are empty: call patch before they are partitioned, or after they are filled",
}


@pytest.mark.parametrize(("cls", "reason"), REASONS.items())
def test_reasons_are_told(cls, reason):
    assert _left(cls()) == reason


class SequenceNorm(Norm):
    """Another norm for inputs of three dimensions."""

    def forward(self, x):
        return self.row(x) * self.weight * (2 if x.dim() == 3 else 1)


def test_other_numbers_of_dimensions_run_as_before():
    module = SequenceNorm()
    inputs = [torch.randn(shape) for shape in ((32,), (3, 32), (2, 3, 32), (2, 3, 2, 32))]
    want = [module(x) for x in inputs]
    assert ", 3-dimensional input" in _taken(module).note
    torch.testing.assert_close([module(x) for x in inputs], want, atol=2e-6, rtol=2e-5)


def test_a_gain_of_one_element_is_not_taken_for_one_of_a_row():
    module = PlainNorm(1)
    assert _left(module) == "its parameters have one element each"
