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
    Group("checks", ("tests/verify/test_gpu.py",), 6, 90, torch=False),
    Group(
        "runtime",
        ("tests/runtime/test_gpu.py", "tests/runtime/test_interop_gpu.py", "tests/autograd/test_gpu.py"),
        2,
        100,
        torch=False,
    ),
    Group("queues", ("tests/gpu/test_queues.py",), 6, 110),
    Group("graphs", ("tests/gpu/test_graphs.py",), 6, 110),
    Group("sequences", ("tests/gpu/test_sequences.py",), 8, 90),
    Group("torch", ("tests/torch/test_gpu.py", "tests/gpu/test_torch_modules.py"), 4, 110),
    Group("measure", ("tests/measure/test_gpu.py",), 1, 40, torch=False, alone=True),
)
