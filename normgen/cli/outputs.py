"""What `normgen compile` writes, by the name that `--emit` gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from normgen.cli.files import MARK, Output

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation

Maker = Callable[["Compilation"], Output]


def module(made: Compilation) -> Output:
    """The Python module."""
    from normgen.api import module_text

    return Output(f"{made.package.name}.py", module_text(made).encode())


def cuda(made: Compilation) -> Output:
    """The CUDA text alone, for reading, and for nvcc: every kernel in each of its forms, with constants."""
    from normgen.package.device_functions import functions_of, without_includes
    from normgen.page.page import INFINITY
    from normgen.verify.texts import texts

    package = made.package
    found = sorted(texts(made.definition, package).items())
    parts = [
        f"// {MARK} from {package.name}.norm: every kernel in each of its forms.\n"
        "// Each stands behind the constants of one call that may take it; another call has others.\n"
        f"// It compiles by itself: nvcc -arch=sm_90 -cubin {package.name}.cu\n",
        INFINITY,
        functions_of(source for _, source in found),
    ]
    for entry, source in found:
        own = (
            without_includes(source)
            .strip("\n")
            .replace("#define CLUSTER_DIMS", "#undef CLUSTER_DIMS\n#define CLUSTER_DIMS")
        )
        parts.append(f"namespace of_{entry} {{\n\n{own}\n\n}}  // namespace of_{entry}\n")
    return Output(f"{package.name}.cu", "\n".join(parts).encode())


BY_NAME: dict[str, Maker] = {"module": module, "cu": cuda}
