"""Whether ranks make the same call: the first exchange of each call, of a few numbers.

Each rank sends a digest of what it is about to do, and its lengths of the sharded axes. If the digests
differ, or a rank cannot make its call, ranks exchange descriptions of their calls, and each raises an error
that names the rank that differs. Otherwise they would exchange arrays of different shapes, which hangs or
aborts.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normgen.runtime.ranks.group import MOST_AXES, PeerFault

FAULT = "fault"
PLACE = 3  # where a head has the place of a call in a compiled graph
_HEAD = 4  # digest, whether the rank cannot make the call, bytes of words, that place; then lengths
CURE = "all ranks must make the same calls in the same order"


class Message(NamedTuple):
    """What a rank sends before a call. `words`: the description; `head`: its digest, whether the rank cannot
    make the call, the bytes of `words`, the place of the call in a compiled graph (0: in none), then `axes`
    lengths of sharded axes."""

    words: bytes
    head: NDArray[np.int64]
    axes: int


def message(meant: Mapping[str, str], lengths: Sequence[int] = ()) -> Message:
    """The message of a call. `meant`: descriptions by topic, the most important first; `lengths`: of the
    sharded axes on this rank."""
    words = json.dumps(dict(meant)).encode()
    digest = blake2b(words, digest_size=7).digest()
    head = np.zeros(_HEAD + MOST_AXES, np.int64)
    head[:_HEAD] = int.from_bytes(digest, "little"), FAULT in meant, len(words), 0
    head[_HEAD : _HEAD + len(lengths)] = lengths
    return Message(words, head, len(lengths))


def faulty(fault: Exception) -> Message:
    """The message of a call that this rank cannot make."""
    return message({FAULT: str(fault)})


def agree(norm: str, told: Message, fault: Exception | None = None) -> Generator[Any, Any, NDArray[np.int64]]:
    """The lengths of the sharded axes on all ranks, [size, axes], once ranks agree on the call. `told`: the
    message of this rank; `fault`: why it cannot make the call, raised once the others know. ValueError if
    ranks disagree, `PeerFault` if another rank has a fault."""
    heads = yield told.head
    return (yield from agreed(norm, told, heads, fault))


def accord(heads: NDArray[np.int64]) -> bool:
    """Whether all heads are of the same call, and every rank can make it."""
    return bool((heads[:, 0] == heads[0, 0]).all() and not heads[:, 1].any())


def _check_places(norm: str, places: NDArray[np.int64]) -> None:
    """ValueError if ranks are at different places of their compiled graphs: their calls look the same, but
    are different ones."""
    there = places.nonzero()[0]
    for rank in there[1:]:
        if places[rank] != places[there[0]]:
            raise ValueError(
                f"{norm}: rank {rank} is at exchange {places[rank]} of a compiled graph and rank {there[0]} "
                f"at exchange {places[there[0]]}, so the compiler reordered one of them: {CURE}"
            )


def agreed(
    norm: str, told: Message, heads: NDArray[np.int64], fault: Exception | None = None
) -> Generator[Any, Any, NDArray[np.int64]]:
    """The rest of `agree`, after the heads of all ranks were gathered."""
    if accord(heads):
        _check_places(norm, heads[:, PLACE])
        return np.asarray(heads[:, _HEAD : _HEAD + told.axes])
    words = np.zeros(int(heads[:, 2].max()), np.uint8)
    words[: len(told.words)] = np.frombuffer(told.words, np.uint8)
    texts = yield words
    if fault is not None:
        raise fault
    every = [json.loads(bytes(text[: int(size)])) for text, size in zip(texts, heads[:, 2], strict=True)]
    for rank, theirs in enumerate(every):
        if FAULT in theirs:
            raise PeerFault(f"{norm}: rank {rank} could not make the call: {theirs[FAULT]}")
    raise ValueError(difference(every))


def difference(every: Sequence[Mapping[str, str]]) -> str:
    """The first topic on which ranks differ, with two ranks that do."""
    first = every[0]
    for rank, theirs in enumerate(every):
        for topic in dict.fromkeys((*first, *theirs)):
            mine, other = first.get(topic, f"has no {topic}"), theirs.get(topic, f"has no {topic}")
            if mine != other:
                return f"rank {rank} {other}, rank 0 {mine}: {CURE}"
    raise AssertionError("digests differ, and words do not")
