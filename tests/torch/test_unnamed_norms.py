"""Norms are found by what they compute, whatever their class is called; what only has the parameters of one
is left, and the report says why."""

from __future__ import annotations

import random

import pytest

from tests.torch import unnamed_norms
from tests.torch.norms import functional, nt, torch
from tests.torch.patched import agrees
from tests.torch.unnamed_norms import FOUND, IMAGES, LEFT, SIZE, Gained, MyRMS, Scale, Ungained

nn = torch.nn
lookalikes = pytest.importorskip("normgen.torch.patching.lookalikes")


@pytest.mark.parametrize(("cls", "spec"), FOUND.items())
def test_a_norm_is_found_whatever_it_is_called(cls, spec):
    report = agrees(cls(), torch.randn(2, SIZE, 3, 4) if cls in IMAGES else torch.randn(2, 3, SIZE))
    assert [each.spec for each in report.replaced] == [spec] and not report.left


@pytest.mark.parametrize(("cls", "reason"), LEFT.items())
def test_what_is_no_norm_is_left_and_the_report_says_why(cls, reason, capsys):
    unnamed_norms.KEPT.clear()
    module, state, threads = cls(), torch.get_rng_state(), torch.get_num_threads()
    report = nt.patch(module)
    assert not report.replaced and type(module) is cls
    assert [each.reason for each in report.left] == [reason]
    assert not unnamed_norms.KEPT and not capsys.readouterr().out
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads


LAYERS = [
    nn.Linear(4, 1),
    nn.PReLU(8),
    nn.Embedding(4, 8),
    nn.Conv1d(4, 4, 1),
    nn.Bilinear(4, 4, 1),
    nn.ReLU(),
]


class Wrapped(nn.Linear):
    """A layer of PyTorch with another forward."""

    def forward(self, x):
        return super().forward(x) + 1


class Unnamed(nn.Module):
    """Nothing that could be a norm's: no parameter, and no name."""

    def forward(self, x):
        return x / x.square().mean(-1, keepdim=True).sqrt()


def test_other_layers_are_passed_over_in_silence_and_are_not_run(monkeypatch):
    monkeypatch.setattr(nn.PReLU, "forward", lambda *_: pytest.fail("it was run"))
    report = nt.patch(nn.Sequential(*LAYERS, Wrapped(4, 4), Unnamed()))
    assert not report.replaced and not report.left


class PrenormBlock(nn.Module):
    """Called a norm for what it holds."""

    def __init__(self, norm):
        super().__init__()
        self.inner, self.linear = norm, nn.Linear(SIZE, SIZE)


class HoldingNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Identity()


class ConvNormActivation(nn.Sequential):
    """As in torchvision, where the norm may be None."""


def test_a_block_that_is_called_a_norm_is_reported_only_if_it_holds_none_and_computes():
    silent = ConvNormActivation(nn.Conv2d(3, 3, 1))
    report = nt.patch(nn.Sequential(PrenormBlock(MyRMS()), PrenormBlock(Scale()), HoldingNorm(), silent))
    assert [each.name for each in report.replaced] == ["0.inner"]
    reasons = {each.name: each.reason for each in report.left}
    assert reasons == {"1.inner": LEFT[Scale], "2": "is not probed, since it holds other modules: act"}


class Joinable(nn.Module):
    """With a norm that is called by name, and one that is not."""

    def __init__(self):
        super().__init__()
        self.bn, self.act = nn.BatchNorm2d(SIZE), nn.ReLU()

    def forward(self, x):
        y = functional.layer_norm(x, x.shape[-1:])
        y = self.bn(y)
        return self.act(y)


def test_a_block_that_holds_a_norm_is_left_to_be_fused():
    report = nt.patch(nn.Sequential(Joinable()), fuse=True)
    assert [each.name for each in report.replaced] == ["0.bn"]
    assert [each.name for each in report.fused] == ["0"] and not report.left


def test_modules_of_normgen_are_left_as_such():
    report = nt.patch(nn.Sequential(nt.nn.LayerNorm(8), nt.nn.AddRMSNorm(8)))
    assert [each.reason for each in report.left] == ["is a module of normgen"] * 2


@pytest.fixture
def probed(monkeypatch):
    """The classes that are probed."""
    noted = []

    class Watch(lookalikes.Watch):
        def __init__(self, cls):
            noted.append(cls)
            super().__init__(cls)

    monkeypatch.setattr(lookalikes, "Watch", Watch)
    return noted


def test_modules_that_agree_in_what_their_forward_reads_are_probed_once(probed):
    model = nn.Sequential(*[MyRMS(layer=k) for k in range(5)], MyRMS(SIZE + 1))
    model[3].variance_epsilon = 1e-3
    model[4].variance_epsilon = None  # with which it raises
    report = nt.patch(model)
    assert [each.name for each in report.replaced] == ["0", "1", "2", "3", "5"]
    assert [each.name for each in report.left] == ["4"] and len(probed) == 4
    assert [model[k].likeness.eps for k in range(4)] == [1e-6, 1e-6, 1e-6, 1e-3]


def _is_of_a_norm(module):
    """Whether parameters have the shape of a norm's."""
    shapes = [each.shape for each in module.parameters(recurse=False)]
    return 0 < len(shapes) <= 2 and len({*shapes}) == 1 and len(shapes[0]) == 1 and shapes[0] != (1,)


def _drawn(draw, depth):
    """A model, in which a module may come twice."""
    norms = [nn.LayerNorm(SIZE), nn.GroupNorm(2, SIZE), nn.BatchNorm1d(SIZE), nn.LayerNorm(SIZE, bias=False)]
    pool = [*norms, *LAYERS, Ungained(), *(cls() for cls in draw.sample([*FOUND, *LEFT], 8))]
    children = draw.choices(pool, k=4)
    if depth:
        children += [_drawn(draw, depth - 1) for _ in range(2)]
    if draw.random() < 0.5:
        holder = Gained()
        for k, each in enumerate(children):
            holder.add_module(f"part{k}", each)
        return holder
    return nn.Sequential(*children)


@pytest.mark.parametrize("seed", range(4))
def test_each_module_with_the_parameters_of_a_norm_is_reported_once(seed):
    model = nn.Sequential(_drawn(random.Random(seed), 2), nn.LayerNorm(SIZE))
    nt.patch(model, only=nn.LayerNorm)
    report = nt.patch(model)
    told = [each.name for each in (*report.replaced, *report.left)] + list(report.already)
    of_pytorch = {type(each) for each in LAYERS}
    expected = [
        name for name, each in model.named_modules() if _is_of_a_norm(each) and type(each) not in of_pytorch
    ]
    assert len(expected) > 5 and {*expected} <= {*told} and len(told) == len({*told})
    silent = {name for name, each in model.named_modules() if type(each) in (*of_pytorch, nn.Sequential)}
    assert silent.isdisjoint(told)
    again = nt.patch(model)
    assert (
        not again.replaced
        and again.left == report.left
        and {*again.already} == {*told} - {*_names(report.left)}
    )


def _names(left):
    return [each.name for each in left]
