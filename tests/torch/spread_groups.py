"""What processes check together of channels and heads whose groups straddle them (`gloo`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, pairwise

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.func import functional_call

import normgen.torch as nt
from normgen.package.records import dims_text
from normgen.runtime.ranks.division import divided
from tests.torch.drawing import example
from tests.torch.gloo import DEVICE
from tests.torch.spread_dtensors import Gathered
from tests.torch.spread_peer_memory import by_words
from tests.torch.spreading import CLOSE, EXACT, Spread, own_run, same


@dataclass(frozen=True)
class Straddling(Spread):
    """An example, dimensions of two axes of which are spread over all processes: `axis` is one of them."""

    shares: tuple[float, ...]  # of each process, which are not runs of whole groups as a rule

    @cached_property
    def divisions(self):
        lengths, found = self.lengths.axes, {}
        for pair in self.function.spread.grouped.pairs:
            total = lengths[pair.outer] * lengths[pair.inner]
            steps = range(len(self.shares) + 1)
            ends = [round(total * sum(self.shares[:k]) / sum(self.shares)) for k in steps]
            found[pair.name] = divided(pair, [b - a for a, b in pairwise(ends)])
        return found

    def own(self, record, tensor):
        """This rank's run of a tensor; of a tensor of groups those that it is given."""
        rank, made = dist.get_rank(), tensor.detach()
        for dim in record.dims:
            at = tensor.dim() - len(record.dims) + record.dims.index(dim) if dim != record.dims[0] else 0
            division = self.divisions.get(dims_text((dim,)))
            if division is not None:
                return made.split(list(division.lengths), at)[rank].clone()
            for each in self.divisions.values():
                if dim == (each.pair.outer,) and not each.all_owned:
                    own = each.owned[rank]
                    room = -(-each.lengths[rank] // each.members) if each.pair.groups is None else own.length
                    shape = [*made.shape[:at], room - own.length, *made.shape[at + 1 :]]
                    return torch.cat([made.narrow(at, own.start, own.length), made.new_zeros(shape)], at)
        return made.clone()


# A spec with its attrs, and the dimensions of it that are spread.
SPECS = (
    ("groupnorm", {"groups": 3}, ("(G C)",)),
    ("groupnorm", {"groups": 4}, ("(G C)",)),
    ("groupnorm_silu", {"groups": 2}, ("(G C)",)),
    ("groupnorm_channels_last", {"groups": 3}, ("(G C)",)),
    ("adagn", {"groups": 3}, ("(G C)",)),
    ("gated_rmsnorm_grouped", {"groups": 3, "norm_before_gate": False}, ("(G D)",)),
    ("rmsnorm_quantized_group", {"group": 4, "e5m2": False}, ("(G E)",)),
    ("qk_norm", {"head_dim": 4}, ("(H D)", "(K D)")),
)
FEW = SPECS[:2] + SPECS[-1:]


def _shares():
    """How runs of the processes are to each other."""
    ranks = dist.get_world_size()
    return (1.0,) * ranks, (5.0, 3.0, *[4.0] * (ranks - 2)), (*[3.0] * (ranks - 2), 0.0, 4.0)


def _check(variant, shares, dtype, tolerance):
    spec, attrs, axes = variant
    drawn = example((spec, attrs), dtype, rows=5, width=9)
    case = replace(drawn, tensors=tuple(t.to(torch.get_default_device()) for t in drawn.tensors))
    function = nt.load(spec, shard=dict.fromkeys(axes, dist.group.WORLD), **attrs)
    try:
        Straddling(case, axes[0], function, shares).check(tolerance)
    except Exception as fault:
        raise AssertionError(f"{spec} {attrs} in shares {shares}") from fault


def groups_that_straddle_in_float64():
    for variant, shares in zip(SPECS, cycle(_shares()), strict=False):
        _check(variant, shares, "f64", EXACT)


def groups_that_straddle_by_kernels():
    for shares in _shares():
        for variant in FEW:
            _check(variant, shares, "f32", CLOSE)


def groups_that_straddle_are_compiled():
    """In one graph, by inductor, with gradients; the same function has whole groups without an exchange."""
    ranks = dist.get_world_size()
    norm = nt.load("groupnorm", groups=2 * ranks, shard={"(G C)": dist.group.WORLD})
    plain = nt.load("groupnorm", groups=2 * ranks)
    compiled = torch.compile(lambda x, w, b: norm(x, w, b).sin(), fullgraph=True)
    for run in (own_run, lambda t, dim=0: t.detach().chunk(ranks, dim)[dist.get_rank()].clone()):
        x, w, b = torch.randn(2, 6 * ranks, 4), torch.rand(6 * ranks), torch.rand(6 * ranks)
        whole = [t.clone().requires_grad_() for t in (x, w, b)]
        mine = [run(t, min(t.dim() - 1, 1)).requires_grad_() for t in (x, w, b)]
        got, want = compiled(*mine), plain(*whole).sin()
        same(got, run(want, 1))
        found, expected = torch.autograd.grad(got.sum(), mine), torch.autograd.grad(want.sum(), whole)
        for one, other in zip(found, expected, strict=True):
            same(one, run(other, min(other.dim() - 1, 1)))


def groups_that_straddle_are_transformed():
    norm, plain = nt.load("groupnorm", groups=3, shard={"(G C)": None}), nt.load("groupnorm", groups=3)
    x, w, b = torch.randn(3, 2, 12, 4), torch.rand(3, 12), torch.rand(12)
    mine, gains, bias = own_run(x, 2), own_run(w), own_run(b)
    for dims in ((0, None, None), (0, 0, None)):
        own, all_ = (gains, w) if dims[1] == 0 else (gains[0], w[0])
        got = torch.func.vmap(norm, dims)(mine, own, bias)
        same(got, own_run(torch.func.vmap(plain, dims)(x, all_, b), 2))
    _, got = torch.func.jvp(lambda x: norm(x, gains[0], bias), (mine[0],), (mine[1],))
    _, want = torch.func.jvp(lambda x: plain(x, w[0], b), (x[0],), (x[1],))
    same(got, own_run(want, 1))


def images_may_lie_otherwise_or_be_none():
    norm, plain = nt.load("groupnorm", groups=3, shard={"(G C)": None}), nt.load("groupnorm", groups=3)
    x, w = torch.randn(2, 12, 4, 3), torch.rand(12)
    mine, gain = own_run(x, 1).contiguous(memory_format=torch.channels_last), own_run(w).requires_grad_()
    for _ in range(2):  # of which the second call is known
        got = norm(mine, gain)
        same(got, own_run(plain(x, w), 1))
        assert not got.numel() or got.is_contiguous(memory_format=torch.channels_last)
    for dtype in (torch.float32, torch.float64)[: 1 if DEVICE == "cuda" else 2]:
        none, own = own_run(x[:0].to(dtype), 1).requires_grad_(), gain.detach().to(dtype).requires_grad_()
        got = norm(none, own)
        dx, dw = torch.autograd.grad(got.sum(), (none, own))
        assert got.shape == dx.shape == none.shape and not dw.any()


def dtensors_that_straddle_groups_are_not_gathered():
    """Of all that ranks exchange nothing is of the size of x; also where it is compiled."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh(DEVICE, (ranks,))
    x, w, b = torch.randn(2, 3 * (2 * ranks + 1), 40), torch.rand(3 * (2 * ranks + 1)), torch.randn(1)
    gathered = Gathered()
    with gathered:
        norm = nt.load("groupnorm", groups=2 * ranks + 1)
        _dtensors(norm, mesh, (x, w, w + b), (1, 0, 0), (1,))
        compiled = torch.compile(lambda *given: norm(*given), fullgraph=True, backend="aot_eager")
        _dtensors(compiled, mesh, (x, w, w + b), (1, 0, 0), (1,))
        module = nt.nn.GroupNorm(2 * ranks + 1, w.shape[0])
        _dtensors(
            lambda x, w, b: functional_call(module, {"weight": w, "bias": b}, x),
            mesh,
            (x, w, w + b),
            (1, 0, 0),
            (1,),
        )
        heads, (q, k) = nt.load("qk_norm", head_dim=8), (torch.randn(3, 8 * n) for n in (ranks + 1, ranks))
        _dtensors(heads, mesh, (q, k, w[:8], w[:8]), (1, 1, None, None), (1, 1))
    assert gathered.most < x.numel() / 2 and (gathered.most or by_words())


def _dtensors(norm, mesh, given, places, want_places):
    whole = [each.clone().requires_grad_() for each in given]
    placed = [[Replicate() if at is None else Shard(at)] for at in places]
    mine = [
        distribute_tensor(each.detach(), mesh, place).requires_grad_()
        for each, place in zip(whole, placed, strict=True)
    ]
    got, want = norm(*mine), norm(*whole)
    got, want = ([*each] if isinstance(each, tuple) else [each] for each in (got, want))
    for one, other, at in zip(got, want, want_places, strict=True):
        assert tuple(one.placements) == (Shard(at),), one.placements
        same(one.full_tensor(), other)
    cotangents = [torch.randn_like(each) for each in want]
    cut = [distribute_tensor(d, mesh, [Shard(at)]) for d, at in zip(cotangents, want_places, strict=True)]
    found, expected = torch.autograd.grad(got, mine, cut), torch.autograd.grad(want, whole, cotangents)
    for one, other in zip(found, expected, strict=True):
        same(one.full_tensor(), other)


GROUPS = (
    groups_that_straddle_by_kernels,
    groups_that_straddle_are_compiled,
    groups_that_straddle_are_transformed,
    images_may_lie_otherwise_or_be_none,
    dtensors_that_straddle_groups_are_not_gathered,
)
CHECKS = (groups_that_straddle_in_float64, *GROUPS)
