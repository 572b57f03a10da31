"""Takes the synchronisation out of a kernel text, one statement at a time.

Each statement left out must be reported by the checked run, or it is superfluous, or it never ran. A trap in
its place tells which. All of them share one compilation: each statement looks up whether it is the one.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from itertools import count

from normgen.devices.host.executor import HostExecutor
from normgen.devices.host.load import HostFunction
from normgen.launching.machine import HOST_MACHINE, Machine
from normgen.package.device_functions import inlined

_NAMES = (
    "__syncthreads __syncwarp __threadfence normgen_acquire normgen_release normgen_async_wait"
    " normgen_named_barrier normgen_cluster_arrive normgen_cluster_wait normgen_open_arrivals"
    " normgen_arrivals_fence normgen_expect normgen_await_sent normgen_bulk_wait"
)
_SYNCHRONISATION = re.compile(
    rf"(?:\b(?:{'|'.join(_NAMES.split())})|async_wait<[^<>;]*>|\b\w+\.sync)\s*\((?:[^()]|\([^()]*\))*\)\s*;"
)
_ALTERED = 'extern "C" __attribute__((visibility("default"))) int normgen_altered = 0;\n#line 1\n'


def barrier_lines(source: str) -> list[int]:
    """The line (from 1) of each barrier, fence or wait statement."""
    return [source.count("\n", 0, found.start()) + 1 for found in _SYNCHRONISATION.finditer(source)]


def alterable(source: str) -> str:
    """The text with statement n (from 1) left out where `normgen_altered` is n, and a trap where it is -n."""
    numbers = count(1)

    def switched(found: re.Match[str]) -> str:
        number, call = next(numbers), found[0].rstrip("; \n")
        end = found[0][len(call) :]
        return (
            f"(normgen_altered == {number} ? void() : normgen_altered == -{number} ? __trap() : {call}){end}"
        )

    return _ALTERED + _SYNCHRONISATION.sub(switched, source)


class Altered(HostExecutor):
    """Checks launches on a device of any kind, and remembers their texts.

    In the place of `text` it runs `instead`, or the same text with the statement `without` (from 1) left out,
    or with a trap in the place of statement `trap`.
    """

    def __init__(
        self,
        device: Machine = HOST_MACHINE,
        order: int = 0,
        text: str = "",
        *,
        instead: str = "",
        without: int = 0,
        trap: int = 0,
        seed: int = 0,
        maximum_seconds: float = 2,
    ) -> None:
        super().__init__(True, order, seed, maximum_seconds=maximum_seconds)
        self._device, self._text, self._instead = device, text, instead
        self._altered = without or -trap
        self.texts: dict[str, str] = {}

    @property
    def device(self) -> Machine:
        return self._device

    def function(self, source: str, entry: str, shared: int) -> HostFunction:
        source = inlined(source)
        self.texts[entry] = source
        if source != self._text:
            return super().function(source, entry, shared)
        if self._instead:
            return super().function(self._instead, entry, shared)
        function = super().function(alterable(source), entry, shared)
        library = ctypes.CDLL(str(function.library))
        ctypes.c_int.in_dll(library, "normgen_altered").value = self._altered
        return replace(function, source=source)  # whose lines a report quotes
