"""Specs of norms that are joined with what follows them: a residual add, an activation."""

from __future__ import annotations

from functools import cache

from normgen.torch.patching.activations import ACTIVATIONS
from normgen.torch.private import constant

BATCH, GROUP = "batchnorm", "groupnorm"

# The bundled spec of each with another output. Statistics and their derivatives are the same.
_NORMS = {
    BATCH: """norm {name} "Batch normalization with running statistics, then {what}."

attr   training: bool = true   "false normalizes by the running statistics"
attr   momentum = 0.1          "share of the new batch in the running statistics"
attr   eps >= 0 = 1e-5         "added to the variance"{attrs}

input  x[B, C, ...]{added}
param  w[C] = 1                "gain"
param  b[C] = 0                "bias"
state  running_mean[C] = 0     "moving average of the batch means"
state  running_var[C]  = 1     "moving average of the corrected batch variances"

save   mu[C]   = mean[B, ...](x)           if training else running_mean
let    var     = mean[B, ...]((x - mu)^2)  if training else running_var
save   rstd[C] = rsqrt(var + eps)
let    v       = {v}
{save}output y[B, C, ...] = {value}

let    unbiased = var * size[B, ...] / max(size[B, ...] - 1, 1)
update running_mean = lerp(running_mean, mu, momentum)       if training else running_mean
update running_var  = lerp(running_var, unbiased, momentum)  if training else running_var
""",
    GROUP: """norm {name} "Group normalization over channel groups and space, then {what}."

attr   groups: int >= 1        "must divide the channel count"
attr   eps >= 0 = 1e-5         "added to the variance"{attrs}

axis   G = groups              # C is inferred: channels / groups

input  x[B, (G C), ...]{added}
param  w[(G C)] = 1            "gain"
param  b[(G C)] = 0            "bias"

save   mu[B, G]   = mean[C, ...](x)
save   rstd[B, G] = rsqrt(mean[C, ...]((x - mu)^2) + eps)
let    v          = {v}
{save}output y[B, (G C), ...] = {value}
""",
}
_CHANNELS = {BATCH: "[B, C, ...]", GROUP: "[B, (G C), ...]"}
_NORMED = "(x - mu) * rstd * w + b"
# By whether a residual is added, and whether what stands between is rounded to the type of x, as it is where
# each step is an operation of its own.
_BETWEEN = {
    (False, False): _NORMED,
    (False, True): f"cast({_NORMED}, x)",
    (True, False): f"{_NORMED} + residual",
    (True, True): f"cast(cast({_NORMED}, x) + residual, x)",
}
_BUNDLED = {(GROUP, "silu", False, False): "groupnorm_silu"}


@constant
def joined_spec(norm: str, activation: str, added: bool, rounded: bool) -> str:
    """The spec of a norm (`BATCH` or `GROUP`) and an activation of `ACTIVATIONS`: a text, or a bundled name.

    `added`: whether a residual, its second input, is added between. `rounded`: whether the norm and the sum
    are rounded to the type of x.
    """
    bundled = _BUNDLED.get((norm, activation, added, rounded))
    return _text(norm, activation, added, rounded) if bundled is None else bundled


@cache
def _text(norm: str, activation: str, added: bool, rounded: bool) -> str:
    follows = ACTIVATIONS[activation]
    then = "_".join((*(("add",) if added else ()), activation, *(() if rounded else ("once",))))
    return _NORMS[norm].format(
        name=f"{norm}_then_{then}",
        what=f"{'a residual add and ' if added else ''}{follows.title}",
        attrs=f"\n{follows.attrs}" if follows.attrs else "",
        added=f'\ninput  residual{_CHANNELS[norm]}  "added to the normalized x"' if added else "",
        v=_BETWEEN[added, rounded],
        save="save " if follows.tells else "",
        value=follows.value,
    )
