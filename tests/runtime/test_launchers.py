"""The CUDA executor on the real launchers, over a libcuda that records and an nvcc that is a script."""

from __future__ import annotations

import struct

import pytest

from normgen.errors import DeviceMissing, NoDevice, ToolchainMissing
from tests.fakes.machine import Machine

PACKED = struct.pack("PPi", 0x1234, 0, 7)
PRELUDE = """
    import struct, sys, threading
    from normgen.devices.cuda import executor as cuda
    from normgen.devices.cuda.executor import CudaExecutor
    from normgen.errors import *
    from normgen.launching.launch import Launch
    def launch_of(shared=0, cluster=1, programmatic=False):
        size = (3, 1, 1), (64, 1, 1), shared
        return Launch("text", "kernel", *size, "PPi", (), (), (), cluster, programmatic)
    packed = struct.pack("PPi", 0x1234, 0, 7)
"""
ARGUMENTS = PACKED.hex()


def launches(machine: Machine) -> list[str]:
    return [line for line in machine.log if line.startswith("launch")]


def test_a_kernel_is_compiled_loaded_and_launched(machine: Machine) -> None:
    code = """
    executor = CudaExecutor(0)
    print(executor.device)
    function = executor.function("text", "kernel", 100_000)
    print(function.report)
    executor.launch(function, launch_of(100_000, 16), packed)
    import ctypes
    current = ctypes.c_void_p()
    libcuda = ctypes.CDLL("libcuda.so.1")
    libcuda.cuCtxPopCurrent_v2(ctypes.byref(current))
    libcuda.cuCtxGetCurrent(ctypes.byref(current))
    print(current.value)
    """
    output = machine.check(PRELUDE + code)
    assert "name='Recorder 0', arch='sm_90', multiprocessors=132, shared_per_block=232448" in output
    assert "shared_per_multiprocessor=233472, registers_per_multiprocessor=65536" in output
    assert "registers=40, local=16, shared=512, threads=1024" in output
    assert output.endswith("None\n")  # a thread without a context keeps the primary one, and nothing else
    (compiled,) = machine.compiles
    assert compiled.startswith("--cubin -O3 -std=c++17") and "-arch sm_90" in compiled
    log = "\n".join(machine.log)
    assert "attribute kernel 8=100000\nattribute kernel 14=1\n" in log
    assert launches(machine) == [
        f"launch kernel grid 3,1,1 block 64,1,1 shared 100000 stream (nil) in primary0 args {ARGUMENTS}"
    ]
    # Modules go before the context.
    ends = [line.split()[0] for line in machine.log if line.startswith(("unload", "release"))]
    assert ends == ["unload", "release"]
    machine.check(PRELUDE + code)
    assert len(machine.compiles) == 1, "a second process compiles nothing"
    machine.nvcc(version="nvcc: recorder, V14")
    machine.check(PRELUDE + code)
    assert len(machine.compiles) == 2


def test_a_launch_may_start_early_where_the_device_lets_it(machine: Machine) -> None:
    """On anyone's stream."""
    code = """
    executor = CudaExecutor(0)
    unwilling = type(executor.driver)(programmatic=False)
    if unwilling.name != "pycuda":  # which has one object for a context, and lets go of it with that
        assert not CudaExecutor(0, unwilling).device.programmatic
    print(executor.device.programmatic)
    function = executor.function("text", "kernel", 0)
    for programmatic in (executor.device.programmatic, False):
        executor.launch(function, launch_of(2048, 1, programmatic), packed, (), 0xabc0)
    """
    assert machine.check(PRELUDE + code) == "True\n"
    plain = f"launch kernel grid 3,1,1 block 64,1,1 shared 2048 stream 0xabc0 in primary0 args {ARGUMENTS}"
    # 6 is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert launches(machine) == [f"{plain} attribute 6=1", plain]
    assert machine.check(PRELUDE + code, FAKE_CUDA_MAJOR="8") == "False\n"


def test_threads_children_and_launches_that_are_held(machine: Machine) -> None:
    """Threads that never saw CUDA launch, a forked child is told why it cannot, and who still holds a launch
    keeps no module."""
    code = """
    import os
    executor = CudaExecutor(1)
    function = executor.function("text", "kernel", 0)
    def work():
        for stream in (0, 0xabc0):
            executor.launch(function, launch_of(), packed, (), stream)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    child = os.fork()
    if not child:
        try:
            executor.context.allocate(1 << 50)
        except DriverError as fault:
            print(fault, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    fire = executor.prepare(function, launch_of())
    executor.close()
    executor.context.mark()
    try:
        fire(packed, (), 0)
    except AttributeError:
        print("gone")
    """
    said = machine.check(PRELUDE + code, devices=2)
    assert "forked" in said and said.endswith("\ngone\n")
    assert len(launches(machine)) == 8 and all("in primary1" in line for line in launches(machine))
    ends = [line.split()[0] for line in machine.log if line.startswith(("unload", "record", "release"))]
    assert ends == ["unload", "record", "release"]


def test_memory_marks_and_streams(machine: Machine) -> None:
    """Memory is freed wherever its last owner dies. The default stream may not be asked about while another
    is captured, and counts as one that is."""
    code = """
    driver, context = cuda.default_driver(), CudaExecutor(0).context
    held = [context.allocate(100), context.allocate(0)]
    thread = threading.Thread(target=held.clear)
    thread.start(); thread.join()
    kept = context.allocate(300)
    context.copy_in(kept.pointer, bytes(range(100)))
    back = bytearray(100)
    context.copy_out(back, kept.pointer)
    assert back == bytes(range(100))
    context.fill_zero(kept.pointer, 50, 0x50)
    context.copy_out(back, kept.pointer)
    assert back == bytes(50) + bytes(range(50, 100))
    context.synchronize()
    second = driver.primary(1).allocate(64)
    assert driver.device_of(second.pointer) == 1 and driver.device_of(0) == 0
    begin, end = context.mark(), context.mark()
    assert context.passed(end) and context.microseconds(begin, end) == 250
    assert context.device.cache == 60 << 20
    assert [context.name_of(stream) for stream in (0x50, 0xca97, 0)] == [1000 + 0x50, None, None]
    assert [context.capture(stream) for stream in (0x50, 0xca97)] == [0, 77]
    context.finish(0x50)
    driver.primary(1).wait(0x20, 0x10)
    try:
        context.allocate(1 << 50)
    except DriverError as error:
        print(error)
    """
    assert machine.check(PRELUDE + code, devices=2).startswith("CUDA: cuMemAlloc failed")
    freed = [line for line in machine.log if line.startswith("free")]
    assert {"free 1 in primary0", "free 100 in primary0"} <= set(freed)
    assert [line for line in machine.log if line.startswith("finish")] == ["finish stream 0x50"]
    assert "record 0x10\nwait 0x20" in "\n".join(machine.log)


def test_the_compiler_fails(machine: Machine) -> None:
    code = """
    for mode in ("fail", "killed"):
        open(nvcc + "mode", "w").write(mode)
        try:
            CudaExecutor(0).function(f"the text\\n{mode}", "kernel", 0)
        except CompileError as error:
            print(str(error).replace("\\n", " "))
            text = open(error.source_path).read()
            assert "the text" in text and "\\n// " in text
    """
    where = f"    nvcc = {str(machine.root / 'cuda' / 'bin')!r} + '/'\n"
    fails, killed = machine.check(PRELUDE + where + code).splitlines()
    for line, complaint in ((fails, "identifier"), (killed, "nvcc wrote nothing")):
        assert line.startswith("internal error: generated code does not compile (kept as ")
        assert complaint in line
    assert not [p for p in (machine.root / "cache").rglob("*.cubin*") if p.is_file() and p.suffix != ".lock"]
    kept = (machine.root / "tmp").iterdir()  # and no temporary directory beside it
    assert {path.suffix for path in kept} == {".cu"}


NOWHERE = {"CUDA_HOME": "/nonexistent", "PATH": "/nonexistent", "HIDE": "everything"}
FAULTS = {
    "no device": ({"devices": 0}, NoDevice, "the CUDA driver finds no device"),
    "no library": ({"LD_LIBRARY_PATH": ""}, NoDevice, "no CUDA driver is found"),
    "no package": ({"HIDE": "package"}, DeviceMissing, "pip install"),
    "no such device": ({"INDEX": "3"}, DeviceMissing, "no CUDA device 3: the number of devices is 1"),
    "no nvcc": (NOWHERE, ToolchainMissing, "needs nvcc"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_pycuda_lacks_is_said_in_one_line(pycuda_machine: Machine, fault: str) -> None:
    """Of cuda-bindings the doctor says it."""
    code = """
    import os, shutil
    hidden = os.environ.get("HIDE", "")
    if hidden == "package":
        sys.modules |= {"pycuda": None, "cuda.bindings": None}
    elif hidden:
        shutil.which = lambda *_, **__: None
    try:
        CudaExecutor(int(os.environ.get("INDEX", 0))).function("text", "kernel", 0)
    except MachineError as error:
        print(type(error).__name__, error.exit_code, error)
    """
    environment, kind, text = FAULTS[fault]
    output = pycuda_machine.check(PRELUDE + code, **environment)  # type: ignore[arg-type]
    assert output.startswith(f"{kind.__name__} {kind.exit_code} ") and text in output  # type: ignore[attr-defined]
    assert output.count("\n") == 1
