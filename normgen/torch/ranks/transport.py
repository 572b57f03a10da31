"""Devices that can store into the memory of their peers, by PyTorch's symmetric memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from normgen.devices.executors import executor_of
from normgen.launching.launch import DeviceKey
from normgen.torch import private


class CudaTransport:
    """The GPU of one rank."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.key: DeviceKey = ("cuda", device.index or 0)

    def lacks(self) -> str:
        """What it lacks to use peer memory, for messages; empty if it lacks nothing."""
        has_all = private.has_symmetric_memory() and private.name_of_gpu(self.device)
        return "" if has_all else "its PyTorch has no symmetric memory"

    def name(self) -> str:
        """A name that no other device of the node has."""
        return private.name_of_gpu(self.device)

    def unreachable(self, names: Sequence[str]) -> int | None:
        """The first rank whose memory it cannot access. `names`: of the devices of all ranks."""
        seen = {private.name_of_gpu(index): index for index in range(torch.cuda.device_count())}
        own = self.key[1]
        for rank, name in enumerate(names):
            index = seen.get(name)
            if index is None or (index != own and not torch.cuda.can_device_access_peer(own, index)):
                return rank
        return None

    def memory(self, words: int, mark: int) -> torch.Tensor:
        """Memory that peers can map: so many words of 8 bytes, all zero, followed by a mark."""
        made = private.symmetric_words(words + 1, self.device).zero_()
        made[-1] = mark
        torch.cuda.synchronize(self.device)
        return made

    def peers(self, own: torch.Tensor, group: Any) -> tuple[list[torch.Tensor], Any]:
        """Such memory of all ranks, and what keeps it mapped. All ranks of the group call it together."""
        return private.symmetric_peers(own, group)

    def record(self) -> torch.Tensor:
        """8 bytes that kernels write and the host reads without waiting for them."""
        return torch.zeros(1, dtype=torch.int64, device="cpu", pin_memory=True)

    def stream(self) -> int:
        """The handle of the current stream."""
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def capture(self, stream: int) -> int:
        """The number of the CUDA graph capture of a stream; 0 if it is not capturing."""
        if not private.is_capturing():
            return 0
        executor: Any = executor_of(self.key)
        return int(executor.context.capture(stream))

    def follower(self) -> Callable[[], None]:
        """A function that makes the stream that is current when it is called wait for the current one."""
        before = torch.cuda.current_stream(self.device)
        return lambda: torch.cuda.current_stream(self.device).wait_stream(before)


# By the type of a device.
TRANSPORTS: dict[str, Callable[[torch.device], CudaTransport]] = {"cuda": CudaTransport}
