"""What `make test-gpu` runs: groups of tests, each with the time that it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Tests that are reported together.

    `processes`: how many share them. `seconds`: what each of these needs, by which they share the time that
    there is; what has not begun then is told as not run. `torch`: they call from PyTorch, and so want what is
    compiled for it. `alone`: nothing runs beside them, for so many seconds. `nvrtc`: they are about no
    compiler, and take the quicker one.
    """

    name: str
    files: tuple[str, ...]
    processes: int
    seconds: int
    torch: bool = True
    alone: bool = False
    nvrtc: bool = True


# Those that do without PyTorch begin, while what it calls through is built; then the most telling ones. Those
# of which there can always be more come last: they get the time that others leave.
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
    Group("compilers", ("tests/verify/test_gpu_compilers.py",), 12, 60, torch=False, nvrtc=False),
    # Thousands of kernels, for which nvcc has not the time.
    Group("checks", ("tests/verify/test_gpu.py",), 16, 150, torch=False),
    Group("graphs", ("tests/gpu/test_graphs.py",), 6, 130),
    Group("modes", ("tests/gpu/test_modes.py",), 6, 90),
    Group("queues", ("tests/gpu/test_queues.py",), 6, 90),
    Group("threads", ("tests/gpu/test_threads.py",), 2, 80),
    Group("streams", ("tests/gpu/test_streams.py",), 3, 80),
    Group("statistics", ("tests/gpu/test_statistics.py",), 2, 50),
    Group("leaks", ("tests/gpu/test_leaks.py",), 2, 90),
    Group(
        "torch",
        ("tests/torch/test_gpu.py", "tests/gpu/test_torch_modules.py", "tests/torch/test_prelude.py"),
        4,
        85,
    ),
    Group("sequences", ("tests/gpu/test_sequences.py",), 12, 100),
    Group("large", ("tests/gpu/test_large.py",), 1, 70, alone=True),
    Group("measure", ("tests/measure/test_gpu.py",), 1, 15, torch=False, alone=True),
    Group("host-times", ("tests/gpu/test_host_times.py",), 1, 20, alone=True),
)
