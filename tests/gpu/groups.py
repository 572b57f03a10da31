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
    Group("checks", ("tests/verify/test_gpu.py",), 5, 80, torch=False),
    Group(
        "runtime",
        ("tests/runtime/test_gpu.py", "tests/runtime/test_interop_gpu.py", "tests/autograd/test_gpu.py"),
        2,
        100,
        torch=False,
    ),
    Group("queues", ("tests/gpu/test_queues.py",), 6, 100),
    Group("graphs", ("tests/gpu/test_graphs.py",), 6, 100),
    Group("sequences", ("tests/gpu/test_sequences.py",), 8, 90),
    Group("threads", ("tests/gpu/test_threads.py",), 3, 90),
    Group("streams", ("tests/gpu/test_streams.py",), 4, 90),
    Group("modes", ("tests/gpu/test_modes.py",), 4, 110),
    Group("leaks", ("tests/gpu/test_leaks.py",), 2, 80),
    Group("statistics", ("tests/gpu/test_statistics.py",), 2, 60),
    Group("torch", ("tests/torch/test_gpu.py", "tests/gpu/test_torch_modules.py"), 4, 110),
    Group("large", ("tests/gpu/test_large.py",), 1, 40, alone=True),
    Group("measure", ("tests/measure/test_gpu.py",), 1, 20, torch=False, alone=True),
    Group("host-times", ("tests/gpu/test_host_times.py",), 1, 20, alone=True),
)
