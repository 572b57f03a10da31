"""Whether ranks make the same call: the first exchange of each, of a few numbers whatever the call.

Each rank tells digests of what it is about to do, and its lengths of the spread axes. Where the digests
differ, or a rank cannot make its call, they exchange in words what they meant, and every rank raises an error
that names who differs. Without that, ranks would exchange arrays of different shapes, which hangs or aborts.
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
_HEAD = 3  # a digest, whether the rank cannot make the call, bytes of words; lengths follow
CURE = "all ranks make the same calls, in the same order"


class Message(NamedTuple):
    """What a rank tells of a call before it. `head`: a digest of the words, whether the rank cannot make the
    call, bytes of words; then `axes` lengths of spread axes."""

    words: bytes
    head: NDArray[np.int64]
    axes: int


def message(meant: Mapping[str, str], lengths: Sequence[int] = ()) -> Message:
    """That of a call. `meant`: words by topic, the most telling first; `lengths`: of the spread axes on this
    rank."""
    words = json.dumps(dict(meant)).encode()
    digest = blake2b(words, digest_size=7).digest()
    head = np.zeros(_HEAD + MOST_AXES, np.int64)
    head[:_HEAD] = int.from_bytes(digest, "little"), FAULT in meant, len(words)
    head[_HEAD : _HEAD + len(lengths)] = lengths
    return Message(words, head, len(lengths))


def faulty(fault: Exception) -> Message:
    """That of a call that this rank cannot make."""
    return message({FAULT: str(fault)})


def agree(norm: str, told: Message, fault: Exception | None = None) -> Generator[Any, Any, NDArray[np.int64]]:
    """The lengths of the spread axes on all ranks, [size, axes], once ranks agree on what is `told`. `fault`:
    why this rank cannot make the call; it is raised once the others know. ValueError where ranks disagree,
    `PeerFault` where another has a fault."""
    heads = yield told.head
    return (yield from agreed(norm, told, heads, fault))


def agreed(
    norm: str, told: Message, heads: NDArray[np.int64], fault: Exception | None = None
) -> Generator[Any, Any, NDArray[np.int64]]:
    """The same once the heads of all ranks are there."""
    if (heads[:, 0] == heads[0, 0]).all() and not heads[:, 1].any():
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
    """The first thing that ranks mean differently, with two of them that do."""
    first = every[0]
    for rank, theirs in enumerate(every):
        for topic in dict.fromkeys((*first, *theirs)):
            mine, other = first.get(topic, f"has no {topic}"), theirs.get(topic, f"has no {topic}")
            if mine != other:
                return f"rank {rank} {other}, rank 0 {mine}: {CURE}"
    raise AssertionError("digests differ, and words do not")
