"""Devices that can store into the memory of their peers, by PyTorch's symmetric memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from normgen.devices.executors import executor_of
from normgen.launching.launch import DeviceKey
from normgen.torch import private


class Transport(Protocol):
    """The device of one rank."""

    key: DeviceKey
    device: torch.device

    def lacks(self) -> str:
        """What it lacks to exchange words, in words; empty where it lacks nothing."""

    def name(self) -> str:
        """What tells it from the devices of other ranks of the node."""

    def unreachable(self, names: Sequence[str]) -> int | None:
        """The first rank whose memory it cannot reach. `names`: of all devices."""

    def memory(self, words: int, mark: int) -> torch.Tensor:
        """So many words of 8 bytes that peers can have in their memory, which are 0 by now, and a mark behind
        them."""

    def peers(self, own: torch.Tensor, group: Any) -> tuple[list[torch.Tensor], Any]:
        """Such memory of all ranks, and what keeps it. All ranks of the group call it together."""

    def record(self) -> torch.Tensor:
        """A number of 8 bytes that kernels write, and the host reads without waiting for them."""

    def stream(self) -> int:
        """The handle of the stream that calls are made on now."""

    def capture(self, stream: int) -> int:
        """A number that tells the capture of a CUDA graph by a stream from others; 0 where there is none."""

    def follower(self) -> Callable[[], None]:
        """What makes the stream that is current then wait for the one that is current now."""


class CudaTransport:
    """A GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.key: DeviceKey = ("cuda", device.index or 0)

    def lacks(self) -> str:
        """What it lacks to exchange words, in words; empty where it lacks nothing."""
        has_all = private.has_symmetric_memory() and private.name_of_gpu(self.device)
        return "" if has_all else "its PyTorch has no symmetric memory"

    def name(self) -> str:
        """What tells it from the devices of other ranks of the node."""
        return private.name_of_gpu(self.device)

    def unreachable(self, names: Sequence[str]) -> int | None:
        """The first rank whose memory it cannot reach. `names`: of all devices."""
        seen = {private.name_of_gpu(index): index for index in range(torch.cuda.device_count())}
        own = self.key[1]
        for rank, name in enumerate(names):
            index = seen.get(name)
            if index is None or (index != own and not torch.cuda.can_device_access_peer(own, index)):
                return rank
        return None

    def memory(self, words: int, mark: int) -> torch.Tensor:
        """So many words of 8 bytes that peers can have in their memory, which are 0 by now, and a mark behind
        them."""
        made = private.symmetric_words(words + 1, self.device).zero_()
        made[-1] = mark
        torch.cuda.synchronize(self.device)
        return made

    def peers(self, own: torch.Tensor, group: Any) -> tuple[list[torch.Tensor], Any]:
        """Such memory of all ranks, and what keeps it. All ranks of the group call it together."""
        return private.symmetric_peers(own, group)

    def record(self) -> torch.Tensor:
        """A number of 8 bytes that kernels write, and the host reads without waiting for them."""
        return torch.zeros(1, dtype=torch.int64, device="cpu", pin_memory=True)

    def stream(self) -> int:
        """The handle of the stream that calls are made on now."""
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def capture(self, stream: int) -> int:
        """A number that tells the capture of a CUDA graph by a stream from others; 0 where there is none."""
        if not private.is_capturing():
            return 0
        executor: Any = executor_of(self.key)
        return int(executor.context.capture(stream))

    def follower(self) -> Callable[[], None]:
        """What makes the stream that is current then wait for the one that is current now."""
        before = torch.cuda.current_stream(self.device)
        return lambda: torch.cuda.current_stream(self.device).wait_stream(before)


# By the type of a device.
TRANSPORTS: dict[str, Callable[[torch.device], Transport]] = {"cuda": CudaTransport}
