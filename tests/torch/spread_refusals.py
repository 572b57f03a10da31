"""What processes check together of what ranks are told that differ, and of what cannot be spread (`gloo`)."""

from __future__ import annotations

import torch
import torch.distributed as dist

import normgen.torch as nt
from normgen.diagnostics import SpecError
from tests.torch.spread_dtensors import mesh_of_two
from tests.torch.spreading import own_run, same


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
    mine, gain = own_run(x), own_run(w)
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
    same(norm(mine, gain), own_run(nt.load("rmsnorm")(x, w)))


def what_cannot_be_spread_is_refused():
    mesh = mesh_of_two()
    _refused(lambda: nt.load("local_response_norm", shard={"C": None}), "windows along C")
    _refused(lambda: nt.load("rmsnorm", shard={"E": None}), "no axis 'E'", "D")
    _refused(
        lambda: nt.load("rmsnorm", shard={"D": 4}), "shard: D: expected a process group", "process group"
    )
    _refused(lambda: nt.load("rmsnorm", shard={"D": mesh}), "the mesh has 2 dimensions", "mesh['name']")
    _refused(lambda: nt.load("rmsnorm", partial={"z": None}), "no operand 'z'", "x, w")
    _refused(lambda: nt.load("rmsnorm", whole=("w",)), "whole= requires shard=")
    groups = dist.new_group([0, 1]), dist.group.WORLD
    _refused(
        lambda: nt.load("qk_norm", head_dim=2, shard=dict(zip("HK", groups, strict=True))), "different groups"
    )
