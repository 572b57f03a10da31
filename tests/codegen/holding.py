"""Norms of which the kernels that hold their rows are taken where they fit, for tests of these."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from normgen import bundled
from normgen.codegen.package import package
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.grad import backward
from normgen.ir.program import Definition
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.verify.cases import DTYPE_SETS, Case, make_case
from normgen.verify.expected import Subject
from tests.codegen.norms import H200, bound

NESTED = """norm nested "A root mean square over two levels of channels; a gain for each of the outer one."
input x[B, C, D, ...]
param w[C] = 1
save  rstd[B] = rsqrt(mean[C, D, ...](x^2) + 0.01)
output y[B, C, D, ...] = x * rstd * w
"""
VIDEO = """norm video "Statistics of a channel over samples, frames and places."
input x[N, T, C, H, W]
param w[C] = 1
param b[C] = 0
save  mu[C]   = mean[N, T, H, W](x)
save  rstd[C] = rsqrt(mean[N, T, H, W]((x - mu)^2) + 0.01)
output y[N, T, C, H, W] = (x - mu) * rstd * w + b
"""
TWICE = """norm twice "Gains of channels and of what is inside them: parts of two kinds."
input x[B, C, D, ...]
param w[C] = 1
param v[C, D] = 1
save  rstd[B] = rsqrt(mean[C, D, ...](x^2) + 0.01)
output y[B, C, D, ...] = x * rstd * w * v
"""
PIXELS = """norm pixels "Statistics of groups of channels over samples, with gains of each."
input x[B, C, D]
param w[C, D] = 1
param v[D] = 1
save  rstd[C] = rsqrt(mean[B, D]((x * v)^2) + 0.01)
output y[B, C, D] = x * v * rstd * w
"""
MODULATED = """norm modulated "Groups of channels that come last, with gains of each sample."
axis G = 2
input x[B, ..., (G C)]
input s[B, (G C)]
param b[(G C)] = 0
save  mu[B, G]   = mean[C, ...](x)
save  rstd[B, G] = rsqrt(mean[C, ...]((x - mu)^2) + 0.01)
output y[B, ..., (G C)] = (x - mu) * rstd * (1 + s) + b
"""
BOUNDED = """norm bounded "Groups of channels that come last, with gains inside of a function."
axis G = 2
input x[B, ..., (G C)]
param w[(G C)] = 1
output y[B, ..., (G C)] = tanh(w * x * rsqrt(mean[C, ...](x^2) + 0.01))
"""
SQUASHED = """norm squashed "What normalized channels add up to, when each of them is bounded."
axis G = 2
input x[B, ..., (G C)]
save  mu[B, G]   = mean[C, ...](x)
save  rstd[B, G] = rsqrt(mean[C, ...]((x - mu)^2) + 0.01)
output y[B, ..., (G C)] = (x - mu) * rstd
output drift[(G C)]: f32 = sum[B, ...](x * rstd)
output total[(G C)]: f32 = sum[B, ...](tanh((x - mu) * rstd))
"""
DRIFT = """norm drift "What normalized channels of a sample, mean and all, add up to over samples."
input x[B, C, ...]
save  mu[B]   = mean[C, ...](x)
save  rstd[B] = rsqrt(mean[C, ...]((x - mu)^2) + 0.01)
output y[B, C, ...] = (x - mu) * rstd
output drift[C] = sum[B, ...](x * rstd)
"""
TOTAL = """norm total "A layer norm that keeps the sums of its rows."
input x[B, D]
save  total[B] = sum[D](x)
save  mu[B]    = mean[D](x)
save  rstd[B]  = rsqrt(mean[D]((x - mu)^2) + 0.01)
output y[B, D] = (x - mu) * rstd
"""
_TEXTS = {
    "nested": NESTED, "twice": TWICE, "video": VIDEO, "pixels": PIXELS, "drift": DRIFT,
    "modulated": MODULATED, "bounded": BOUNDED, "squashed": SQUASHED, "total": TOTAL,
}  # fmt: skip


@cache
def definition(name: str, groups: int = 0) -> Definition:
    source = bundled.read(name) or Source(f"{name}.norm", _TEXTS[name])
    return load_definition(source, {"groups": groups} if groups else {})


@cache
def subject(name: str, groups: int = 0, strategy: str = "whole") -> Subject:
    found = definition(name, groups)
    norm = Norm(package(found), planner=partial(plan_launches, strategy=strategy))
    return Subject(found, backward(found), norm, strategy)


def fresh(name: str, groups: int, strategy: str) -> Subject:
    """A subject whose norm has planned nothing yet."""
    found = subject(name, groups, strategy)
    return replace(found, norm=Norm(found.norm.package, planner=partial(plan_launches, strategy=strategy)))


def case(found: Subject, dtypes: str = "f32", **extents: int) -> Case:
    lengths = {("..." if axis == "rest" else axis): n for axis, n in extents.items()}
    made = make_case(found.definition, 1, 1, next(d for d in DTYPE_SETS if d.name == dtypes), lengths)
    return replace(made, rest=(lengths.get("...", 1),))


def launched(found: Subject, dtype: str, strategy: str | None = None, **extents: int) -> list[str]:
    record = found.norm.package.backward
    assert record is not None
    plan = plan_launches(record, bound(record, dtype, **extents), H200, strategy=strategy)
    return [x.entry for x in plan.launches]
