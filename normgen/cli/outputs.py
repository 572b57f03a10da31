"""What `normgen compile` writes, by the name that `--emit` gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from normgen.cli.files import MARK, Output

if TYPE_CHECKING:
    from normgen.ir.program import Definition, Program
    from normgen.runtime.records import Package

Maker = Callable[["Definition", "Program | None", "Package"], Output]


def module(definition: Definition, derived: Program | None, package: Package) -> Output:
    """The Python module."""
    from normgen import __version__
    from normgen.codegen.module import module_text
    from normgen.ir.show import show_program

    mathematics = [("forward", show_program(definition.program))]
    if derived is not None:
        mathematics.append(("backward", show_program(derived)))
    return Output(f"{package.name}.py", module_text(package, mathematics, __version__).encode())


def cuda(definition: Definition, derived: Program | None, package: Package) -> Output:
    """The CUDA text alone, for reading."""
    return Output(f"{package.name}.cu", cuda_text(package).encode())


def cuda_text(package: Package) -> str:
    """The text of every kernel in each of its forms, as it stands before a preamble specialises it."""
    parts = [
        f"// {MARK} from {package.name}.norm: every kernel in each of its forms.\n"
        "// A call puts element types, lengths and a schedule in front of the form that it takes.\n",
        package.header,
    ]
    passes = [package.forward, *([package.backward] if package.backward else [])]
    parts += [form.source for one in passes for kernel in one.kernels for form in kernel.forms]
    return "\n".join(parts)


BY_NAME: dict[str, Maker] = {"module": module, "cu": cuda}
