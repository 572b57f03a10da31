"""Peer memory between processes on CPUs: what they share are files, and kernels are those of the
host. All else is as on GPUs."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from normgen.launching.launch import HOST
from normgen.torch.ranks.transport import TRANSPORTS


class HostTransport:
    """The memory of a process."""

    key = HOST

    def __init__(self, device, folder):
        self.device, self._folder, self._paths = device, folder, []

    def lacks(self):
        return ""

    def name(self):
        return str(dist.get_rank())

    def unreachable(self, names):
        return None

    def memory(self, words, mark):
        path = Path(f"{self._folder}.{dist.get_rank()}.{mark}")
        with open(path, "wb") as file:
            file.truncate(8 * (words + 1))
        own = self._memory(path, words + 1)
        own[-1] = mark
        self._paths.append(path)
        return own

    def peers(self, own, group):
        paths = [None] * dist.get_world_size(group)
        dist.all_gather_object(paths, self._paths[-1], group)
        return [self._memory(path, len(own)) for path in paths], None

    @staticmethod
    def _memory(path, words):
        return torch.from_file(str(path), shared=True, size=words, dtype=torch.int64, device="cpu")

    def record(self):
        return torch.zeros(1, dtype=torch.int64, device="cpu")

    def stream(self):
        return 0

    def capture(self, stream):
        return 0

    def follower(self):
        return lambda: None


def register(folder):
    """Let tensors on CPUs be exchanged by words. `folder`: where files begin."""
    TRANSPORTS["cpu"] = lambda device: HostTransport(device, folder)
