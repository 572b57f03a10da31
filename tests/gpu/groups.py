"""What `make test-gpu` runs: groups of tests, each with the time that it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Tests that are reported together.

    `processes`: how many share them; each has `seconds`, or its part of what time there is, after which what
    has not begun is told as not run. `torch`: they call from PyTorch, and so want what is compiled for it.
    `alone`: nothing runs beside them. `nvrtc`: they are about no compiler, and take the quicker one.
    """

    name: str
    files: tuple[str, ...]
    processes: int
    seconds: int
    torch: bool = True
    alone: bool = False
    nvrtc: bool = True


# Those that do without PyTorch begin, while what it calls through is built; then the most telling ones.
GROUPS = (
    Group(
        "runtime",
        (
            "tests/runtime/test_gpu.py",
            "tests/runtime/test_interop_gpu.py",
            "tests/autograd/test_gpu.py",
            "tests/gpu/test_device_functions.py",
        ),
        2,
        110,
        torch=False,
        nvrtc=False,
    ),
    Group("checks", ("tests/verify/test_gpu.py",), 12, 180, torch=False, nvrtc=False),
    Group("graphs", ("tests/gpu/test_graphs.py",), 6, 130),
    Group("modes", ("tests/gpu/test_modes.py",), 6, 130),
    Group("queues", ("tests/gpu/test_queues.py",), 6, 130),
    Group("threads", ("tests/gpu/test_threads.py",), 2, 100),
    Group("streams", ("tests/gpu/test_streams.py",), 3, 100),
    Group("sequences", ("tests/gpu/test_sequences.py",), 8, 130, nvrtc=False),
    Group("statistics", ("tests/gpu/test_statistics.py",), 2, 60),
    Group("leaks", ("tests/gpu/test_leaks.py",), 2, 100),
    Group("torch", ("tests/torch/test_gpu.py", "tests/gpu/test_torch_modules.py"), 4, 110),
    Group("large", ("tests/gpu/test_large.py",), 1, 60, alone=True),
    Group("measure", ("tests/measure/test_gpu.py",), 1, 15, torch=False, alone=True),
    Group("host-times", ("tests/gpu/test_host_times.py",), 1, 20, alone=True),
)
