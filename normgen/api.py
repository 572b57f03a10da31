"""The public functions: a spec, wherever it is, to a `Norm` or to the text of a Python module.

Both go through the same `Package`, so a generated module does exactly what the loaded norm does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from normgen import bundled
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
# Types of attr values that their text says all of.
_PLAIN = (bool, int, float, str)


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
    """The norm of a spec: a path, a bundled name, or the spec's text; attr values as keywords.

    shard: axes that are spread over ranks, each of which has a run of their elements: `{"D": ranks}`, with
    `Simulated(n)` or an object that has `rank`, `size` and `gather`. Calls are then those of a rank: see
    `SpreadNorm`.
    whole: with `shard`, the operands whose gradients ranks add up; of these each has a part otherwise.

    A path object, or one line ending in `.norm`, is a path; other text with white space in it is a spec; the
    rest names a bundled spec. Raises `SpecError` where the spec or an attr is at fault.

    What becomes of a spec is kept in the cache, from where it is loaded without a compiler.
    """
    from normgen.reference import Reference
    from normgen.runtime.norm import Norm

    read = _source(source)

    stages = _Stages(read, attrs)
    if shard is not None:
        return _spread(read, attrs, stages, shard, tuple(whole))
    if whole:
        raise TypeError("whole names gradients that ranks add up: it goes with shard")
    return Norm(_package(read, attrs, lambda: stages.compilation), reference=Reference(stages.programs))


def _spread(
    source: Source,
    attrs: Mapping[str, object],
    stages: _Stages,
    shard: Mapping[str, Ranks | Simulated],
    whole: tuple[str, ...],
) -> SpreadNorm:
    from normgen.runtime.ranks.group import checked_ranks
    from normgen.runtime.ranks.groups import Grouped
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

    def compiled(blocks: bool, direction: str, wanted: tuple[str, ...]) -> SpreadRecord:
        found: SpreadRecord = _cached(
            "spread",
            source,
            attrs,
            (repr((where, whole, blocks, direction, wanted)),),
            lambda: local().record(direction, wanted, whole, blocks),
        )
        return found

    package, axes, pairs, wholes = _cached("signature", source, attrs, (repr(where),), signature)
    grouped = Grouped(pairs, partial(compiled, True), wholes) if pairs else None
    return SpreadNorm(package, axes, ranks, partial(compiled, False), whole=whole, grouped=grouped)


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
    shard: Mapping[str, int] | None = None,
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
    executors: of "host" and "cuda", where kernels run.
    shard: over how many simulated ranks axes are spread, by name: these are checked in place of the norm on
    one rank, on the host. quick: few cases, seconds. thorough: many more.

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
    package: Package = _cached("package", source, attrs, (), lambda: compilation().package)
    return package


def _cached(
    kind: str, source: Source, attrs: Mapping[str, object], parts: tuple[str, ...], make: Callable[[], Any]
) -> Any:
    """What the compiler makes of a spec. `kind`: a word for it; `parts`: what it depends on besides."""
    import pickle

    from normgen.cache_results import kept, sources

    if any(type(value) not in _PLAIN for value in attrs.values()):
        return make()
    given = (source.name, source.text, repr(sorted(attrs.items())), *parts)
    # As safe as kernels are, which lie in the same folder: nobody else may write there.
    return pickle.loads(kept(kind, (sources(), *given), lambda: pickle.dumps(make())))


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
