"""The texts that `normgen compile` writes of a spec for calls of any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from normgen.cli.files import MARK, Output

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.diagnostics import Source


def module(source: Source, attrs: dict[str, object], compilation: Callable[[], Compilation]) -> Output:
    """The Python module. Once it is known, there is a `compilation` only of what has warnings to show."""
    from normgen.api import module_text
    from normgen.cache_results import result_of

    def made() -> tuple[str, str, bool]:
        found = compilation()
        return found.package.name, module_text(found), bool(found.definition.warnings)

    name, text, warned = result_of("module", source, attrs, (), made)
    if warned:
        compilation()
    return Output(f"{name}.py", text.encode())


def cuda(made: Compilation) -> Output:
    """The CUDA text, to read and to compile by nvcc: every kernel in each of its forms, with constants."""
    from normgen.ahead.page import INFINITY
    from normgen.package.device_functions import functions_of
    from normgen.verify.texts import texts

    package = made.package
    found = sorted(texts(made.definition, package).items())
    parts = [
        f"// {MARK} from {package.name}.norm: every kernel in each of its forms.\n"
        "// Each has the constants of one call that may take it; other calls have other constants.\n"
        f"// It compiles by itself: nvcc -arch=sm_90 -cubin {package.name}.cu\n",
        INFINITY,
        functions_of(source for _, source in found),
    ]
    for entry, source in found:
        parts.append(f"namespace of_{entry} {{\n\n{source.strip()}\n\n}}  // namespace of_{entry}\n")
    return Output(f"{package.name}.cu", "\n".join(parts).encode())
