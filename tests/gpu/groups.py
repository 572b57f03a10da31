"""What `make test-gpu` runs: groups of tests, each with the time that it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Tests that are reported together.

    `processes`: how many share them; each has `seconds`, after which what has not begun is told as not run.
    `torch`: they call from PyTorch, and so want what is compiled for it. `alone`: nothing runs beside them.
    """

    name: str
    files: tuple[str, ...]
    processes: int
    seconds: int
    torch: bool = True
    alone: bool = False


GROUPS = (
    Group("sequences", ("tests/gpu/test_sequences.py",), 8, 70),
    Group("queues", ("tests/gpu/test_queues.py",), 6, 75),
    Group("graphs", ("tests/gpu/test_graphs.py",), 6, 75),
    Group("modes", ("tests/gpu/test_modes.py",), 4, 90),
    Group("threads", ("tests/gpu/test_threads.py",), 2, 70),
    Group("streams", ("tests/gpu/test_streams.py",), 3, 70),
    Group("leaks", ("tests/gpu/test_leaks.py",), 2, 60),
    Group("statistics", ("tests/gpu/test_statistics.py",), 1, 70),
    Group("torch", ("tests/torch/test_gpu.py", "tests/gpu/test_torch_modules.py"), 4, 65),
    Group(
        "runtime",
        ("tests/runtime/test_gpu.py", "tests/runtime/test_interop_gpu.py", "tests/autograd/test_gpu.py"),
        2,
        80,
        torch=False,
    ),
    Group("checks", ("tests/verify/test_gpu.py",), 5, 60, torch=False),
    Group("large", ("tests/gpu/test_large.py",), 1, 30, alone=True),
    Group("measure", ("tests/measure/test_gpu.py",), 1, 15, torch=False, alone=True),
    Group("host-times", ("tests/gpu/test_host_times.py",), 1, 15, alone=True),
)
