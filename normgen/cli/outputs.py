"""What `normgen compile` writes, by the name that `--emit` gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from normgen.cli.files import MARK, Output

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.package.records import Package

Maker = Callable[["Compilation"], Output]


def module(made: Compilation) -> Output:
    """The Python module."""
    from normgen import __version__

    return Output(f"{made.package.name}.py", made.module(__version__).encode())


def cuda(made: Compilation) -> Output:
    """The CUDA text alone, for reading."""
    return Output(f"{made.package.name}.cu", cuda_text(made.package).encode())


def cuda_text(package: Package) -> str:
    """The text of every kernel in each of its forms, as it stands before a preamble specialises it."""
    from normgen.package.device_functions import functions_of, without_includes

    passes = [package.forward, *([package.backward] if package.backward else [])]
    texts = [form.source for one in passes for kernel in one.kernels for form in kernel.forms]
    parts = [
        f"// {MARK} from {package.name}.norm: every kernel in each of its forms.\n"
        "// A launch defines what the list before a form names: element types, lengths and a schedule.\n",
        functions_of(texts),
    ]
    return "\n".join([*parts, *(without_includes(text).lstrip("\n") for text in texts)])


BY_NAME: dict[str, Maker] = {"module": module, "cu": cuda}
