"""What cuda-bindings alone does: launches with attributes on foreign streams, contexts without PyCUDA."""

from __future__ import annotations

from tests.fakes.machine import Machine
from tests.runtime.test_launchers import ARGUMENTS, PRELUDE, launches


def test_a_launch_may_start_early_where_the_device_lets_it(bindings_machine: Machine) -> None:
    code = """
    from normgen.devices.cuda.cuda_bindings import CudaBindingsDriver
    executor = CudaExecutor(0)
    assert not CudaExecutor(0, CudaBindingsDriver(programmatic=False)).device.programmatic
    print(executor.device.programmatic)
    function = executor.function("text", "kernel", 0)
    for programmatic in (executor.device.programmatic, False):
        executor.launch(function, launch_of(2048, 1, programmatic), packed, (), 0xabc0)
    """
    assert bindings_machine.check(PRELUDE + code) == "True\n"
    plain = f"launch kernel grid 3,1,1 block 64,1,1 shared 2048 stream 0xabc0 in primary0 args {ARGUMENTS}"
    # 6 is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert launches(bindings_machine) == [f"{plain} attribute 6=1", plain]
    assert bindings_machine.check(PRELUDE + code, FAKE_CUDA_MAJOR="8") == "False\n"


def test_the_context_of_another_library_is_used(bindings_machine: Machine) -> None:
    """By a driver that is chosen by name. A context at an old one's address is not taken for it."""
    code = """
    import ctypes, normgen
    library, made = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    sys.modules["pycuda"] = None
    normgen.use_driver("cuda-bindings")
    driver = cuda.default_driver()
    def run(context):
        executor = cuda.executor_of(cuda.device_key(context))
        executor.launch(executor.function("text", "kernel", 0), launch_of(), packed)
    assert driver.name == "cuda-bindings" and driver.current() is None
    run(driver.primary(0))
    library.cuCtxCreate_v2(ctypes.byref(made), 0, 0)
    context = driver.current()
    assert context is driver.current() and not context.primary
    run(context)
    ctypes.c_int.from_address(made.value + 12).value += 1  # the recorder's number of the context
    assert driver.current() is not context
    library.cuCtxSetCurrent(ctypes.c_void_p(int(driver.primary(0).handle)))
    assert driver.current() is driver.primary(0)
    """
    bindings_machine.check(PRELUDE + code, NORMGEN_LAUNCHER="pycuda")
    found = [line.split(" in ")[1].split()[0] for line in launches(bindings_machine)]
    assert found == ["primary0", "own0"]
    assert bindings_machine.log[-1].startswith("release")
