"""The CUDA executor on the real PyCUDA, over a libcuda that records and an nvcc that is a script."""

from __future__ import annotations

import pytest

from tests.fakes.machine import Machine
from tests.runtime.test_launchers import ARGUMENTS, PRELUDE, launches


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


SEEN = """
    import pycuda.compiler, pycuda.driver as api
    from normgen import arrays
    seen = []
    def see(owner, name, tell):
        usual = getattr(owner, name)
        def seeing(*given, **named):
            seen.append(tell(*given, **named))
            return usual(*given, **named)
        setattr(owner, name, seeing)
    see(pycuda.compiler.SourceModule, "__init__", lambda self, text, **named:
        f"SourceModule {text} {named['arch']} {named['no_extern_c']} {' '.join(named['options'])}")
    see(pycuda.compiler, "compile", lambda *given, **named: "compile")
    see(api.Function, "prepared_async_call", lambda self, grid, block, stream, *given, **named:
        f"Function {grid} {block} {stream and stream.handle} {len(given[0])} {named}")
"""
SOURCE_MODULE = "SourceModule text sm_90 True -O3 -std=c++17 -Wno-deprecated-gpu-targets"


def test_a_source_module_compiles_and_its_function_launches(pycuda_machine: Machine) -> None:
    """On the default stream and on those of PyCUDA. The driver launches the same function where there is only
    a handle of a stream, or of the function. What was compiled once is loaded by PyCUDA too."""
    code = """
    executor = CudaExecutor(0)
    function = executor.function("text", "kernel", 100_000)
    executor.context.settle()
    with executor.context:
        own = api.Stream()
    stream = arrays.stream_handle(own)
    assert stream == own.handle and arrays.stream_handle(own.handle) == stream
    for each in (0, stream, own.handle, 0xabc0):
        executor.launch(function, launch_of(64, 1, True), packed, (), each)
    handle = function.handle.address
    thread = threading.Thread(target=lambda: executor.launch(function, launch_of(), packed, (), 0xabc0))
    thread.start(); thread.join()
    assert handle and handle == function.handle.address
    print(own.handle, *seen, sep="\\n")
    with executor.context:
        del own, stream, each
    """
    stream, *seen = pycuda_machine.check(PRELUDE + SEEN + code).splitlines()
    call = "Function (3, 1, 1) (64, 1, 1) {} 20 {{'shared_size': 64}}"
    # The last makes the node that tells the function's handle.
    assert seen[:4] == [SOURCE_MODULE, "compile", call.format(None), call.format(stream)]
    assert len(seen) == 5 and seen[4].startswith("Function (3, 1, 1)")
    plain = f"launch kernel grid 3,1,1 block 64,1,1 shared 64 stream {{}} in primary0 args {ARGUMENTS}"
    handle, early = hex(int(stream)), " attribute 6=1"
    assert launches(pycuda_machine) == [
        plain.format("(nil)"),
        plain.format(handle),
        plain.format(handle) + early,
        plain.format("0xabc0") + early,
        plain.format("0xabc0").replace("shared 64", "shared 0"),
    ]
    assert sum(line.startswith("load") for line in pycuda_machine.log) == 1
    again = pycuda_machine.check(PRELUDE + SEEN + code).splitlines()[1:]
    assert [each.split()[0] for each in again] == ["Function"] * 3, "nothing is compiled"


def test_what_pycuda_compiles_otherwise(pycuda_machine: Machine) -> None:
    """A kernel that spills goes the same way again, and its first module goes. A text that is not loaded is
    only compiled. Nothing is missing where PyCUDA is told to keep nothing."""
    code = """
    from normgen.devices.cuda import spills
    sizes = iter([200, 8])
    spills.stack_of = lambda binary: next(sizes, 0)
    spilling = "constexpr int MIN_BLOCKS = 2;\\n#include <cuda_fp16.h>"
    executor = CudaExecutor(0)
    thread = threading.Thread(target=lambda: executor.function(spilling, "kernel", 0))
    thread.start(); thread.join()
    executor.binary("another text")
    print(*seen, sep="\\n")
    """
    seen = pycuda_machine.check(PRELUDE + SEEN + code).splitlines()
    head = "SourceModule constexpr int MIN_BLOCKS = {};"
    assert [seen[0], seen[3], seen[6:]] == [head.format(2), head.format(1), ["compile"]]
    assert not [line for line in pycuda_machine.compiles if "--preprocess" in line]
    ends = [line.split()[0] for line in pycuda_machine.log if "load in" in line]
    assert ends == ["load", "load", "unload", "unload"]
    code = """
    CudaExecutor(0).function("a third text", "kernel", 0)
    """
    pycuda_machine.check(PRELUDE + code, PYCUDA_DISABLE_CACHE="1")
    compiled = len(pycuda_machine.compiles)
    pycuda_machine.check(PRELUDE + code)
    assert len(pycuda_machine.compiles) == compiled
