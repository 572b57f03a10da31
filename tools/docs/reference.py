"""The first page of the reference, whose other pages are half written, half generated."""

from __future__ import annotations

from collections.abc import Iterable

from tools.docs.pages import Page

TEXT = """\
# Reference

- [The language of specs](../language.md): statements, expressions, types, gradients.
- [Grammar and functions](grammar.md): what the compiler accepts, and the derivative of every function.
- [Bundled specs](../specs.md): every norm that comes with normgen, what it saves and requires.
- [Diagnostics](../../tests/diagnostics.md): every mistake in a spec that the compiler explains.
- [`normgen`](api-normgen.md): loading, checking and calling norms.
- [`normgen.torch`](api-torch.md), [`normgen.torch.nn`](api-torch-nn.md): functions, modules, patching.
- [Commands and options](commands.md): the texts of `--help`.
- [Exit codes and environment variables](environment.md)
- [Glossary](../glossary.md): the terms of code, kernels and docs.
"""


def reference() -> Iterable[Page]:
    """The page."""
    yield Page("reference/index.md", "docs/reference/index.md", TEXT)
