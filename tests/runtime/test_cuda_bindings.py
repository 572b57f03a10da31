"""What cuda-bindings alone does: contexts without PyCUDA."""

from __future__ import annotations

from tests.fakes.machine import Machine
from tests.runtime.test_launchers import PRELUDE, launches


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
