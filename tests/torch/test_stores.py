"""What the ranks of a group tell each other through a store, and what they keep of that for graphs."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from normgen.runtime.ranks.agreement import message
from normgen.runtime.ranks.group import PeerFault
from normgen.torch.ranks import group
from normgen.torch.ranks.group import ProcessRanks
from normgen.torch.ranks.store import RankStore

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")


@pytest.mark.parametrize("seed", range(8))
def test_texts_are_those_of_the_group_that_is_there(seed):
    """One store, and groups of several sizes after each other, which tell other numbers of texts."""
    store, chance = dist.HashStore(), random.Random(seed)
    for _ in range(4):
        texts = [f"{chance.random()}" for _ in range(chance.randrange(4))]
        size = chance.randrange(1, 4)

        def tell(rank, size=size, texts=texts):
            mine = RankStore(store, rank, size)
            return [mine.told(f"{text} {rank}", "a test") for text in texts]

        # (a rank that was in none of the earlier groups would be in another time: stores of PyTorch's groups
        # begin anew with their processes)
        for rank in range(size, 3):
            RankStore(store, rank, size)
        with ThreadPoolExecutor(size) as pool:
            every = list(pool.map(tell, range(size)))
        assert every == [[[f"{text} {rank}" for rank in range(size)] for text in texts]] * size


def test_a_store_in_which_a_rank_was_missing_is_of_no_more_use(monkeypatch):
    monkeypatch.setenv("NORMGEN_RANKS_TIMEOUT", "0.2")
    store = dist.HashStore()
    mine = RankStore(store, 0, 3)
    for _ in range(2):
        with pytest.raises(
            PeerFault, match=r"a norm: rank 1, 2 made no call within 0\.2 s, so the group is out of step"
        ):
            mine.told("a text", "a norm")
    store.set("normgen/1/0/1", "too late")
    with pytest.raises(PeerFault, match="rank 1, 2 made no call"):
        mine.told("a text", "a norm")


def _ranks(size):
    every = [object.__new__(ProcessRanks) for _ in range(size)]
    for rank, each in enumerate(every):
        each.name, each.rank, each._told, each._agreed = "g", rank, set(), {}
    return every


def _heads(call, lengths):
    return np.stack([message({"norm": call}, [length]).head for length in lengths])


def _answer(ranks, heads):
    try:
        return ranks._known(heads[ranks.rank].tobytes())
    except RuntimeError as fault:
        return str(fault)


@pytest.mark.parametrize(("seed", "most"), [(seed, most) for seed in range(20) for most in (3, 4096)])
def test_graphs_take_the_lengths_of_calls_alone_that_tell_them(seed, most, monkeypatch):
    """Calls and lengths are drawn from a few. Where a rank cannot tell, none takes any: the others would wait
    for it. However many calls are kept, none that is forgotten makes another one seem to be alone."""
    monkeypatch.setattr(group, "_KEPT", most)
    chance, size = random.Random(seed), 2 + seed % 2
    every, made = _ranks(size), {}
    for _ in range(12):
        call, lengths = chance.choice("abc"), tuple(chance.choice([5, 7]) for _ in range(size))
        heads = _heads(call, lengths)
        made[call, lengths] = heads
        for ranks in every:
            ranks._keep(heads)
    for (call, lengths), heads in made.items():
        told = [_answer(ranks, heads) for ranks in every]
        others = [each for each in made if each[0] == call and each[1] != lengths]
        alike = any(a == b for _, other in others for a, b in zip(lengths, other, strict=True))
        if alike:
            assert all(isinstance(each, str) for each in told)
        elif most > len(made):
            assert all(np.array_equal(each, heads) for each in told)
        else:
            assert all(isinstance(each, str) or np.array_equal(each, heads) for each in told)
