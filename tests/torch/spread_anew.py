"""What processes check of the default group, which is destroyed and made anew with other processes.

python -m tests.torch.spread_anew STORE PROCESS prints what went wrong.
"""

from __future__ import annotations

import os
import random
import sys
import traceback

import torch
import torch.distributed as dist

import normgen.torch as nt

PROCESSES = 3
TIMES = 5


def members(time):
    """The processes of a group, in the order of ranks. No two of these groups are the same one."""
    if time < 2:
        return [0, 1]
    chance = random.Random(time)
    return chance.sample(range(PROCESSES), chance.choice([2, 3]))


def main(store, process):
    torch.set_num_threads(1)
    held = []
    for time in range(TIMES):
        every = members(time)
        if process not in every:
            continue
        rank = every.index(process)
        options = {"rank": rank, "world_size": len(every), "init_method": f"file://{store}.{time}"}
        dist.init_process_group("gloo", **options)
        torch.manual_seed(time)
        x = torch.randn(4, 12)
        runs = [4 * (3 - len(every)) + 4, *[4] * (len(every) - 1)]
        mine, dy = (each.split(runs, 1)[rank].clone() for each in (x, torch.ones_like(x)))
        norm, partial = nt.load("rmsnorm", shard={"D": None}), nt.load("rmsnorm", partial={"x": None})
        plain, batch = nt.load("rmsnorm"), nt.nn.SyncBatchNorm(12, affine=False)
        for _ in range(2):
            whole, own = (each.clone().requires_grad_() for each in (x, mine))
            got, want = norm(own), plain(whole)
            torch.testing.assert_close(got, want.split(runs, 1)[rank])
            (got,) = torch.autograd.grad(got, own, dy)
            (want,) = torch.autograd.grad(want, whole, torch.ones_like(x))
            torch.testing.assert_close(got, want.split(runs, 1)[rank], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(partial(x), plain(x * len(every)))
            torch.testing.assert_close(batch(x), nt.nn.BatchNorm1d(12, affine=False)(x), atol=1e-5, rtol=1e-5)
        for old in held:
            assert old is not norm
            try:
                old(mine)
            except RuntimeError as fault:
                assert "group 0 was destroyed: load the norm again" in str(fault), fault
            else:
                raise AssertionError("a norm of a group that is no more made a call")
        held.append(norm)
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except Exception:
        print(traceback.format_exc(), flush=True)
    os._exit(0)
