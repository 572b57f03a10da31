"""The CUDA executor on the real PyCUDA, over a libcuda that records and an nvcc that is a script."""

from __future__ import annotations

import pytest

from tests.fakes.machine import Machine
from tests.runtime.test_launchers import PRELUDE, launches


def test_what_a_thread_that_is_gone_made_is_taken_down_too(pycuda_machine: Machine) -> None:
    code = """
    thread = threading.Thread(target=lambda: globals().update(kept=cuda.executor_of(("cuda", 0))))
    thread.start(); thread.join()
    kept.launch(kept.function("text", "kernel", 0), launch_of(), packed, (), 0xabc0)
    """
    pycuda_machine.check(PRELUDE + code)
    assert pycuda_machine.log[-1] == "unload in primary0"


@pytest.mark.parametrize("first", ["autoinit", "ours"])
def test_pycuda_s_own_context_is_used_and_survives_exit(pycuda_machine: Machine, first: str) -> None:
    before, after = ("import pycuda.autoinit", "") if first == "autoinit" else ("", "import pycuda.autoinit")
    code = f"""
    {before}
    primary = CudaExecutor(0)
    {after}
    context = cuda.default_driver().current()
    assert context is cuda.default_driver().current() and not context.primary
    key = cuda.device_key(context)
    executor = cuda.executor_of(key)
    for runner in (executor, primary, executor):
        runner.launch(runner.function("text", "kernel", 0), launch_of(), packed, (), 0xabc0)
    assert len({{id(executor.function("text", "kernel", 0)), id(primary.function("text", "kernel", 0))}}) == 2
    """
    pycuda_machine.check(PRELUDE + code)
    places = [line.split(" in ")[1].split()[0] for line in launches(pycuda_machine)]
    assert places == ["own0", "primary0", "own0"]
    ends = sorted(line for line in pycuda_machine.log if line.startswith(("unload", "detach", "release")))
    assert ends == ["detach own0", "release 0", "unload in own0", "unload in primary0"]


def test_a_context_like_an_old_one_is_not_taken_for_it(pycuda_machine: Machine) -> None:
    code = """
    import pycuda.driver as api
    api.init()
    for _ in range(3):
        made = api.Device(0).make_context()
        context = cuda.default_driver().current()
        executor = cuda.executor_of(cuda.device_key(context))
        executor.launch(executor.function("text", "kernel", 0), launch_of(), packed)
        api.Context.pop()
        made.detach()
    """
    pycuda_machine.check(PRELUDE + code)
    assert len([line for line in pycuda_machine.log if line.startswith("load")]) == 3
    assert all("in own0 " in line for line in launches(pycuda_machine))
