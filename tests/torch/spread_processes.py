"""What processes check together of norms whose axes are spread over them (`gloo`)."""

from __future__ import annotations

import copy
import os
import pickle

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import normgen.torch as nt
from tests.torch.drawing import variants
from tests.torch.gloo import DEVICE
from tests.torch.spread_batches import BATCHES, batch_norm_by_all_batches
from tests.torch.spread_dtensors import (
    dtensors_are_compiled,
    dtensors_are_not_gathered,
    dtensors_lie_as_their_shards,
    gradients_of_dtensors_are_parts_where_they_are_sums,
    modules_take_dtensors,
)
from tests.torch.spread_groups import GROUPS, groups_that_straddle_by_kernels, groups_that_straddle_in_float64
from tests.torch.spread_known import (
    KNOWN,
    images_with_channels_innermost,
    known_calls_are_told_from_others,
)
from tests.torch.spread_order import ORDER
from tests.torch.spread_peer_memory import ON_EVERY_BACKEND, ON_GPUS, a_rank_that_stops_is_an_error
from tests.torch.spread_refusals import ranks_that_differ_are_named, what_cannot_be_spread_is_refused
from tests.torch.spread_sums import SUMS, SUMS_ON_GPUS
from tests.torch.spread_told import TOLD
from tests.torch.spreading import CLOSE, EXACT, own_run, same, spread_examples

FEW = ("rmsnorm", "add_layernorm", "softmax", "batchnorm", "groupnorm", "qk_norm")
SET = "NORMGEN_TEST_SPREAD"


def _each(names, dtype, tolerance):
    """Outputs, states, gradients and second derivatives of specs, with each of their axes spread."""
    count = 0
    for variant in variants():
        if os.environ.get(SET) == "every" or variant[0] in names:
            for each in spread_examples(variant, dtype):
                try:
                    each.check(tolerance)
                except Exception as fault:
                    raise AssertionError(f"{variant} with {each.axis} spread") from fault
                count += 1
    assert count >= 2 * len(names)


def specs_in_float64():
    _each(FEW, "f64", EXACT)


def specs_by_kernels():
    _each(("rmsnorm", "batchnorm"), "f32", CLOSE)


def calls_are_compiled():
    """In one graph, by inductor, with gradients; what is told by one rank changes nothing for compilers."""
    norm, plain = nt.load("rmsnorm", shard={"D": dist.group.WORLD}), nt.load("rmsnorm")
    x, w = torch.randn(4, 12), torch.rand(12)
    mine, whole = [own_run(t).requires_grad_() for t in (x, w)], [t.clone().requires_grad_() for t in (x, w)]
    got = torch.compile(lambda x, w: norm(x, w).sin(), fullgraph=True)(*mine)
    want = plain(*whole).sin()
    same(got, own_run(want))
    found, expected = torch.autograd.grad(got.sum(), mine), torch.autograd.grad(want.sum(), whole)
    for one, other in zip(found, expected, strict=True):
        same(one, own_run(other))


def norms_are_loaded_where_compilers_trace():
    group, (x, w) = dist.new_group(), (torch.randn(4, 12), torch.rand(12))
    sync, plain = nt.nn.SyncBatchNorm(12, process_group=group), nt.nn.BatchNorm1d(12)
    for run, mine, want in (
        (
            lambda x: nt.load("rmsnorm", shard={"D": group})(x, own_run(w)),
            own_run(x),
            own_run(nt.load("rmsnorm")(x, w)),
        ),
        (lambda x: nt.load("rmsnorm", partial={"x": None})(x, w), x, nt.load("rmsnorm")(2 * x, w)),
        (sync, own_run(x, 0), own_run(plain(x), 0)),
    ):
        same(torch.compile(run, fullgraph=True, backend="aot_eager")(mine), want)


def transforms_and_checkpoints():
    norm, plain = nt.load("rmsnorm", shard={"D": dist.group.WORLD}), nt.load("rmsnorm")
    x, w = torch.randn(3, 4, 12), torch.rand(12)
    mine, gain = own_run(x), own_run(w)
    same(torch.func.vmap(lambda x: norm(x, gain))(mine), own_run(plain(x, w)))
    _, got = torch.func.jvp(lambda x: norm(x, gain), (mine,), (2 * mine + 1,))
    _, want = torch.func.jvp(lambda x: plain(x, w), (x,), (2 * x + 1,))
    same(got, own_run(want))
    mine, whole = mine.requires_grad_(), x.clone().requires_grad_()
    checkpoint(lambda x: norm(norm(x, gain).sin(), gain), mine, use_reentrant=False).sum().backward()
    plain(plain(whole, w).sin(), w).sum().backward()
    same(mine.grad, own_run(whole.grad))


def attrs_may_have_any_name():
    """Those of functions that load a norm too."""
    names = ("source", "spec", "group", "axes", "name", "attrs", "place", "folded")
    for name in names:
        text = f"norm t\nattr {name}: int >= 1\ninput x[D]\noutput y[D] = {name} * x * rsqrt(mean[D](x^2))\n"
        x = torch.randn(6)
        want = nt.load(text, **{name: 3})(x)
        same(nt.load(text, shard={"D": None}, **{name: 3})(own_run(x)), own_run(want))
        compiled = torch.compile(lambda x, t=text, n=name: nt.load(t, **{n: 3})(x), backend="eager")
        same(compiled(x), want)


def functions_are_copied_and_pickled():
    norm = nt.load("rmsnorm", shard={"D": None})
    assert copy.deepcopy(norm) is norm and pickle.loads(pickle.dumps(norm)) is norm
    assert nt.load("rmsnorm", shard={"D": init_device_mesh(DEVICE, (dist.get_world_size(),))}) is norm
    assert norm.placements == {"rstd": "whole", "y": "shard", "dx": "shard", "dw": "shard"}
    assert "sharded over" in repr(norm)


def gradients_are_parts_or_whole():
    x, w = torch.randn(6, 4), torch.rand(4)
    want = torch.autograd.grad(nt.load("rmsnorm")(x, wide := w.clone().requires_grad_()).sin().sum(), wide)[0]
    for whole in ((), ("w",)):
        norm, gain = nt.load("rmsnorm", shard={"...": None}, whole=whole), w.clone().requires_grad_()
        (got,) = torch.autograd.grad(norm(own_run(x, 0), gain).sin().sum(), gain)
        if not whole:
            dist.all_reduce(got)
        same(got, want)


def parts_are_added_up():
    """Few, which every rank adds in the same order, and many."""
    norm, plain, ranks = (
        nt.load("add_rmsnorm", partial={"x": None}),
        nt.load("add_rmsnorm"),
        dist.get_world_size(),
    )
    for rows in (3, 30000):
        parts, residual, w = torch.randn(ranks, rows, 16), torch.randn(rows, 16), torch.rand(16)
        mine, whole = parts[dist.get_rank()].clone().requires_grad_(), parts.sum(0).requires_grad_()
        got, want = norm(mine, residual=residual, w=w), plain(whole, residual, w)
        for one, other in zip(got, want, strict=True):
            same(one, other)
        (found,) = torch.autograd.grad(got.y.sin().sum(), mine)
        (expected,) = torch.autograd.grad(want.y.sin().sum(), whole)
        same(found, expected)
    half = nt.load("rmsnorm", partial={"x": dist.group.WORLD})
    given = torch.randn(ranks, 5, 8, dtype=torch.bfloat16)
    whole = given.float().sum(0).bfloat16()  # rounded once
    assert torch.equal(half(given[dist.get_rank()]), nt.load("rmsnorm")(whole))
    compiled = torch.compile(half, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(given[dist.get_rank()]), nt.load("rmsnorm")(whole))


def graphs_exchange_anew():
    """A CUDA graph of both directions, with other values and ranks that come late."""
    norm, plain = nt.load("rmsnorm", shard={"D": None}), nt.load("rmsnorm")
    x, w, dy = torch.randn(64, 512), torch.rand(512), torch.randn(64, 512)
    mine, gain, slope = own_run(x).requires_grad_(), own_run(w).requires_grad_(), own_run(dy)

    def both():
        y = norm(mine, gain)
        return (y, *torch.autograd.grad(y, (mine, gain), slope))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = both()
    late = torch.Generator("cpu").manual_seed(dist.get_rank())
    for _ in range(200):
        given = torch.randn_like(x)
        with torch.no_grad():
            mine.copy_(own_run(given))
        torch.cuda._sleep(int(torch.randint(0, 200_000, (), generator=late, device="cpu")))
        graph.replay()
        whole, wide = given.requires_grad_(), w.clone().requires_grad_()
        want = plain(whole, wide)
        expected = (want, *torch.autograd.grad(want, (whole, wide), dy))
        for one, other in zip(found, expected, strict=True):
            same(one, own_run(other), 1e-4)


# On CPUs and on GPUs.
_ANYWHERE = (
    specs_by_kernels,
    calls_are_compiled,
    norms_are_loaded_where_compilers_trace,
    transforms_and_checkpoints,
    gradients_are_parts_or_whole,
    parts_are_added_up,
    *BATCHES,
    dtensors_are_not_gathered,
    dtensors_are_compiled,
    dtensors_lie_as_their_shards,
    gradients_of_dtensors_are_parts_where_they_are_sums,
    modules_take_dtensors,
    ranks_that_differ_are_named,
    *GROUPS,
    *ON_EVERY_BACKEND,
    *KNOWN,
    *ORDER,
)
# What processes check together, by how many they are; `SET` in the environment chooses.
SETS = {
    "two": (
        *_ANYWHERE,
        specs_in_float64,
        groups_that_straddle_in_float64,
        attrs_may_have_any_name,
        functions_are_copied_and_pickled,
        what_cannot_be_spread_is_refused,
    ),
    "four": (
        specs_by_kernels,
        *GROUPS,
        gradients_are_parts_or_whole,
        parts_are_added_up,
        batch_norm_by_all_batches,
        dtensors_are_not_gathered,
        gradients_of_dtensors_are_parts_where_they_are_sums,
        ranks_that_differ_are_named,
        known_calls_are_told_from_others,
        images_with_channels_innermost,
    ),
    "every": (specs_in_float64,),
    "words": (
        *ON_EVERY_BACKEND,
        *SUMS,
        known_calls_are_told_from_others,
        specs_by_kernels,
        groups_that_straddle_by_kernels,
        parts_are_added_up,
        batch_norm_by_all_batches,
        a_rank_that_stops_is_an_error,
    ),
    "within": (*TOLD, known_calls_are_told_from_others, a_rank_that_stops_is_an_error),
    "gpu": (*_ANYWHERE, *TOLD, graphs_exchange_anew, *ON_GPUS, *SUMS_ON_GPUS, a_rank_that_stops_is_an_error),
}
CHECKS = SETS[os.environ.get(SET, "two")]
