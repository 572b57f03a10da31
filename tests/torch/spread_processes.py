"""What processes check together of norms whose axes are spread over them (`gloo`)."""

from __future__ import annotations

import copy
import os
import pickle

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import normgen.torch as nt
from normgen.diagnostics import SpecError
from normgen.torch import private
from tests.torch.drawing import variants
from tests.torch.spreading import runs_of, spread_examples

EXACT, CLOSE = 1e-10, 2e-5
FEW = ("rmsnorm", "add_layernorm", "softmax", "batchnorm", "groupnorm", "qk_norm")
SET = "NORMGEN_TEST_SPREAD"


def _same(got, want, tolerance=CLOSE):
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def _own(tensor, dim=-1):
    """This rank's run of a tensor."""
    return (
        tensor.detach().split(runs_of(tensor.shape[dim], dist.get_world_size()), dim)[dist.get_rank()].clone()
    )


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
    mine, whole = [_own(t).requires_grad_() for t in (x, w)], [t.clone().requires_grad_() for t in (x, w)]
    got = torch.compile(lambda x, w: norm(x, w).sin(), fullgraph=True)(*mine)
    want = plain(*whole).sin()
    _same(got, _own(want))
    found, expected = torch.autograd.grad(got.sum(), mine), torch.autograd.grad(want.sum(), whole)
    for one, other in zip(found, expected, strict=True):
        _same(one, _own(other))


def norms_are_loaded_where_compilers_trace():
    group, (x, w) = dist.new_group(), (torch.randn(4, 12), torch.rand(12))
    sync, plain = nt.nn.SyncBatchNorm(12, process_group=group), nt.nn.BatchNorm1d(12)
    for run, mine, want in (
        (
            lambda x: nt.load("rmsnorm", shard={"D": group})(x, _own(w)),
            _own(x),
            _own(nt.load("rmsnorm")(x, w)),
        ),
        (lambda x: nt.load("rmsnorm", partial={"x": None})(x, w), x, nt.load("rmsnorm")(2 * x, w)),
        (sync, _own(x, 0), _own(plain(x), 0)),
    ):
        _same(torch.compile(run, fullgraph=True, backend="aot_eager")(mine), want)


def transforms_and_checkpoints():
    norm, plain = nt.load("rmsnorm", shard={"D": dist.group.WORLD}), nt.load("rmsnorm")
    x, w = torch.randn(3, 4, 12), torch.rand(12)
    mine, gain = _own(x), _own(w)
    _same(torch.func.vmap(lambda x: norm(x, gain))(mine), _own(plain(x, w)))
    _, got = torch.func.jvp(lambda x: norm(x, gain), (mine,), (2 * mine + 1,))
    _, want = torch.func.jvp(lambda x: plain(x, w), (x,), (2 * x + 1,))
    _same(got, _own(want))
    mine, whole = mine.requires_grad_(), x.clone().requires_grad_()
    checkpoint(lambda x: norm(norm(x, gain).sin(), gain), mine, use_reentrant=False).sum().backward()
    plain(plain(whole, w).sin(), w).sum().backward()
    _same(mine.grad, _own(whole.grad))


def functions_are_copied_and_pickled():
    norm = nt.load("rmsnorm", shard={"D": None})
    assert copy.deepcopy(norm) is norm and pickle.loads(pickle.dumps(norm)) is norm
    assert nt.load("rmsnorm", shard={"D": init_device_mesh("cpu", (dist.get_world_size(),))}) is norm
    assert norm.placements == {"rstd": "whole", "y": "shard", "dx": "shard", "dw": "shard"}
    assert "spread over" in repr(norm)


def gradients_are_parts_or_whole():
    x, w = torch.randn(6, 4), torch.rand(4)
    want = torch.autograd.grad(nt.load("rmsnorm")(x, wide := w.clone().requires_grad_()).sin().sum(), wide)[0]
    for whole in ((), ("w",)):
        norm, gain = nt.load("rmsnorm", shard={"...": None}, whole=whole), w.clone().requires_grad_()
        (got,) = torch.autograd.grad(norm(_own(x, 0), gain).sin().sum(), gain)
        if not whole:
            dist.all_reduce(got)
        _same(got, want)


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
            _same(one, other)
        (found,) = torch.autograd.grad(got.y.sin().sum(), mine)
        (expected,) = torch.autograd.grad(want.y.sin().sum(), whole)
        _same(found, expected)
    half = nt.load("rmsnorm", partial={"x": dist.group.WORLD})
    given = torch.randn(ranks, 5, 8, dtype=torch.bfloat16)
    whole = given.float().sum(0).bfloat16()  # rounded once
    assert torch.equal(half(given[dist.get_rank()]), nt.load("rmsnorm")(whole))
    compiled = torch.compile(half, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(given[dist.get_rank()]), nt.load("rmsnorm")(whole))


def _model():
    layers = torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Conv2d(4, 2, 3))


def batch_norm_by_all_batches():
    """In DDP, beside batch norm of the whole batch, which one rank of four has none of."""
    model, ranks = _model(), dist.get_world_size()
    mine = nt.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    assert isinstance(mine[1], nt.nn.SyncBatchNorm) and list(mine.state_dict()) == list(model.state_dict())
    wrapped = DistributedDataParallel(mine)
    x = torch.randn(5, 3, 8, 8)
    for layout in (torch.contiguous_format, torch.channels_last):
        want, given = model(x), _own(x, 0).contiguous(memory_format=layout)
        got = wrapped(given)
        _same(got, _own(want, 0))
        got.square().sum().backward()
        (want.square().sum() / ranks).backward()
        for one, other in zip(mine.parameters(), model.parameters(), strict=True):
            scale = other.grad.abs().max()
            _same(one.grad / scale, other.grad / scale)
            one.grad = other.grad = None
        for one, other in zip(mine.buffers(), model.buffers(), strict=True):
            _same(one, other)
    compiled = torch.compile(mine, fullgraph=True, backend="aot_eager")
    _same(compiled(_own(x, 0)), _own(model(x), 0))
    mine.eval(), model.eval()
    _same(mine(x), model(x))


def batch_norm_of_other_groups_and_types():
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    x = torch.randn(4, 3, 5, dtype=torch.bfloat16)
    norm, plain = nt.nn.SyncBatchNorm(3, process_group=alone[dist.get_rank()]), torch.nn.BatchNorm1d(3)
    _same(norm(x.float()), plain(x.float()))
    norm, plain = nt.nn.SyncBatchNorm(3, momentum=None), nt.nn.BatchNorm1d(3, momentum=None)
    for _ in range(2):
        assert torch.equal(norm(_own(x, 0)), _own(plain(x), 0))
    _same(norm.running_var, plain.running_var)
    norm, plain = nt.nn.SyncBatchNorm(3, dtype=torch.float64), torch.nn.BatchNorm1d(3, dtype=torch.float64)
    _same(norm(_own(x.double(), 0)), _own(plain(x.double()), 0), EXACT)


def _mesh():
    ranks = dist.get_world_size()
    return init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))


def _placed(tensor, mesh, *places):
    return distribute_tensor(tensor.detach(), mesh, places).requires_grad_(tensor.requires_grad)


def _dtensors(name, mesh, given, places, want_places, **attrs):
    """A norm of DTensors, beside that of whole tensors: results, gradients and where they are."""
    norm = nt.load(name, **attrs)
    whole = [each.clone().requires_grad_() for each in given]
    mine = [_placed(each, mesh, *place) for each, place in zip(whole, places, strict=True)]
    want = norm(*whole)
    with CommDebugMode() as seen:
        got = norm(*mine)
    assert not seen.get_total_counts(), seen.get_comm_counts()
    assert isinstance(got, DTensor) and tuple(got.placements) == want_places, (name, got.placements)
    _same(got.full_tensor(), want)
    cotangent = torch.randn_like(want)
    found = torch.autograd.grad(got, mine, _placed(cotangent, mesh, *want_places))
    expected = torch.autograd.grad(want, whole, cotangent)
    for one, other in zip(found, expected, strict=True):
        _same(one.full_tensor(), other)
    return found


def dtensors_are_not_gathered():
    mesh, whole = _mesh(), Replicate()
    x, w = torch.randn(4, 3, 9), torch.rand(9)
    gathered = _Gathered()
    rows = (Shard(0), Shard(2))
    with gathered:
        _, dw = _dtensors("rmsnorm", mesh, (x, w), (rows, (whole, Shard(0))), rows)
        assert isinstance(dw.placements[0], Partial) and dw.placements[1] == Shard(0)
        _dtensors("layernorm", mesh, (x, w, w - 1), (rows, *[(whole, Shard(0))] * 2), rows)
        _dtensors("softmax", mesh, (x,), (rows,), rows)
        images = torch.randn(4, 6, 8, 5)
        cut = (Shard(0), Shard(2))  # stripes of each image
        _, dw, _ = _dtensors(
            "groupnorm", mesh, (images, w[:6], w[:6]), (cut, (whole, whole), (whole, whole)), cut, groups=3
        )
        assert all(isinstance(place, Partial) for place in dw.placements)
        _dtensors(
            "batchnorm",
            mesh,
            (images, w[:6], w[:6]),
            ((whole, Shard(0)), *[(whole, whole)] * 2),
            (whole, Shard(0)),
        )
    assert 0 < gathered.most <= 400
    heads = nt.load("qk_norm", head_dim=3)
    q, k = torch.randn(4, 12), torch.randn(4, 6)
    mine = [_placed(each, mesh, Shard(0), Shard(1)) for each in (q, k)]
    with CommDebugMode() as seen:
        got = heads(*mine)
    assert not seen.get_total_counts()
    for one, other in zip(got, heads(q, k), strict=True):
        assert tuple(one.placements) == (Shard(0), Shard(1))
        _same(one.full_tensor(), other)


# Of s no rank of the batch has a part of the gradient, and all have the whole.
APART = """norm apart
input  x[B, D]
input  s[D]
input  g[E]
output y[B, D] = x * rsqrt(mean[D](x^2)) * sum[E](g)
output z[D] = 2 * s
"""


def gradients_of_dtensors_are_parts_where_they_are_sums():
    mesh, norm, whole = _mesh(), nt.load(APART), Replicate()
    x, s, g = torch.randn(4, 9), torch.randn(9), torch.randn(3)
    mine = [
        _placed(x, mesh, Shard(0), Shard(1)),
        _placed(s, mesh, whole, Shard(0)),
        _placed(g, mesh, whole, whole),
    ]
    mine, theirs = (
        [each.requires_grad_() for each in mine],
        [each.clone().requires_grad_() for each in (x, s, g)],
    )
    got, want = norm(*mine), norm(*theirs)
    found = torch.autograd.grad((got.y.sin().sum() + got.z.sin().sum()), mine)
    expected = torch.autograd.grad((want.y.sin().sum() + want.z.sin().sum()), theirs)
    for one, other in zip(found, expected, strict=True):
        _same(one.full_tensor(), other)
    assert found[1].placements[0] == whole and found[2].placements[1].is_partial()


class _Gathered:
    """The most numbers that an exchange of a norm gave to this rank."""

    def __enter__(self):
        self.most, self._kept = 0, private.all_gather

        def gather(into, tensor, group):
            self.most = max(self.most, into.numel())
            self._kept(into, tensor, group)

        private.all_gather = gather
        return self

    def __exit__(self, *_):
        private.all_gather = self._kept


def dtensors_are_compiled():
    mesh = _mesh()
    x, w = torch.randn(4, 9), torch.rand(9)
    mine = _placed(x, mesh, Shard(0), Shard(1)), _placed(w, mesh, Replicate(), Shard(0))
    norm = nt.load("rmsnorm")
    got = torch.compile(lambda x, w: norm(x, w), fullgraph=True, backend="aot_eager")(*mine)
    assert tuple(got.placements) == (Shard(0), Shard(1))
    _same(got.full_tensor(), norm(x, w))


def modules_take_dtensors():
    mesh, module = _mesh(), nt.nn.RMSNorm(9)
    x = torch.randn(4, 9)
    want = module(x)
    module.weight = torch.nn.Parameter(_placed(module.weight, mesh, Replicate(), Shard(0)))
    got = module(_placed(x, mesh, Shard(0), Shard(1)))
    assert tuple(got.placements) == (Shard(0), Shard(1))
    _same(got.full_tensor(), want)
    try:
        nt.load("rmsnorm", shard={"D": None})(got)
    except TypeError as fault:
        assert ".to_local()" in str(fault)
    else:
        raise AssertionError("a norm of ranks took a DTensor")


def _refused(call, *words):
    try:
        call()
    except (RuntimeError, SpecError, TypeError, ValueError) as fault:
        assert all(word in str(fault) for word in words), fault
        return
    raise AssertionError(f"nothing was said of {words}")


def ranks_that_differ_are_named():
    """And the next call, which all make alike, is right."""
    rank, first = dist.get_rank(), dist.get_rank() == 0
    norm, other = nt.load("rmsnorm", shard={"D": None}), nt.load("layernorm", shard={"D": None})
    x, w = torch.randn(4, 12), torch.rand(12)
    mine, gain = _own(x), _own(w)
    _refused(
        lambda: (other if first else norm)(mine, gain), "rank 1 loads rmsnorm over D, rank 0 loads layernorm"
    )
    _refused(lambda: norm(mine[: 2 if first else 3], gain), "rank 1 has 3 rows, rank 0 has 2 rows")
    _refused(
        lambda: norm(mine.bfloat16() if first else mine, gain), "rank 1 has x in f32, rank 0 has x in bf16"
    )
    _refused(lambda: norm(mine, gain, eps=1e-3 if first else 1e-5), "rank 1 has eps = 1e-05")
    wrong = torch.randn(3, 2 + gain.shape[0]) if first else mine
    _refused(lambda: norm(wrong, gain), "D is" if first else "rank 0 could not make the call: D is")
    y = norm(mine.requires_grad_(), gain.clone().requires_grad_(rank != 0))
    _refused(lambda: y.sum().backward(), "rank 1 asks for dx and dw, rank 0 asks for dx")
    adding = nt.load("rmsnorm", partial={"x": None})
    _refused(lambda: adding(x[: 2 if first else 3]), "rank 1 adds up (3, 12), rank 0 adds up (2, 12)")
    _same(norm(mine, gain), _own(nt.load("rmsnorm")(x, w)))


def what_cannot_be_spread_is_refused():
    mesh = _mesh()
    _refused(lambda: nt.load("local_response_norm", shard={"C": None}), "windows along C")
    _refused(lambda: nt.load("rmsnorm", shard={"E": None}), "no axis 'E'", "D")
    _refused(lambda: nt.load("rmsnorm", shard={"D": 4}), "shard: D is given a int", "process group")
    _refused(lambda: nt.load("rmsnorm", shard={"D": mesh}), "mesh of 2 dimensions", "mesh['name']")
    _refused(lambda: nt.load("rmsnorm", partial={"z": None}), "no operand 'z'", "x, w")
    _refused(lambda: nt.load("rmsnorm", whole=("w",)), "goes with shard")
    groups = dist.new_group([0, 1]), dist.group.WORLD
    _refused(
        lambda: nt.load("qk_norm", head_dim=2, shard=dict(zip("HK", groups, strict=True))), "different groups"
    )


# What processes check together, by how many they are; `SET` in the environment chooses.
SETS = {
    "two": (
        specs_in_float64,
        specs_by_kernels,
        calls_are_compiled,
        norms_are_loaded_where_compilers_trace,
        transforms_and_checkpoints,
        functions_are_copied_and_pickled,
        gradients_are_parts_or_whole,
        parts_are_added_up,
        batch_norm_by_all_batches,
        batch_norm_of_other_groups_and_types,
        dtensors_are_not_gathered,
        dtensors_are_compiled,
        gradients_of_dtensors_are_parts_where_they_are_sums,
        modules_take_dtensors,
        ranks_that_differ_are_named,
        what_cannot_be_spread_is_refused,
    ),
    "four": (
        specs_by_kernels,
        gradients_are_parts_or_whole,
        parts_are_added_up,
        batch_norm_by_all_batches,
        dtensors_are_not_gathered,
        gradients_of_dtensors_are_parts_where_they_are_sums,
        ranks_that_differ_are_named,
    ),
    "every": (specs_in_float64, specs_by_kernels),
}
CHECKS = SETS[os.environ.get(SET, "two")]
