"""Process groups of PyTorch as ranks, and its tensors as what they tell each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from normgen.launching.launch import HOST, DeviceKey
from normgen.runtime.calls.bounded import Bounded
from normgen.runtime.ranks.agreement import CURE
from normgen.runtime.ranks.group import PeerFault
from normgen.torch import private

_KEPT = 256  # calls that ranks have agreed on, for graphs
_SECONDS = 600.0


class ProcessRanks:
    """The ranks of a process group, found by its name in each call: groups may be destroyed and made anew.

    A group of GPUs alone tells numbers of the host through its GPUs. While a CUDA graph is captured nothing
    can be read, so that calls must have been made before: what ranks agreed on then holds in the graph.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._have_met = False
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

    def meet(self, what: str) -> None:
        """Wait before the first call over the group until all ranks are there. `PeerFault`, which names who
        is not, after so many seconds as NORMGEN_RANKS_TIMEOUT tells, or else ten minutes; later calls have
        the time-out of the group."""
        if self._have_met:
            return
        store, size = private.store_of(self.group), self.size
        keys = [f"normgen/{rank}" for rank in range(size)]
        seconds = float(os.environ.get("NORMGEN_RANKS_TIMEOUT", _SECONDS))
        store.set(keys[self.rank], "here")
        try:
            store.wait(keys, timedelta(seconds=seconds))
        except RuntimeError as fault:
            missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            raise PeerFault(
                f"{what}: rank {', '.join(missing)} made no call within {seconds:g} s: {CURE}, or give them "
                f"more time by NORMGEN_RANKS_TIMEOUT"
            ) from fault
        self._have_met = True

    def gather(self, array: Any) -> Any:
        """What all ranks give, of the same shape and type: an array of NumPy or a tensor, and so the result.
        `PeerFault` where a rank is gone, or comes too late for the time-out of the group."""
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

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        made = tensor.new_empty(self.size * tensor.numel())
        if tensor.numel():
            with self._meeting():
                private.all_gather(made, tensor.reshape(-1), group=self.group)
        return made.view(self.size, *tensor.shape)

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


class TensorMemory:
    """Tensors on a device, for what ranks tell each other."""

    def __init__(self, device: torch.device) -> None:
        self.device: DeviceKey = HOST if device.type == "cpu" else (device.type, device.index or 0)
        self._device = device

    def zeros(self, size: int) -> Any:
        """So many floats, of 0."""
        return torch.zeros(size, dtype=torch.float32, device=self._device)

    def numbers(self, values: Sequence[float]) -> Any:
        """Floats of these values, which take no copy from the host: a CUDA graph could not have one."""
        made = [torch.full((1,), value, dtype=torch.float32, device=self._device) for value in values]
        return torch.cat(made)

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
