"""The CUDA executor on the real PyCUDA, over a libcuda that records and an nvcc that is a script."""

from __future__ import annotations

import pytest

from tests.fakes.machine import Machine
from tests.runtime.test_launchers import PRELUDE, launches


def test_pycuda_launches_on_foreign_streams(pycuda_machine: Machine) -> None:
    code = """
    executor = CudaExecutor(0)
    function = executor.function("text", "kernel", 0)
    (relay,) = executor.context._relays
    assert relay.cell is not None, "the layout of PyCUDA's streams is not as known"
    for cell in (relay.cell, None):
        relay.cell = cell
        for stream in (0xabc0, 0, 0xdef0):
            executor.launch(function, launch_of(), packed, (), stream)
            assert relay.stream.handle == relay.own
    print(hex(relay.own))
    """
    own = pycuda_machine.check(PRELUDE + code).strip()
    said = [line.split(" in ")[0].split()[-1] for line in launches(pycuda_machine)]
    assert said == ["0xabc0", "(nil)", "0xdef0", own, "(nil)", own]
    # Without that trick events tie a stream of PyCUDA's own to the caller's, before and after.
    order = [line.split(" grid")[0] for line in pycuda_machine.log]
    order = [line for line in order if line.split()[0] in ("record", "wait", "launch")]
    around = ["record 0xabc0", f"wait {own}", "launch kernel", f"record {own}", "wait 0xabc0"]
    assert order[3:9] == [*around, "launch kernel"]


def test_what_a_thread_that_is_gone_made_is_taken_down_too(pycuda_machine: Machine) -> None:
    code = """
    thread = threading.Thread(target=lambda: globals().update(kept=cuda.executor_of(("cuda", 0))))
    thread.start(); thread.join()
    kept.launch(kept.function("text", "kernel", 0), launch_of(), packed, (), 0xabc0)
    """
    pycuda_machine.check(PRELUDE + code)
    assert [line.split()[0] for line in pycuda_machine.log[-2:]] == ["unload", "unstream"]


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
