"""Process groups of PyTorch as ranks, and its tensors as what they tell each other."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from normgen.launching.launch import HOST, DeviceKey
from normgen.launching.machine import Machine
from normgen.runtime.calls.bounded import Bounded
from normgen.runtime.ranks.group import PeerFault
from normgen.runtime.ranks.node import NodeRanks
from normgen.torch import private
from normgen.torch.ranks.board import Board, node_ranks
from normgen.torch.ranks.engine import AUTO, COLLECTIVE, UNDECIDED, WITHIN, WORDS, refusal, wish
from normgen.torch.ranks.sites import SITES
from normgen.torch.ranks.words import Unfit, Words

_KEPT = 256  # calls that ranks have agreed on, for graphs


class ProcessRanks:
    """The ranks of a process group, found by its name in each call: groups may be destroyed and made anew.

    Ranks of one node tell numbers of the host through memory of the host. Those of several do so through the
    group, which takes GPUs where it is one of GPUs alone. While a CUDA graph is captured these cannot be
    read, so that calls must have been made before: what ranks agreed on then holds in the graph.
    """

    def __init__(self, name: str) -> None:
        wish()
        self.name = name
        self._board = Board(lambda: self.group, lambda: self.rank, lambda: self.size)
        self._met: Any = None  # a weak reference to the group whose ranks have met
        self._node: NodeRanks | None = None
        self._words: Words | None = None
        self._engine = ""
        self._on_host = False  # tensors that were exchanged are
        self._agreed: Bounded[bytes, Any] = Bounded(_KEPT)

    @property
    def group(self) -> Any:
        """The process group."""
        return private.group_by_name(self.name)

    @property
    def rank(self) -> int:
        """Which one this process is."""
        return int(dist.get_rank(self.group))

    @property
    def size(self) -> int:
        """How many there are."""
        return int(dist.get_world_size(self.group))

    @property
    def engine(self) -> str:
        """What exchanges what ranks tell on GPUs, and why: "words", or "collective: " and a reason; or that
        this is undecided yet. The same on all ranks."""
        return self._engine or (f"{COLLECTIVE}: tensors are on CPUs" if self._on_host else UNDECIDED)

    def meet(self, what: str) -> None:
        """Wait before the first call over the group until all ranks are there. `PeerFault`, which names who
        is not, after so many seconds as NORMGEN_RANKS_TIMEOUT tells, or else ten minutes. And `PeerFault`
        once a rank has not delivered in an earlier call."""
        if self._met is None or self._met() is not self.group:
            self._words, self._engine = None, ""
            self._node = node_ranks(self._board, self.rank, self.size, what)
            self._met = weakref.ref(self.group)
        if self._words is not None:
            self._words.check(what)

    def gather(self, array: Any) -> Any:
        """What all ranks give, of the same shape and type: an array of NumPy or a tensor, and so the result.
        `PeerFault` where a rank is gone, or comes too late: for ranks of one node after as many seconds as
        for `meet`, for those of several after the time-out of the group."""
        if not isinstance(array, np.ndarray):
            return self._gathered(array)
        key = array.tobytes()
        if private.is_capturing():
            known = self._agreed.get(key)
            if known is None:
                raise RuntimeError(
                    "ranks cannot agree while a CUDA graph is captured: make the call once before"
                )
            return known
        found = self._node.gather(array, f"group {self.name}") if self._node else None
        if found is None:
            told = torch.from_numpy(array).to(private.device_of(self.group))
            found = self._gathered(told).cpu().numpy()
        self._agreed.keep(key, found)
        return found

    def added(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of what all ranks give, of the same shape and type, in the order and in the type that the
        group adds in. Raises what `gather` does."""
        total = part.clone(memory_format=torch.contiguous_format)
        with self._meeting():
            dist.all_reduce(total, group=self.group)
        return total

    def summed(self, part: torch.Tensor) -> torch.Tensor | None:
        """The sum of what all ranks give, contiguous and of the same shape and type: added up in float32, in
        the order of ranks, and rounded once. None where words in peers' memory do not go, or are too many."""
        words = self._by_words(part)
        return words.sum(part) if words else None

    def tells_within(self, like: torch.Tensor) -> bool:
        """Whether kernels on the device of this tensor may exchange words themselves. All ranks of a group
        ask in the same exchange where it is open what exchanges."""
        return self._by_words(like) is not None and wish() in (AUTO, WITHIN)

    @property
    def machine(self) -> Machine:
        """The device of this rank, where ranks have words."""
        assert self._words is not None, "they exchange words"
        return self._words.machine

    def channel(self, words: int) -> torch.Tensor | None:
        """What tells a kernel where to exchange so many words of a rank itself, where ranks have words; None
        where they are too many. To be asked for once for each launch."""
        return self._words.channel(words) if self._words is not None else None

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        words = self._by_words(tensor) if tensor.dtype == torch.float32 else None
        found = words.gather(tensor.reshape(-1)) if words else None
        if found is not None:
            return found.view(self.size, *tensor.shape)
        made = tensor.new_empty(self.size * tensor.numel())
        if tensor.numel():
            with self._meeting():
                private.all_gather(made, tensor.reshape(-1), group=self.group)
        return made.view(self.size, *tensor.shape)

    def _by_words(self, tensor: torch.Tensor) -> Words | None:
        """What exchanges tensors that lie where this one does, by words; None where nothing does."""
        if tensor.device.type not in SITES:
            self._on_host = True
            return None
        if not self._engine and private.is_capturing():
            return None
        if not self._engine:
            self._choose(tensor.device)
        if self._words is not None and self._words.site.device != tensor.device:
            raise RuntimeError(
                f"group {self.name} has exchanged tensors on {self._words.site.device}, and this one is on "
                f"{tensor.device}: a rank has all on one device"
            )
        return self._words

    def _choose(self, device: torch.device) -> None:
        """Agree with all ranks on what exchanges tensors."""
        site, size = SITES[device.type](device), self.size
        against = refusal(site, self._board, size)
        if not against:
            try:
                self._words = Words(site, self.rank, size, lambda: self.group, self._board)
            except Unfit as fault:
                against = str(fault)
        self._engine = f"{COLLECTIVE}: {against}" if against else WORDS

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as fault:
            raise PeerFault(
                f"a rank of group {self.name} is gone, or came too late: {str(fault).splitlines()[0]}"
            ) from fault


@cache
def ranks_by_name(name: str) -> ProcessRanks:
    """The ranks of the group of this name: one object, which knows whether they have met."""
    return ProcessRanks(name)


def numbers_on(device: torch.device, values: Sequence[float]) -> torch.Tensor:
    """Floats of these values, which take no copy from the host: a CUDA graph could not have one."""
    alike = ((value, len([*each])) for value, each in groupby(values))
    like = {"dtype": torch.float32, "device": device}
    return torch.cat([torch.full((count,), value, **like) for value, count in alike])


class TensorMemory:
    """Tensors on a device, for what ranks tell each other."""

    def __init__(self, device: torch.device) -> None:
        self.device: DeviceKey = HOST if device.type == "cpu" else (device.type, device.index or 0)
        self._device = device

    def zeros(self, size: int) -> Any:
        """So many floats, of 0."""
        return torch.zeros(size, dtype=torch.float32, device=self._device)

    def numbers(self, values: Sequence[float]) -> Any:
        """Floats of these values."""
        return numbers_on(self._device, values)

    def contiguous(self, array: Any) -> Any:
        """An array whose elements lie one after the other."""
        return array.contiguous()


def group_name(what: str, group: Any) -> str:
    """The name of a process group, or of that of a mesh of one dimension; None stands for all processes.
    TypeError for anything else. `what`: is given it, for messages."""
    if group is None:
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup) and hasattr(group, "get_group") and hasattr(group, "mesh"):
        if group.mesh.ndim != 1:
            raise TypeError(
                f"{what} is given a mesh of {group.mesh.ndim} dimensions: give one of them, mesh['name']"
            )
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"{what} is given a {type(group).__name__}: give a process group, such as "
            f"torch.distributed.group.WORLD, or a DeviceMesh of one dimension"
        )
    return str(group.group_name)
