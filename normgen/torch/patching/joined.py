"""Specs of norms that are joined with what follows them: a residual add, an activation."""

from __future__ import annotations

import re
from functools import cache

from normgen import bundled
from normgen.torch.patching.activations import ACTIVATIONS
from normgen.torch.private import constant

BATCH, GROUP = "batchnorm", "groupnorm"

# What a joined spec has in place of some lines of the bundled one, whose statistics are the same.
_CHANGES = {
    BATCH: ((r"attr   correction .*\n", ""), ("- correction", "- 1")),
    GROUP: (("eps = 1e-5     ", "eps >= 0 = 1e-5"),),
}
_CHANNELS = {BATCH: "[B, C, ...]", GROUP: "[B, (G C), ...]"}
_ALIGNED = {BATCH: "v      ", GROUP: "v         "}  # with what the statements above define
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
    asked = norm, activation, added, rounded
    return _BUNDLED.get(asked) or _text(*asked)


@cache
def _text(norm: str, activation: str, added: bool, rounded: bool) -> str:
    follows, channels = ACTIVATIONS[activation], _CHANNELS[norm]
    then = "_".join((*(("add",) if added else ()), activation, *(() if rounded else ("once",))))
    what = f"{'a residual add and ' if added else ''}{follows.title}"
    residual = f'input  residual{channels}  "added to the normalized x"\n' if added else ""
    attrs = f"{follows.attrs}\n" if follows.attrs else ""
    save = "save " if follows.tells else ""
    output = (
        f"let    {_ALIGNED[norm]} = {_BETWEEN[added, rounded]}\n{save}output y{channels} = {follows.value}"
    )
    source = bundled.read(norm)
    assert source is not None
    text = source.text
    for old, new in (
        *_CHANGES[norm],
        (f"norm {norm} ", f"norm {norm}_then_{then} "),
        (r" \(arXiv:.*\)\.", f", then {what}."),
        (r"(added to the variance.*\n)", rf"\1{attrs}"),
        (r"(input  .*\n)", rf"\1{residual}"),
        (r"output .*", output),
    ):
        text = re.sub(old, new, text, count=1)
    return text
