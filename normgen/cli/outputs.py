"""What `normgen compile` writes, by the name that `--emit` gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from normgen.cli.files import MARK, Output

if TYPE_CHECKING:
    from normgen.ir.program import Definition
    from normgen.package.records import Package

Maker = Callable[["Definition"], Output]


def module(definition: Definition) -> Output:
    """The Python module."""
    from normgen.api import module_of

    return Output(f"{definition.program.name}.py", module_of(definition).encode())


def cuda(definition: Definition) -> Output:
    """The CUDA text alone, for reading."""
    from normgen.cli.stages import packaged

    return Output(f"{definition.program.name}.cu", cuda_text(packaged(definition)).encode())


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
