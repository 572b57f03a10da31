"""Process groups of PyTorch as ranks, and tensors as what they exchange."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from normgen.arrays.views import packed
from normgen.launching.launch import HOST
from normgen.launching.layout import Shape
from normgen.locks import new_lock
from normgen.runtime.calls.bounded import Bounded
from normgen.runtime.ranks.agreement import PLACE, accord
from normgen.runtime.ranks.group import PeerFault
from normgen.runtime.ranks.node import NodeRanks
from normgen.runtime.ranks.steps import Memory
from normgen.torch import private
from normgen.torch.ranks import order
from normgen.torch.ranks.backend import AUTO, COLLECTIVE, IN_KERNEL, PEER_MEMORY, UNDECIDED, refusal, wish
from normgen.torch.ranks.peer_memory import PeerMemory, Unfit
from normgen.torch.ranks.store import RankStore, node_ranks, timeout
from normgen.torch.ranks.transport import TRANSPORTS

_NUMBERS = 64  # tensors of numbers that are cached per known call
_KEPT = 4096  # calls that ranks have agreed on, for graphs


class ProcessRanks:
    """The ranks of a process group. A new group of the same name has other ranks.

    Ranks of one node exchange NumPy arrays through shared memory of the host; ranks of several nodes use the
    group, and its GPUs if it has no other backend. Results on a GPU cannot be read while a CUDA graph is
    captured. A call must therefore be made before the capture: what ranks agreed on then holds in the graph.
    """

    def __init__(self, name: str, group: Any, time: int) -> None:
        """`time`: how often this process has had a group of this name."""
        wish(), timeout(1)  # raise for bad variables before ranks wait for each other
        self.name = name
        self.rank, self.size = int(dist.get_rank(group)), int(dist.get_world_size(group))
        self.identity = name, self.size, time
        self._group = weakref.ref(group)
        self._store: RankStore | None = None
        self._has_met = False
        self._node: NodeRanks | None = None
        self._peer_memory: PeerMemory | None = None
        self._backend = ""
        self._on_host = False  # whether tensors on the host were exchanged
        self._told: set[bytes] = set()  # the heads of all ranks, of calls that they agreed on
        # The same by rank and its own head; None if other ranks had several heads with it.
        self._agreed: dict[tuple[int, bytes], NDArray[np.int64] | None] = {}

    @property
    def group(self) -> Any:
        """The process group. RuntimeError if it was destroyed."""
        found = self._group()
        if found is None or not self.are_of(private.group_by_name(self.name)):
            raise RuntimeError(
                f"group {self.name} was destroyed: load the norm again over an existing group, and call "
                f"torch.compiler.reset() to compile its graphs again"
            )
        return found

    def are_of(self, group: Any) -> bool:
        """Whether these are the ranks of this group."""
        return group is not None and self._group() is group

    def leave(self) -> None:
        """Release what they exchange through."""
        self._node = self._peer_memory = None

    @property
    def backend(self) -> str:
        """How ranks exchange tensors on GPUs: "peer-memory", or "collective: " and the reason; or that ranks
        have not decided yet. The same on all ranks."""
        return self._backend or (f"{COLLECTIVE}: tensors are on CPUs" if self._on_host else UNDECIDED)

    def meet(self, what: str) -> None:
        """Wait for all ranks before the first call over the group. `PeerFault`, which names the missing
        ranks, after NORMGEN_RANKS_TIMEOUT seconds (default: ten minutes), and if a rank did not deliver in
        an earlier call. RuntimeError if the group was destroyed."""
        group = self.group
        if not self._has_met:
            if self._store is None:
                self._store = RankStore(private.store_of(group), self.rank, self.size)
            self._node = node_ranks(self._store, self.rank, self.size, what)
            self._has_met = True
        if self._peer_memory is not None:
            self._peer_memory.check(what)

    def gather(self, array: Any) -> Any:
        """The arrays of all ranks, stacked: NumPy arrays or tensors, of the same shape and type on all ranks.
        `PeerFault` if a rank has ended or is late: on one node after as many seconds as in `meet`, on several
        nodes after the timeout of the group."""
        if not isinstance(array, np.ndarray):
            on_host = array.dtype == torch.float64  # of CPUs alone, and a group may be of GPUs alone
            return torch.tensor(self.gather(array.numpy())) if on_host else self._gathered(array)
        if private.is_capturing():
            return self._known(array.tobytes())
        is_head = array.dtype == np.int64
        if is_head and (place := order.PLACE.get()):
            array = array.copy()
            array[PLACE] = place
        found: Any = self._node.gather(array, f"group {self.name}") if self._node else None
        if found is None:
            told = torch.from_numpy(array).to(private.device_of(self.group))
            found = self._gathered(told).cpu().numpy()
        if is_head and accord(found):
            self._keep(found)
        return found

    def _keep(self, heads: NDArray[np.int64]) -> None:
        """Keep the heads of all ranks in a call, for graphs. Only the first calls are kept: dropping an old
        one would lose the fact that a head had two answers. Graphs count their own places."""
        if heads[:, PLACE].any():
            heads = heads.copy()
            heads[:, PLACE] = 0
        told, full = heads.tobytes(), len(self._told) >= _KEPT
        if told in self._told:
            return
        if not full:
            self._told.add(told)
        for place in _places(heads):
            if place in self._agreed:
                self._agreed[place] = None
            elif not full:
                self._agreed[place] = heads

    def _known(self, key: bytes) -> NDArray[np.int64]:
        """The heads of all ranks in the call in which this one had `key`. RuntimeError if there was none, or
        if calls that are equal on one rank differ on others. All ranks raise it, or they would wait for each
        other."""
        if (self.rank, key) not in self._agreed:
            raise RuntimeError(
                "ranks cannot compare calls during CUDA graph capture: make this call once before the "
                f"capture, as one of the first {_KEPT} different calls of group {self.name}"
            )
        found = self._agreed[self.rank, key]
        if found is None or any(self._agreed[place] is None for place in _places(found)):
            raise RuntimeError(
                f"a CUDA graph cannot tell which lengths all ranks of group {self.name} have: calls that are "
                f"equal on one rank differ in length on others: give one of these calls its own group"
            )
        return found

    def added(self, part: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in the order and type in which the group's all-reduce adds. Raises the same
        as `gather`."""
        total = part.clone(memory_format=torch.contiguous_format)
        with self._meeting():
            dist.all_reduce(total, group=self.group)
        return total

    def summed(self, part: torch.Tensor) -> torch.Tensor | None:
        """The sum over all ranks of contiguous tensors of the same shape and type: added in float32, in the
        order of ranks, and rounded once. None if ranks use no peer memory, or the tensor is too large for
        it."""
        words = self._by_peer_memory(part)
        return words.sum(part) if words else None

    def within_kernels(self, like: torch.Tensor) -> PeerMemory | None:
        """The peer memory through which kernels on the device of this tensor may exchange; None if they may
        not. All ranks of a group ask this in the same exchange while the backend is undecided."""
        found = self._by_peer_memory(like)
        return found if wish() in (AUTO, IN_KERNEL) else None

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        words = self._by_peer_memory(tensor) if tensor.dtype == torch.float32 else None
        found = words.gather(tensor.reshape(-1)) if words else None
        if found is not None:
            return found.view(self.size, *tensor.shape)
        made = tensor.new_empty(self.size * tensor.numel())
        if tensor.numel():
            with self._meeting():
                private.all_gather(made, tensor.reshape(-1), group=self.group)
        return made.view(self.size, *tensor.shape)

    def _by_peer_memory(self, tensor: torch.Tensor) -> PeerMemory | None:
        """The peer memory for tensors on the device of this one; None where ranks use none."""
        if tensor.device.type not in TRANSPORTS:
            self._on_host = True
            return None
        if not self._backend and private.is_capturing():
            return None
        if not self._backend:
            self._choose(tensor.device)
        if self._peer_memory is not None and self._peer_memory.transport.device != tensor.device:
            raise RuntimeError(
                f"group {self.name} exchanges tensors on {self._peer_memory.transport.device}, but this one "
                f"is on {tensor.device}: use one device per rank"
            )
        return self._peer_memory

    def _choose(self, device: torch.device) -> None:
        """Agree with all ranks on the backend for tensors."""
        transport, size, store = TRANSPORTS[device.type](device), self.size, self._store
        assert store is not None, "ranks have met"
        against = refusal(transport, store, size)
        if not against:
            try:
                self._peer_memory = PeerMemory(transport, self.rank, size, lambda: self.group, store)
            except Unfit as fault:
                against = str(fault)
        self._backend = f"{COLLECTIVE}: {against}" if against else PEER_MEMORY

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as fault:
            raise PeerFault(
                f"group {self.name}: a rank has ended or timed out: {str(fault).splitlines()[0]}"
            ) from fault


def _places(heads: NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
    return ((rank, head.tobytes()) for rank, head in enumerate(heads))


_RANKS: dict[str, ProcessRanks] = {}
_LOOKING = new_lock()


def ranks_by_name(name: str) -> ProcessRanks:
    """The ranks of the current group of this name: one object for each group."""
    group = private.group_by_name(name)
    if group is None:
        raise RuntimeError(
            f"there is no process group {name}: create it before you load a norm that is sharded over it"
        )
    with _LOOKING:
        before = _RANKS.get(name)
        if before is not None and before.are_of(group):
            return before
        if before is not None:
            before.leave()
        found = ProcessRanks(name, group, 1 if before is None else before.identity[-1] + 1)
        _RANKS[name] = found
        return found


def numbers_on(device: torch.device, values: Sequence[float], dtype: Any = torch.float32) -> torch.Tensor:
    """These floats, without a copy from the host, which a CUDA graph could not hold."""
    alike = ((value, len([*each])) for value, each in groupby(values))
    return torch.cat([torch.full((count,), value, dtype=dtype, device=device) for value, count in alike])


class TensorMemory(Memory):
    """Allocates tensors on a device for exchanges."""

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.device = HOST if device.type == "cpu" else (device.type, device.index or 0)
        self._device, self._dtype = device, dtype
        self._numbers: Bounded[Any, torch.Tensor] = Bounded(_NUMBERS)

    def zeros(self, size: int) -> Any:
        """So many zeros."""
        return torch.zeros(size, dtype=self._dtype, device=self._device)

    def numbers(self, values: Sequence[float]) -> Any:
        """These floats, for a call on the current stream: a tensor that another stream fills may not be
        ready, and a graph has its own."""
        stream = private.stream_name(self._device)
        key = stream, *values
        found = None if stream is None else self._numbers.get(key)
        if found is None:
            found = numbers_on(self._device, values, self._dtype)
            if stream is not None:
                self._numbers.keep(key, found)
        return found

    def parts(self, every: Any, start: int, shape: Shape) -> Any:
        """The tensors [n, *shape] that begin at `start` in each of n arrays. `every`: [n, size]. Operators,
        which compute in float64, add in an order that depends on strides."""
        count, size = every.shape
        made = every.as_strided((count, *shape), (size, *packed(shape)), every.storage_offset() + start)
        return made.contiguous() if self._dtype == torch.float64 else made


def group_name(what: str, group: Any) -> str:
    """The name of a process group, or of the group of a one-dimensional mesh; None stands for all processes.
    TypeError for anything else. `what` was given the group, for messages."""
    if group is None:
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup) and hasattr(group, "get_group") and hasattr(group, "mesh"):
        if group.mesh.ndim != 1:
            raise TypeError(
                f"{what}: the mesh has {group.mesh.ndim} dimensions: pass one of them, mesh['name']"
            )
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"{what}: expected a process group, such as torch.distributed.group.WORLD, or a DeviceMesh of "
            f"one dimension, got {type(group).__name__}"
        )
    return str(group.group_name)
