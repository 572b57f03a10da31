"""Exchanges of a group through peer memory: its buffers, and which of them a call uses."""

from __future__ import annotations

import json
import secrets
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from normgen.arrays.torch import TORCH
from normgen.devices.executors import executor_of, keeps_calls
from normgen.launching.launch import Fire, Launch
from normgen.launching.machine import Machine
from normgen.locks import new_lock
from normgen.runtime.ranks.agreement import CURE
from normgen.runtime.ranks.group import PeerFault
from normgen.runtime.ranks.peer_memory import (
    ADDED,
    COUNTERS,
    RECORD_WORDS,
    WORD,
    Channel,
    PeerLate,
    channel_words,
    gather_launch,
    sum_launch,
    words_of,
)
from normgen.torch.dtypes import NAMES
from normgen.torch.ranks.store import RankStore, timeout
from normgen.torch.ranks.transport import CudaTransport

MOST_WORDS = 1 << 16  # that a rank tells at once: more is left to the collectives
_FEWEST_WORDS = 1 << 10
_SPARE_BYTES = 1 << 23  # of the channels of a buffer that graphs take
_SPARE = range(4, 65)  # how many of them there are
_LOW = 2  # spare channels, below which there is a new buffer
MOST_WAITING = 0.5  # of the places on a device, for kernels of all groups that wait
_SECONDS = 30.0
_WHAT = "allocating memory for exchanges"
T = TypeVar("T")


_PEER_MEMORIES: weakref.WeakSet[PeerMemory] = weakref.WeakSet()
_COUNTING = new_lock()


class Unfit(Exception):
    """Ranks cannot use peer memory; the text says why."""


class PeerMemory:
    """Exchanges between the ranks of a group, each on a device of its own.

    All exchanges outside graphs use one channel, in the same order on all ranks, on any stream. Each CUDA
    graph has its own channel, so that it can be replayed beside other exchanges. Calls outside graphs
    allocate these channels in advance, because nothing can be allocated while a graph is captured. Buffers
    live as long as the process, because graphs may.

    A kernel that waits for peers occupies multiprocessors. The waiting kernels of all groups of a process may
    occupy half of the device: two of each group then run at the same time, and other kernels beside them.
    """

    def __init__(
        self, transport: CudaTransport, rank: int, size: int, group: Callable[[], Any], store: RankStore
    ) -> None:
        """`group`: the process group. Raises `Unfit` on all ranks where one cannot have memory of peers."""
        self.transport, self.rank, self.size = transport, rank, size
        self._group, self._store = group, store
        self._seconds = timeout(_SECONDS)
        self._record = transport.record()
        self._fault = self._record.numpy()
        self._fires: dict[Launch, Fire] = {}
        self._held: list[Any] = []
        self._records: dict[Channel, torch.Tensor] = {}
        self._spare: list[Channel] = []
        self._graphs: dict[int, _Order] = {}
        self._share = 0.0  # of the places on the device, that the largest kernel which waits may hold
        _PEER_MEMORIES.add(self)
        self._eager = _Order(self._buffer(_FEWEST_WORDS))
        keeps_calls(self)

    def forget(self) -> None:
        """Compile the kernels again at their next use."""
        self._fires.clear()

    def check(self, what: str) -> None:
        """`PeerFault` if a kernel has timed out waiting for a rank: since then ranks are out of step. `what`:
        the next call, for messages."""
        late = PeerLate.of(int(self._fault[0]))
        if late is not None:
            raise PeerFault(
                f"{what}: rank {late.rank} did not deliver value {late.place} of exchange {late.epoch} "
                f"within {self._seconds:g} s, so the group is out of step: create a new group. "
                f"{CURE.capitalize()}; raise NORMGEN_RANKS_TIMEOUT if they need more time"
            )

    def gather(self, told: torch.Tensor) -> torch.Tensor | None:
        """All-gather of [n] floats, [ranks, n]; None if it needs a collective."""
        count = told.numel()
        channel = self._channel(count)
        if channel is None:
            return None
        made = told.new_empty((self.size, count))
        self._run(gather_launch(self.size, count, self.machine), channel, told, made, count)
        return made

    def sum(self, part: torch.Tensor) -> torch.Tensor | None:
        """The sum over ranks of contiguous tensors of one shape and type; None if it needs a collective."""
        name, count = NAMES.get(part.dtype, ""), part.numel()
        channel = self._channel(words_of(count, name)) if name in ADDED else None
        if channel is None:
            return None
        if TORCH.address(part) % WORD:
            part = part.clone()
        made = torch.empty_like(part)
        self._run(sum_launch(self.size, count, name, self.machine), channel, part, made, count)
        return made

    def channel(self, words: int) -> torch.Tensor | None:
        """The record by which a kernel exchanges this many words per rank, as a tensor at its first float.
        Ask for a new one for each launch. None if the exchange needs a collective."""
        found = self._channel(words)
        return None if found is None else self._records[found]

    def leaves_room(self, share: float) -> bool:
        """Whether a kernel that occupies this share of the device may wait for its peers. Once admitted, it
        may in every later call."""
        with _COUNTING:
            others = (each for each in _PEER_MEMORIES if each is not self)
            every = [each._share for each in others if each.transport.key == self.transport.key]
            if sum(every) + max(share, self._share) > MOST_WAITING:
                return False
            self._share = max(share, self._share)
            return True

    @property
    def machine(self) -> Machine:
        """The device of this rank."""
        return executor_of(self.transport.key).device

    def _run(
        self, launch: Launch, channel: Channel, given: torch.Tensor, made: torch.Tensor, count: int
    ) -> None:
        fire = self._fires.get(launch)
        if fire is None:
            executor = executor_of(self.transport.key)
            function = executor.function(launch.source, launch.entry, launch.shared)
            fire = self._fires[launch] = executor.prepare(function, launch)
        packed = channel.packed(TORCH.address(given), made.data_ptr(), count, self._seconds)
        fire(packed, (), self.transport.stream())

    def _channel(self, words: int) -> Channel | None:
        """The channel for an exchange of this many words per rank: the same one on all ranks."""
        if not 0 < words <= MOST_WORDS:
            return None
        stream = self.transport.stream()
        capture = self.transport.capture(stream)
        if capture:
            order = self._graphs.get(capture)
            if order is None or order.channel.capacity < words:
                if not self._spare or self._spare[-1].capacity < words:
                    raise RuntimeError(
                        "no memory is left for the exchanges of this CUDA graph: make the call outside "
                        "graphs before you capture it, and again after every few graphs"
                    )
                order = self._graphs[capture] = _Order(self._spare.pop(), order)
        else:
            order = self._eager
            if order.channel.capacity < words or len(self._spare) < _LOW:
                capacity = max(order.channel.capacity, 1 << (words - 1).bit_length())
                order = self._eager = _Order(self._buffer(capacity), order)
        return order.taken(stream, self.transport)

    def _buffer(self, capacity: int) -> Channel:
        """The first channel of a new buffer. The others become spare."""
        words = channel_words(self.size, capacity)
        count = 1 + min(max(_SPARE_BYTES // (8 * words), _SPARE[0]), _SPARE[-1])
        every = self._peers(count * (words + RECORD_WORDS))
        records = every[self.rank][count * words : -1].view(count, RECORD_WORDS)
        made = [
            Channel(
                slots=tuple(each.data_ptr() + 8 * words * k for each in every),
                counters=records[k].data_ptr(),
                fault=self._record.data_ptr(),
                capacity=capacity,
                rank=self.rank,
            )
            for k in range(count)
        ]
        told = [each.record(self._seconds) for each in made]
        records[:, COUNTERS // 2 :] = torch.tensor(told, dtype=torch.int64, device="cpu")
        assert records[:, COUNTERS // 2 :].tolist() == list(map(list, told))  # there, for all streams
        found = (record[:1].view(torch.float32)[0] for record in records)
        self._records |= dict(zip(made, found, strict=True))
        self._spare = made[1:]
        return made[0]

    def _peers(self, words: int) -> list[torch.Tensor]:
        """Zeroed memory of so many words on each rank, as mapped by this one. Raises `Unfit` on all ranks if
        one cannot map it. The word behind it is a mark by which ranks verify whose memory they mapped."""
        mark = secrets.randbits(62)
        own, marks = self._together(lambda: self.transport.memory(words, mark), str(mark))
        every, _ = self._together(lambda: self._seen(own, [int(each) for each in marks]))
        return every

    def _seen(self, own: torch.Tensor, marks: list[int]) -> list[torch.Tensor]:
        every, held = self.transport.peers(own, self._group())
        self._held.append((every, held))
        if [int(each[-1]) for each in every] != marks:
            raise RuntimeError("it maps other memory than that of its peers")
        return every

    def _together(self, step: Callable[[], T], text: str = "") -> tuple[T, list[str]]:
        """The result of a step, and the texts of all ranks, once all have done it. `Unfit` if one cannot."""
        made: list[T] = []
        fault = ""
        try:
            made.append(step())
        except Exception as raised:  # which the others are to learn of, whatever it is
            fault = " ".join([type(raised).__name__, *str(raised).splitlines()[:1]])
        told = [json.loads(each) for each in self._store.told(json.dumps([fault, text]), _WHAT)]
        for rank, (theirs, _) in enumerate(told):
            if theirs:
                raise Unfit(f"rank {rank} cannot share memory with the others: {theirs}")
        return made[0], [each for _, each in told]


class _Order:
    """A channel, and the stream of its last exchange, which the next one waits for."""

    def __init__(self, channel: Channel, before: _Order | None = None) -> None:
        self.channel = channel
        self._stream: int | None = before._stream if before else None
        self._follow: Callable[[], None] | None = before._follow if before else None

    def taken(self, stream: int, transport: CudaTransport) -> Channel:
        """The channel, for an exchange on the current stream, whose handle is given."""
        if stream != self._stream:
            if self._follow is not None:
                self._follow()
            self._stream, self._follow = stream, transport.follower()
        return self.channel
