"""What processes check together of words in peers' memory, and of the choice between these and
collectives."""

from __future__ import annotations

import os
import re

import torch
import torch.distributed as dist

import normgen.torch as nt
from normgen.runtime.ranks.group import PeerFault
from normgen.torch.ranks.group import ranks_by_name
from normgen.torch.ranks.peer_memory import MOST_WORDS
from tests.torch.spreading import CALLS_BEFORE, own_run, replay_late, same

BACKEND = "NORMGEN_RANKS_BACKEND"
REPLAYS = 10_000


def by_words():
    """Whether this run is to exchange by words."""
    return os.environ.get(BACKEND, "collective") != "collective"


def ranks_of(group):
    return ranks_by_name(group.group_name)


def _told(rank, count):
    """What a rank tells in an exchange."""
    return torch.arange(count, dtype=torch.float32) * (rank + 1) + count


def _exchanged(ranks, count):
    found = ranks.gather(_told(ranks.rank, count))
    assert torch.equal(found, torch.stack([_told(rank, count) for rank in range(ranks.size)])), count


def the_engine_is_what_was_asked_for():
    group = dist.new_group()
    norm, x, w = nt.load("rmsnorm", shard={"D": group}), torch.randn(4, 12), torch.rand(12)
    adding = nt.load("rmsnorm", partial={"x": group})
    assert norm.backend.startswith("undecided")
    same(norm(own_run(x), own_run(w)), own_run(nt.load("rmsnorm")(x, w)))
    if by_words():
        assert norm.backend == "peer-memory" and repr(norm).endswith("exchanging by peer-memory>")
    elif torch.get_default_device().type == "cuda":
        assert norm.backend == f"collective: rank 0 sets {BACKEND}=collective"
    else:
        assert norm.backend == "collective: tensors are on CPUs"
    assert adding.backend == {"x": norm.backend}


def exchanges_are_as_large_as_they_come():
    """Buffers grow, and what is too large for them is left to the collectives."""
    ranks = ranks_of(dist.new_group())
    ranks.meet("a test")
    for count in (3, 1024, 1025, 20_000, 1, MOST_WORDS, MOST_WORDS + 1, 7):
        _exchanged(ranks, count)


def groups_do_not_mix():
    """Two groups of the same ranks, and one of a rank alone."""
    first, second = (ranks_of(dist.new_group()) for _ in range(2))
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    for ranks in (first, second, ranks_of(alone)):
        ranks.meet("a test")
    for count in range(1, 40):
        _exchanged(first, count)
        if count % 3:
            _exchanged(second, count + 1)
        _exchanged(ranks_of(alone), count)
    assert ranks_of(alone).backend.startswith("collective: there is one rank") or not by_words()


def a_rank_that_stops_is_an_error():
    """On the rank that waits for it, once that has waited for long enough: until then it has NaN. Any of the
    values may be the first that is missed."""
    if not by_words():
        return
    group = dist.new_group()
    norm, ranks = nt.load("rmsnorm", shard={"D": group}), ranks_of(group)
    x, w = torch.randn(4, 12), torch.rand(12)
    norm(own_run(x), own_run(w))
    if dist.get_rank():
        return
    ranks._peer_memory._seconds = 4  # from here on: others are not late by chance
    for _ in range(2):  # the second one does not wait
        found = ranks.gather(_told(0, 5))
        assert torch.equal(found[0], _told(0, 5)) and found[1:].isnan().all()
    try:
        norm(own_run(x), own_run(w))
    except PeerFault as fault:
        told = r"rmsnorm over D: rank [1-7] did not deliver value [0-4] of exchange 2 within 4 s"
        assert re.search(told, str(fault)), fault
        return
    raise AssertionError("nothing was said of the rank that stopped")


def replays_have_the_values_of_each():
    """Many replays of a graph, of ranks that come late by chance, compared on the device."""
    norm, plain = nt.load("rmsnorm", shard={"D": None}), nt.load("rmsnorm")
    base, w = torch.randn(16, 64), torch.rand(64)
    turn, worst = torch.zeros(()), torch.zeros(())
    shape = own_run(base).shape[1]
    start = 0 if dist.get_rank() == 0 else base.shape[1] - shape

    def step():
        turn.add_(1)
        x = base * (1 + turn % 7) + turn % 5
        run = slice(start, start + shape)
        y = norm(x[:, run].contiguous(), w[run].contiguous())
        # (a NaN is the greater one)
        worst.copy_(torch.maximum(worst, (y - plain(x, w)[:, run]).abs().max()))

    replay_late(step, REPLAYS, every=50)
    assert float(worst) < 1e-4 and float(turn) == REPLAYS + CALLS_BEFORE


def streams_do_not_mix():
    """Calls on two streams, and graphs that are replayed on both at the same time."""
    plain = nt.load("rmsnorm")
    norms = [nt.load("rmsnorm", shard={"D": group}) for group in (dist.group.WORLD, dist.new_group())]
    streams = [torch.cuda.Stream() for _ in norms]
    x, w = [torch.randn(256, 512) for _ in norms], torch.rand(512)
    mine, gain = [own_run(each) for each in x], own_run(w)
    want = [own_run(plain(each, w)) for each in x]
    torch.cuda.synchronize()
    made = []
    for turn in range(50):  # one norm on either stream
        with torch.cuda.stream(streams[turn % 2]):
            made.append(norms[0](mine[turn % 2], gain))
    torch.cuda.synchronize()
    for turn, each in enumerate(made):
        same(each, want[turn % 2])
    found, graphs = [], []
    for norm, each, stream in zip(norms, mine, streams, strict=True):
        with torch.cuda.stream(stream):
            norm(each, gain)
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            found.append(norm(each, gain))
    for _ in range(200):
        for made in found:
            made.zero_()
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for made, each in zip(found, want, strict=True):
            same(made, each)


ON_EVERY_BACKEND = (
    the_engine_is_what_was_asked_for,
    exchanges_are_as_large_as_they_come,
    groups_do_not_mix,
)
ON_GPUS = (replays_have_the_values_of_each, streams_do_not_mix)
