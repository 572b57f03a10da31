"""Whole models: which modules `patch` replaces, what stays as it was, and how `unpatch` puts them back."""

from __future__ import annotations

import copy

import pytest

from tests.torch.norms import nt, torch
from tests.torch.other_norms import EarlyNorm
from tests.torch.test_fusing import Prenorm
from tests.torch.test_modules import CASES, copies
from tests.torch.test_overriding import Activated
from tests.torch.test_redirecting import BatchNormAct, GroupNormAct

nn = torch.nn


class Scaled(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) * 1.01


class Named(nn.LayerNorm):
    """A subclass that computes what its base does."""

    def double(self):
        return "mine"


class SpreadNorm(nn.Module):
    def forward(self, x):
        return x / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True))


class Normalizer(nn.Module):
    """One norm that normgen knows, with two names, and norms that it does not."""

    def __init__(self):
        super().__init__()
        self.first = nn.LayerNorm(8)
        self.again = self.first
        self.named = Named(8)
        self.inner = nn.Sequential(EarlyNorm(8), nn.GroupNorm(2, 8))
        self.scaled = Scaled(8)
        self.spread = SpreadNorm()

    def forward(self, x):
        return self.scaled(self.again(self.inner(self.named(self.first(x)))))


@pytest.fixture
def model():
    return Normalizer()


PATCHED = ("first", "named", "inner.0", "inner.1", "scaled")


def _classes(model):
    return [type(module) for module in model.modules()]


def test_norms_are_replaced_by_type_and_by_what_they_compute_and_the_rest_is_reported(model):
    report = nt.patch(model)
    specs = "layernorm", "layernorm", "rmsnorm_llama", "groupnorm", "layernorm"
    assert [(each.name, each.spec) for each in report.replaced] == list(zip(PATCHED, specs, strict=True))
    assert [each.name for each in report.left] == ["spread"]
    assert isinstance(model.first, nt.nn.LayerNorm) and isinstance(model.inner[1], nt.nn.GroupNorm)
    assert model.first is model.again
    assert isinstance(model.named, Named) and model.named.double() == "mine"
    assert isinstance(model.inner[0], EarlyNorm)
    many = nn.Sequential(*[nn.Sequential(nn.LayerNorm(8)) for _ in range(3)])
    assert str(nt.patch(many)).splitlines()[1:] == ["  3 LayerNorm -> layernorm", "    *.* (3)"]
    assert str(nt.patch(nn.LayerNorm(8))).splitlines()[2:] == ["    (the model itself)"]
    assert str(report).splitlines() == [
        "Normalizer: 5 modules replaced (on a CPU, they run their original code by default)",
        "  1 LayerNorm -> layernorm",
        "    first",
        "  1 Named -> layernorm",
        "    named",
        "  1 EarlyNorm -> rmsnorm_llama: runs the original code for "
        "bf16 input with f32 weight, f16 input with f32 weight, f64",
        "    inner.0",
        "  1 GroupNorm -> groupnorm",
        "    inner.1",
        "  1 Scaled -> layernorm: inside its own forward",
        "    scaled",
        "1 module left unchanged",
        "  1 SpreadNorm: computes something that no bundled norm does",
        "    spread",
    ]


def test_patching_twice_is_patching_once_and_unpatch_puts_back_the_very_same_modules(model):
    modules, classes, x = list(model.modules()), _classes(model), torch.randn(3, 8)
    want = model(x)
    nt.patch(model)
    once = _classes(model)
    again = nt.patch(model)
    assert _classes(model) == once and not again.replaced and again.already == PATCHED
    assert str(again).startswith("Normalizer: 0 modules replaced; 5 already were")
    assert nt.unpatch(model) == PATCHED
    assert list(model.modules()) == modules and _classes(model) == classes
    assert torch.equal(model(x), want)
    assert nt.unpatch(model) == ()


def test_parameters_hooks_and_flags_stay(model):
    seen = []
    model.inner[0].register_forward_hook(lambda *_: seen.append("old"))
    model.inner.eval()
    keys, parameters = list(model.state_dict()), list(model.parameters())
    nt.patch(model)
    model.inner[0].register_forward_hook(lambda *_: seen.append("new"))
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model.first.training and not model.inner[0].training
    model(torch.randn(2, 8))
    nt.unpatch(model)
    model(torch.randn(2, 8))
    assert seen == ["old", "new", "old", "new"]


def _facts(model):
    """What stays of all modules: modes, hooks, and the parameters and buffers themselves."""
    return [
        (
            (name, module.training, *module._forward_hooks.items(), *module._backward_hooks.items()),
            *(
                (key, id(each), each.dtype, each.device, each.requires_grad)
                for home in (module._parameters, module._buffers)
                for key, each in home.items()
                if each is not None
            ),
        )
        for name, module in model.named_modules()
    ]


KINDS = {
    "drop-ins": lambda: nn.Sequential(nn.BatchNorm2d(6), nn.InstanceNorm2d(6, affine=True), nn.LayerNorm(5)),
    "look-alikes": lambda: nn.Sequential(EarlyNorm(5), Named(5)),
    "within": lambda: nn.Sequential(Scaled(5), Activated(6)),
    "functions": lambda: nn.Sequential(BatchNormAct(6), GroupNormAct(6)),
    "joined": lambda: nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.SyncBatchNorm(6)),
    "fused": lambda: nn.Sequential(Prenorm()),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_modes_types_and_hooks_stay(make, dtype, training):
    model, hooked = make().to(dtype).train(training), []
    model[-1].train(not training)
    next(model.parameters()).requires_grad_(False)
    for module in model.modules():
        module.register_forward_hook(lambda module, *_: hooked.append(module))
    other, before = copy.deepcopy(model), _facts(model)
    report = nt.patch(model, fuse=True)
    assert report.replaced and not report.left and _facts(model) == before
    x = torch.randn(2, 6, 4, 32 if isinstance(model[0], Prenorm) else 5, dtype=dtype)
    bound = 0.05 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(model(x), other(x), atol=bound, rtol=bound)
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()), atol=bound, rtol=bound)
    assert {*hooked} == {*model.modules(), *other.modules()}
    nt.unpatch(model)
    assert _facts(model) == before


class Raises:
    def __eq__(self, other):
        raise RuntimeError("no comparison")

    def __hash__(self):
        raise RuntimeError("no key")


class UnrulyNorm(EarlyNorm):
    """Attributes that cannot be compared, and that cannot be set."""

    def __init__(self):
        super().__init__(8)
        self.key, self.table = Raises(), torch.ones(2, 2)
        self.sealed = True

    def __setattr__(self, name, value):
        assert "sealed" not in vars(self), "it is sealed"
        super().__setattr__(name, value)


class SealedNorm(EarlyNorm):
    def __init_subclass__(cls):
        raise TypeError("it is final")


class SlottedNorm(nn.LayerNorm):
    __slots__ = ("slot",)


class AskedNorm(EarlyNorm):
    def __getattribute__(self, name):
        if name in ("training", "weight") and "ready" in object.__getattribute__(self, "__dict__"):
            raise KeyError(name)
        return super().__getattribute__(name)


class CalledNorm(EarlyNorm):
    forward = Raises()


class Asked(nn.Module):
    """A block whose attributes raise, and whose source is none."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU())

    @property
    def norm(self):
        raise RuntimeError("not now")

    def forward(self, x):
        total = x + x
        x = self.norm(total)
        return self.inner(x) + total


def _scalar():
    module = EarlyNorm(8)
    module.weight = nn.Parameter(torch.ones(()))
    return module


UNRULY = [
    UnrulyNorm,
    lambda: EarlyNorm(0),
    lambda: SealedNorm(8),
    lambda: SlottedNorm(8),
    lambda: AskedNorm(8),
]
UNRULY += [lambda: CalledNorm(8), Asked, _scalar]


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("make", UNRULY)
def test_nothing_in_a_model_makes_patch_raise(make, fuse):
    model = nn.Sequential(make(), nn.LayerNorm(8))
    vars(model[0])["ready"] = True
    cls, report = type(model[0]), nt.patch(model, fuse=fuse)
    assert "1" in [each.name for each in report.replaced] and isinstance(model[1], nt.nn.LayerNorm)
    taken, left = (any(each.name == "0" for each in found) for found in (report.replaced, report.left))
    assert taken + left == ("Norm" in cls.__name__) and (taken or type(model[0]) is cls)
    nt.unpatch(model)
    assert type(model[0]) is cls


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("inner.*", ["inner.0", "inner.1"]),
        ("again", ["again"]),
        (nn.GroupNorm, ["inner.1"]),
        (lambda name, module: "." in name, ["inner.0", "inner.1"]),
        ([nn.GroupNorm, "first"], ["first", "inner.1"]),
    ],
)
def test_only_chooses(model, only, names):
    assert [each.name for each in nt.patch(model, only=only).replaced] == names


@pytest.mark.parametrize(
    ("call", "fault", "message"),
    [
        (lambda m: nt.patch(m, only="firts"), ValueError, "no module of Normalizer; did you mean 'first'"),
        (lambda m: nt.patch(m, only=3), TypeError, "only= takes glob patterns .* not int"),
        (
            lambda m: nt.patch(m, dtype="bf16"),
            ValueError,
            "must be 'keep' or 'once' but is 'bf16'",
        ),
        (lambda m: nt.patch(m.state_dict()), TypeError, "^patch takes a torch.nn.Module, not OrderedDict"),
        (lambda m: nt.unpatch([m]), TypeError, "^unpatch takes a torch.nn.Module, not list"),
    ],
)
def test_mistakes_are_told_before_anything_changes(model, call, fault, message):
    classes = _classes(model)
    with pytest.raises(fault, match=message):
        call(model)
    assert _classes(model) == classes


def test_modules_that_something_else_changed_are_left_and_what_was_wrapped_since_is_not_put_back():
    model = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8), nn.LazyBatchNorm1d())
    model[0].forward = lambda x: x
    nn.utils.parametrize.register_parametrization(model[1], "weight", nn.Identity())
    assert [each.reason.split(":")[0] for each in nt.patch(model).left] == [
        "has a forward set on the instance (by accelerate, Liger or the like)",
        "is parametrized",
        "has no parameters before its first call",
    ]
    model = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8))
    nt.patch(model)
    nn.utils.parametrize.register_parametrization(model[1], "weight", nn.Identity())
    with pytest.raises(RuntimeError, match=r"1 became a ParametrizedLayerNorm after it was patched"):
        nt.unpatch(model)
    assert isinstance(model[0], nt.nn.LayerNorm)


def test_patched_models_are_copied_and_saved(model):
    nt.patch(model)
    x = torch.randn(2, 8)
    for made in copies(model):
        assert _classes(made) == _classes(model) and made.first is made.again
        assert torch.equal(made(x), model(x))
        nt.unpatch(made)
        assert type(made.first) is nn.LayerNorm and isinstance(model.first, nt.nn.LayerNorm)


def test_modules_on_meta_are_replaced_and_materialized():
    with torch.device("meta"):
        model = nn.Sequential(EarlyNorm(8), nn.LayerNorm(8))
        assert len(nt.patch(model).replaced) == 2
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    assert model(torch.randn(2, 8)).isfinite().all()
    assert model.to(torch.bfloat16)(torch.randn(2, 8).bfloat16()).dtype is torch.bfloat16


def test_a_compiled_model_is_patched_underneath():
    model, x, calls = nn.Sequential(nn.Linear(8, 8), EarlyNorm(8)), torch.randn(2, 8), []
    compiled = torch.compile(model, backend="eager")
    want = compiled(x)
    assert [each.name for each in nt.patch(compiled).replaced] == ["_orig_mod.1"]
    model[1].register_forward_pre_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(compiled(x), want, atol=2e-6, rtol=2e-5)
    assert calls and type(model[1]) is not EarlyNorm


@pytest.mark.parametrize(
    ("name", "arguments", "shape"), {name: (name, *rest) for name, *rest in CASES}.values()
)
def test_each_drop_in_is_for_its_namesake(name, arguments, shape):
    module, x = getattr(nn, name)(*arguments), torch.randn(shape)
    other = copy.deepcopy(module)
    assert len(nt.patch(module).replaced) == 1 and isinstance(module, getattr(nt.nn, name))
    torch.testing.assert_close(module(x), other(x), atol=2e-6, rtol=2e-5, equal_nan=True)
    assert repr(module) == repr(other)
