"""What cuda-bindings alone does: launches with attributes on foreign streams, contexts without PyCUDA."""

from __future__ import annotations

import pytest

from tests.fakes.machine import Machine
from tests.runtime.test_launchers import ARGUMENTS, PRELUDE, launches

# What another library does to contexts; PyCUDA is not there.
FOREIGN = (
    PRELUDE
    + """
    import ctypes
    library = ctypes.CDLL("libcuda.so.1")
    sys.modules["pycuda"] = None
    def make():
        made = ctypes.c_void_p()
        library.cuCtxCreate_v2(ctypes.byref(made), 0, 0)
        return made
    def run(context):
        executor = cuda.executor_of(cuda.device_key(context))
        executor.launch(executor.function("text", "kernel", 0), launch_of(), packed)
"""
)


@pytest.fixture
def machine(bindings_machine: Machine) -> Machine:
    return bindings_machine


def test_a_launch_may_start_early(machine: Machine) -> None:
    code = """
    executor = CudaExecutor(0)
    assert executor.device.programmatic
    function = executor.function("text", "kernel", 0)
    for programmatic in (True, False):
        executor.launch(function, launch_of(2048, 1, programmatic), packed, (), 0xabc0)
    """
    machine.check(PRELUDE + code)
    plain = f"launch kernel grid 3,1,1 block 64,1,1 shared 2048 stream 0xabc0 in primary0 args {ARGUMENTS}"
    # 6 is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert launches(machine) == [f"{plain} attribute 6=1", plain]


@pytest.mark.parametrize(("major", "wanted", "found"), [(9, True, True), (9, False, False), (8, True, False)])
def test_only_some_devices_may(machine: Machine, major: int, wanted: bool, found: bool) -> None:
    code = f"""
    from normgen.devices.cuda.cuda_bindings import CudaBindingsDriver
    print(CudaExecutor(0, CudaBindingsDriver(programmatic={wanted})).device.programmatic)
    """
    assert machine.check(PRELUDE + code, FAKE_CUDA_MAJOR=str(major)) == f"{found}\n"


def test_the_context_of_another_library_is_used(machine: Machine) -> None:
    code = """
    driver = cuda.default_driver()
    assert driver.current() is None
    run(driver.primary(0))
    make()
    context = driver.current()
    assert context is driver.current() and not context.primary
    run(context)
    library.cuCtxSetCurrent(ctypes.c_void_p(int(driver.primary(0).handle)))
    assert driver.current() is driver.primary(0)
    """
    machine.check(FOREIGN + code)
    assert [line.split(" in ")[1].split()[0] for line in launches(machine)] == ["primary0", "own0"]


def test_a_context_at_an_old_one_s_address_is_not_taken_for_it(machine: Machine) -> None:
    code = """
    made = make()
    first = cuda.default_driver().current()
    ctypes.c_int.from_address(made.value + 12).value += 1  # the recorder's number of the context
    assert cuda.default_driver().current() is not first
    """
    machine.check(FOREIGN + code)


def test_a_program_chooses_by_name(machine: Machine) -> None:
    code = """
    import normgen
    normgen.use_driver("cuda-bindings")
    assert cuda.default_driver().name == "cuda-bindings"
    CudaExecutor(0).function("text", "kernel", 0)
    """
    machine.check(PRELUDE + code, NORMGEN_LAUNCHER="pycuda")
    assert [line.split()[0] for line in machine.log[-2:]] == ["unload", "release"]
