"""The public functions: a spec, wherever it is, to a `Norm` or to the text of a Python module.

Both go through the same `Package`, so a generated module does exactly what the loaded norm does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from normgen import bundled
from normgen.cache_results import result_of
from normgen.diagnostics import Source
from normgen.locks import cached_property

if TYPE_CHECKING:
    from normgen.codegen.compilation import Compilation
    from normgen.codegen.ranks import RankCompilation
    from normgen.ir.program import Definition, Program
    from normgen.package.records import Package
    from normgen.package.spread import PairRecord, SpreadRecord
    from normgen.runtime.norm import Norm
    from normgen.runtime.ranks.group import Ranks, Simulated
    from normgen.runtime.ranks.norm import SpreadNorm
    from normgen.verify.report import Report

NAMELESS = "<spec>"


@overload
def load(
    source: str | os.PathLike[str], /, *, shard: None = None, whole: tuple[()] = (), **attrs: object
) -> Norm: ...


@overload
def load(
    source: str | os.PathLike[str],
    /,
    *,
    shard: Mapping[str, Ranks | Simulated],
    whole: Sequence[str] = (),
    **attrs: object,
) -> SpreadNorm: ...


def load(
    source: str | os.PathLike[str],
    /,
    *,
    shard: Mapping[str, Ranks | Simulated] | None = None,
    whole: Sequence[str] = (),
    **attrs: object,
) -> Norm | SpreadNorm:
    """Load the norm of a spec: a path, a bundled name, or the spec's text. Attr values are keywords.

    shard: the sharded axes: `{"D": ranks}`, with `Simulated(n)` or an object that has `rank`,
    `size` and `gather`. Each rank has a contiguous range of the axis and makes its own calls: see
    `SpreadNorm`.
    whole: with `shard`, the operands whose gradients are summed over ranks; by default, each rank has a part.

    A path object, or one line ending in `.norm`, is a path. Other text that contains white space is a spec.
    Any other string names a bundled spec. Raises `SpecError` if the spec or an attr has a mistake.

    Compiled specs are cached, and are loaded from the cache without the compiler.
    """
    from normgen.reference import Reference
    from normgen.runtime.norm import Norm

    read = _source(source)
    stages = _Stages(read, attrs)
    if shard is not None:
        return _spread(read, attrs, stages, shard, tuple(whole))
    if whole:
        raise TypeError("whole= requires shard=: it names the operands whose gradients are summed over ranks")
    package: Package = result_of("package", read, attrs, (), stages.package)
    return Norm(package, reference=Reference(stages.programs))


def load_module(
    spec: str, about: Mapping[str, Any], results: tuple[type[Any], type[Any] | None] | None = None
) -> Norm:
    """The norm of a generated module. `spec`: its text; `about`: the ABI, the command that generates it
    again, the spec's file, attrs, and texts of kernels; `results`: the types of named tuples that the
    directions return."""
    from normgen.reference import Reference
    from normgen.runtime.norm import Norm, check_abi, with_texts

    check_abi(about["abi"], about["command"])
    source, attrs = Source(about["file"], spec), dict(about["attrs"])
    stages = _Stages(source, attrs)
    package = result_of("package", source, attrs, (), stages.package)
    return Norm(with_texts(package, about["texts"]), results=results, reference=Reference(stages.programs))


def _spread(
    source: Source,
    attrs: Mapping[str, object],
    stages: _Stages,
    shard: Mapping[str, Ranks | Simulated],
    whole: tuple[str, ...],
) -> SpreadNorm:
    from normgen.runtime.ranks.direction import Grouped
    from normgen.runtime.ranks.group import checked_ranks
    from normgen.runtime.ranks.norm import SpreadNorm

    ranks = checked_ranks(shard)
    names = sorted(shard)
    # A run of a plain axis is the same norm, however many ranks there are.
    where = names, ranks.size if any(name.startswith("(") for name in names) else 1

    @cache
    def local() -> RankCompilation:
        from normgen.codegen.ranks import rank_compilation

        return rank_compilation(stages.compilation.definition, *where)

    def signature() -> tuple[Package, tuple[str, ...], tuple[PairRecord, ...], bool]:
        made = local()
        return made.signature, made.runs.names, made.runs.pairs, made.runs.whole is not None

    def compiled(direction: str, wanted: tuple[str, ...], blocks: bool) -> SpreadRecord:
        found: SpreadRecord = result_of(
            "spread",
            source,
            attrs,
            (repr((where, whole, blocks, direction, wanted)),),
            lambda: local().record(direction, wanted, whole, blocks),
        )
        return found

    package, axes, pairs, wholes = result_of("signature", source, attrs, (repr(where),), signature)
    grouped = Grouped(pairs, wholes) if pairs else None
    return SpreadNorm(package, axes, ranks, compiled, whole=whole, grouped=grouped)


@dataclass(frozen=True)
class _Stages:
    """The compilation of a spec, once somebody asks for it. Pickles hold what it is made of."""

    source: Source
    attrs: Mapping[str, object]

    @cached_property
    def compilation(self) -> Compilation:
        from normgen.codegen.compilation import Compilation

        return Compilation(_definition(self.source, self.attrs))

    def package(self) -> Package:
        """The kernels of both directions."""
        return self.compilation.package

    def programs(self) -> tuple[Program, Program | None]:
        """Forward and backward."""
        return self.compilation.definition.program, self.compilation.derived

    def __reduce__(self) -> tuple[Any, ...]:
        return _Stages, (self.source, self.attrs)


def read_definition(source: str | os.PathLike[str], attrs: Mapping[str, object]) -> Definition:
    """Read and check a spec without compiling it. Takes and raises the same as `load`."""
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
    shard: Mapping[str, int] | None = None,
    quick: bool = False,
    thorough: bool = False,
    raise_exception: bool = True,
) -> Report:
    """Check a spec like the command `normgen check`: its derivative against finite differences, and its
    kernels against float64, on the host and on a GPU if one is available.

    source: the same as for `load`. attrs: values of attrs; several values are tried for the others.
    sizes: lengths of axes, by name; awkward lengths are tried for the others.
    dtype: "f32", "f16" or "bf16", instead of mixtures of these.
    samples: distributions of tensors, by name: "normal(0, 1)", "uniform(0.5, 1.5)", "constant(7)".
    executors: where kernels run: "host", "cuda" or both.
    shard: the number of simulated ranks over which an axis is sharded, by name. The norm is then checked on
    these ranks instead of on one, on the host. quick: few cases, seconds. thorough: many more.

    Returns a report. Raises `CheckFailed`, an AssertionError that lists the failures, unless
    `raise_exception` is false; `SpecError` if the spec or an attr has a mistake; ValueError for an option
    that does not fit the spec; `MachineError` if this machine cannot run kernels.
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
        executors=_places(executors, shard),
        shard=shard or None,
        thorough=thorough,
        quick=quick,
        threads=host_threads(),
    )
    report = made_report(_source(source), options)
    if raise_exception and not report.ok:
        raise CheckFailed(report)
    return report


def _places(executors: Sequence[str] | None, shard: Mapping[str, int] | None) -> tuple[str, ...] | None:
    """Where a check runs kernels: simulated ranks are on the host."""
    if executors is None:
        return ("host",) if shard else None
    return tuple(executors)


def compile_spec(text: str, attrs: Mapping[str, object] | None = None) -> str:
    """Compile a spec into the text of a Python module with `forward` and `backward`, which imports
    `load_module` from here."""
    return module_text(_Stages(Source(NAMELESS, text), attrs or {}).compilation)


def module_text(compilation: Compilation) -> str:
    """The Python module of a compilation, as text."""
    from normgen import __version__
    from normgen.ahead.forms import forms_table, texts_taken

    package = compilation.package
    return compilation.module(__version__, forms_table(package), texts_taken(package))


def _source(source: str | os.PathLike[str]) -> Source:
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"expected a path, a bundled name or a spec's text, got {type(source).__name__}")
    text = os.fsdecode(source)
    lines = len(text.splitlines())
    if isinstance(source, os.PathLike) or (text.endswith(".norm") and lines == 1):
        return Source(text, _contents(text))
    if not text or any(character.isspace() for character in text):
        return Source(NAMELESS, text)
    found = bundled.read(text)
    if found is None:
        raise ValueError(f"no bundled spec is called {text!r}: {bundled.hint(text)}")
    return found


def _contents(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as fault:
        fault.strerror = f"{fault.strerror}{bundled.file_hint(path)}"
        raise


def _definition(source: Source, attrs: Mapping[str, object]) -> Definition:
    from normgen.dsl import load_definition

    definition = load_definition(source, attrs)
    if source.name != NAMELESS:
        return definition
    # Kernels quote their source by file and line: a text without a file goes by the norm's name.
    return replace(definition, source=Source(f"{definition.program.name}.norm", source.text))
