"""The public functions: a spec, wherever it is, to a `Norm` or to the text of a Python module.

Both go through the same `Package`, so a generated module does exactly what the loaded norm does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgen import bundled
from normgen.diagnostics import Source
from normgen.locks import cached_property

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.ir.program import Definition, Program
    from normgen.package.records import Package
    from normgen.runtime.norm import Norm
    from normgen.verify.report import Report

NAMELESS = "<spec>"
# Types of attr values that their text says all of.
_PLAIN = (bool, int, float, str)


def load(source: str | os.PathLike[str], /, **attrs: object) -> Norm:
    """The norm of a spec: a path, a bundled name, or the spec's text; attr values as keywords.

    A path object, or one line ending in `.norm`, is a path; other text with white space in it is a spec; the
    rest names a bundled spec. Raises `SpecError` where the spec or an attr is at fault.

    What becomes of a spec is kept in the cache, from where it is loaded without a compiler.
    """
    from normgen.reference import Reference
    from normgen.runtime.norm import Norm

    read = _source(source)

    stages = _Stages(read, attrs)
    return Norm(_package(read, attrs, lambda: stages.compilation), reference=Reference(stages.programs))


@dataclass(frozen=True)
class _Stages:
    """The compilation of a spec, once somebody asks for it. Pickles hold what it is made of."""

    source: Source
    attrs: Mapping[str, object]

    @cached_property
    def compilation(self) -> Compilation:
        from normgen.codegen.compilation import Compilation

        return Compilation(_definition(self.source, self.attrs))

    def programs(self) -> tuple[Program, Program | None]:
        """Forward and backward."""
        return self.compilation.definition.program, self.compilation.derived

    def __reduce__(self) -> tuple[Any, ...]:
        return _Stages, (self.source, self.attrs)


def read_definition(source: str | os.PathLike[str], attrs: Mapping[str, object]) -> Definition:
    """What a spec states, checked and not compiled. Takes and raises what `load` does."""
    return _definition(_source(source), attrs)


def check(
    source: str | os.PathLike[str],
    /,
    *,
    attrs: Mapping[str, object] | None = None,
    sizes: Mapping[str, int] | None = None,
    dtype: str | None = None,
    samples: Mapping[str, str] | None = None,
    executors: Sequence[str] | None = None,
    quick: bool = False,
    thorough: bool = False,
    raise_exception: bool = True,
) -> Report:
    """Check a spec as the command `normgen check` does: its derivative against finite differences, and its
    kernels against float64, on the host and on a GPU where there is one.

    source: what `load` takes. attrs: values of attrs; those without one are tried at several.
    sizes: lengths of axes, by name; the others take awkward lengths in turn.
    dtype: "f32", "f16" or "bf16", in place of mixtures of these.
    samples: what a tensor is drawn from, by name: "normal(0, 1)", "uniform(0.5, 1.5)", "constant(7)".
    executors: of "host" and "cuda", where kernels run. quick: few cases, seconds. thorough: many more.

    Returns what was found. Raises `CheckFailed`, an AssertionError that lists the failures, unless
    `raise_exception` is false; `SpecError` where the spec or an attr is at fault; ValueError for an option
    that does not fit the spec; `MachineError` where nothing here can run kernels.
    """
    from normgen.verify.draw import parse_sample
    from normgen.verify.report import CheckFailed, made_report
    from normgen.verify.run import Options, host_threads

    __tracebackhide__ = True  # of pytest: a failure is shown where `check` was called
    options = Options(
        attrs=attrs,
        sizes=sizes,
        dtype=dtype,
        samples={name: parse_sample(text) for name, text in (samples or {}).items()},
        executors=None if executors is None else tuple(executors),
        thorough=thorough,
        quick=quick,
        threads=host_threads(),
    )
    report = made_report(_source(source), options)
    if raise_exception and not report.ok:
        raise CheckFailed(report)
    return report


def compile_spec(text: str, attrs: Mapping[str, object] | None = None) -> str:
    """The Python module of a spec, as text: `forward`, `backward`, and all that they need but
    `normgen.runtime`."""
    return module_of(_definition(Source(NAMELESS, text), attrs or {}))


def module_of(definition: Definition) -> str:
    """The Python module of a checked spec, as text."""
    from normgen.codegen.compilation import Compilation

    return module_text(Compilation(definition))


def module_text(compilation: Compilation) -> str:
    """The Python module of a compilation, as text."""
    from normgen import __version__
    from normgen.ahead.forms import forms_table

    return compilation.module(__version__, forms_table(compilation.package))


def _package(source: Source, attrs: Mapping[str, object], compilation: Callable[[], Compilation]) -> Package:
    """The package of a spec: out of the cache, where it was compiled before by this very normgen."""
    import pickle

    from normgen.cache_results import kept, sources

    if any(type(value) not in _PLAIN for value in attrs.values()):
        return compilation().package
    given = (source.name, source.text, repr(sorted(attrs.items())))
    # As safe as kernels are, which lie in the same folder: nobody else may write there.
    content = kept("package", (sources(), *given), lambda: pickle.dumps(compilation().package))
    package: Package = pickle.loads(content)
    return package


def _source(source: str | os.PathLike[str]) -> Source:
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"expected a path, a bundled name or a spec's text, got {type(source).__name__}")
    text = os.fsdecode(source)
    lines = len(text.splitlines())
    if isinstance(source, os.PathLike) or (text.endswith(".norm") and lines == 1):
        return Source(text, Path(text).read_text(encoding="utf-8"))
    if not text or any(character.isspace() for character in text):
        return Source(NAMELESS, text)
    found = bundled.read(text)
    if found is not None:
        return found
    names = bundled.names()
    close = get_close_matches(text, names, 3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names)}"
    raise ValueError(f"no bundled spec is called {text!r}: {hint}")


def _definition(source: Source, attrs: Mapping[str, object]) -> Definition:
    from normgen.dsl import load_definition

    definition = load_definition(source, attrs)
    if source.name != NAMELESS:
        return definition
    # Kernels quote their source by file and line: a text without a file goes by the norm's name.
    return replace(definition, source=Source(f"{definition.program.name}.norm", source.text))
