"""nvcc by way of PyCUDA: its `SourceModule` where a kernel is loaded too, `compiler.compile` where it is not.

The architecture is explicit, and there is no extern "C". PyCUDA's own cache is not written atomically: it
stands behind ours, in a folder for one binary.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from normgen.devices.cuda.compile import Nvcc, failure, find_nvcc
from normgen.errors import ToolchainMissing


class PyCudaCompiler(Nvcc):
    """nvcc, run by PyCUDA."""

    def compile(self, source: str, arch: str) -> bytes:
        from pycuda import compiler

        binary: bytes = self._made(compiler.compile, source, source, arch, False) or b""
        if not binary:
            raise failure(source, self._command(arch), "", 0)
        return binary

    def source_module(self, source: str, arch: str) -> tuple[Any, bytes]:
        """A text as a `SourceModule` in the current context, and its binary."""
        from pycuda import compiler

        # PyCUDA's cache has the preprocessor read a text with this word in it, for a name.
        text = source.replace("#include", "# include")
        with TemporaryDirectory(prefix="normgen-") as folder:
            module = self._made(compiler.SourceModule, source, text, arch, folder)
            if module is None:
                raise failure(source, self._command(arch), "", 0)
            kept = next(Path(folder).glob("*.cubin"), None)
            # (PYCUDA_DISABLE_CACHE: there is none)
            return module, kept.read_bytes() if kept else self.compile(source, arch)

    def _made(self, make: Callable[..., Any], source: str, text: str, arch: str, cache: str | bool) -> Any:
        """What PyCUDA makes of a text; None where nvcc is content and silent and writes nothing."""
        from pycuda import driver
        from pytools.prefork import ExecError

        nvcc = find_nvcc()
        options = list(self.options)
        try:
            return make(text, nvcc=nvcc, options=options, no_extern_c=True, arch=arch, cache_dir=cache)
        except ExecError as fault:
            raise ToolchainMissing(f"{nvcc} does not run: {fault}") from fault
        except driver.CompileError as fault:
            _remove_leavings(fault)
            output = f"{fault.stdout or ''}{fault.stderr or ''}"
            raise failure(source, list(fault.command_line or self._command(arch)), output) from fault
        except UnboundLocalError as fault:  # PyCUDA's own
            _remove_leavings(fault)
            return None

    def _command(self, arch: str) -> list[str]:
        return [find_nvcc(), "--cubin", *self.options, "-arch", arch, "kernel.cu"]


def _remove_leavings(fault: BaseException) -> None:
    """Remove the temporary directory in which PyCUDA compiled, which it leaves behind when that fails."""
    trace = fault.__traceback__
    while trace is not None:
        directory = trace.tb_frame.f_locals.get("file_dir")
        if directory is not None and trace.tb_frame.f_code.co_name == "compile_plain":
            shutil.rmtree(directory, ignore_errors=True)
        trace = trace.tb_next
