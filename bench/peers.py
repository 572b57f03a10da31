"""Liger and quack: their kernels, called as functions, so that no autograd engine is timed.

A table says which op and direction each has. An entry takes the operands of every set of buffers, dy of every
set where there is one, and makes a call: `call(i)` runs on set i and returns the results that are checked.
All that a backward reads is made here, before.

Written against liger-kernel 0.8.5 and quack-kernels 0.6.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from problems import IMAGES

Rows = Sequence[Sequence[Any]]
Call = Callable[[int], tuple[Any, ...]]
Make = Callable[[Rows, Sequence[Any]], Call]

_LIGER_CAST = "llama"  # what its modules do unless told otherwise
GROUPS = 32

# ------------------------------------------------------------------------------------------------- Liger


def _liger(name: str) -> Any:
    return import_module(f"liger_kernel.ops.{name}")


def _liger_rmsnorm(rows: Rows, _: Sequence[Any]) -> Call:
    forward = _liger("rms_norm").rms_norm_forward
    return lambda i: (forward(*rows[i], 1e-6, 0.0, _LIGER_CAST, None)[0],)


def _liger_rmsnorm_backward(rows: Rows, dy: Sequence[Any]) -> Call:
    module = _liger("rms_norm")
    # dx goes over dy, as in its autograd function: otherwise dx is filled with zeros before.
    mine = [t.clone() for t in dy]
    kept = [module.rms_norm_forward(*row, 1e-6, 0.0, _LIGER_CAST, None) for row in rows]

    def run(i: int) -> tuple[Any, ...]:
        _, x, rstd, block, warps, cast = kept[i]
        w = rows[i][1]
        return tuple(module.rms_norm_backward(mine[i], x, w, rstd, 0.0, cast, block, warps, True, None, True))

    return run


def _liger_layernorm(rows: Rows, _: Sequence[Any]) -> Call:
    forward = _liger("layer_norm").layer_norm_forward
    return lambda i: (forward(*rows[i], 1e-5)[0],)


def _liger_layernorm_backward(rows: Rows, dy: Sequence[Any]) -> Call:
    module = _liger("layer_norm")
    kept = [module.layer_norm_forward(*row, 1e-5) for row in rows]

    def run(i: int) -> tuple[Any, ...]:
        _, x, mean, rstd, *_ = kept[i]
        return tuple(module.layer_norm_backward(dy[i], x, rows[i][1], rows[i][2], mean, rstd))

    return run


def _liger_softmax(rows: Rows, _: Sequence[Any]) -> Call:
    forward = _liger("softmax")._softmax_forward
    return lambda i: (forward(rows[i][0])[0],)


def _liger_softmax_backward(rows: Rows, dy: Sequence[Any]) -> Call:
    module = _liger("softmax")
    kept = [module._softmax_forward(row[0]) for row in rows]
    return lambda i: (module._softmax_backward(dy[i], *kept[i]),)


def _liger_add_rmsnorm(rows: Rows, _: Sequence[Any]) -> Call:
    forward = _liger("fused_add_rms_norm").fused_add_rms_norm_forward
    return lambda i: tuple(forward(*rows[i], 1e-6, 0.0, _LIGER_CAST)[:2])


def _liger_groupnorm(rows: Rows, _: Sequence[Any]) -> Call:
    forward = _liger("group_norm").group_norm_forward

    def run(i: int) -> tuple[Any, ...]:
        x, w, b = rows[i]
        return (forward(x, x.shape[1], GROUPS, w, b, 1e-5)[0],)

    return run


def _liger_groupnorm_backward(rows: Rows, dy: Sequence[Any]) -> Call:
    module = _liger("group_norm")
    kept = [module.group_norm_forward(x, x.shape[1], GROUPS, w, b, 1e-5) for x, w, b in rows]

    def run(i: int) -> tuple[Any, ...]:
        _, x, mean, rstd, _ = kept[i]
        _, w, b = rows[i]
        return tuple(module.group_norm_backward(dy[i], x, w, b, mean, rstd, x.shape[1], GROUPS))

    return run


# ------------------------------------------------------------------------------------------------- quack


def _quack(name: str) -> Any:
    return import_module(f"quack.{name}")


def _quack_rmsnorm(rows: Rows, _: Sequence[Any]) -> Call:
    forward = _quack("rmsnorm").rmsnorm_fwd
    return lambda i: (forward(*rows[i], eps=1e-6, store_rstd=True)[0],)


def _quack_rmsnorm_given(rows: Rows, _: Sequence[Any]) -> Call:
    """Into given arrays: what its functions do once they have allocated."""
    forward = _quack("rmsnorm")._rmsnorm_fwd
    made = [(x.new_empty(x.shape), x.new_empty(x.shape[:-1]).float()) for x, _ in rows]

    def run(i: int) -> tuple[Any, ...]:
        (x, w), (out, rstd) = rows[i], made[i]
        forward(x, w, out, None, rstd, None, None, None, 1e-6, False, 0.0)
        return (out,)

    return run


def _quack_rmsnorm_backward(rows: Rows, dy: Sequence[Any]) -> Call:
    module = _quack("rmsnorm")
    rstd = [module.rmsnorm_fwd(*row, eps=1e-6, store_rstd=True)[2] for row in rows]
    return lambda i: tuple(module.rmsnorm_bwd(*rows[i], dy[i], rstd[i])[:2])


def _wide(rows: Rows) -> list[tuple[Any, ...]]:
    """x and the params in float32, which are all that its layernorm takes."""
    return [(x, w.float(), b.float()) for x, w, b in rows]


def _quack_layernorm(rows: Rows, _: Sequence[Any]) -> Call:
    forward, mine = _quack("rmsnorm").layernorm_fwd, _wide(rows)
    return lambda i: tuple(forward(*mine[i], 1e-5, True, True)[:1])


def _quack_layernorm_backward(rows: Rows, dy: Sequence[Any]) -> Call:
    module, mine = _quack("rmsnorm"), _wide(rows)
    kept = [module.layernorm_fwd(*row, 1e-5, True, True)[1:] for row in mine]
    return lambda i: tuple(module.layernorm_bwd(mine[i][0], mine[i][1], dy[i], *kept[i]))


def _quack_softmax(rows: Rows, _: Sequence[Any]) -> Call:
    forward = _quack("softmax").softmax_fwd
    return lambda i: (forward(rows[i][0]),)


def _quack_softmax_backward(rows: Rows, dy: Sequence[Any]) -> Call:
    module = _quack("softmax")
    y = [module.softmax_fwd(row[0]) for row in rows]
    return lambda i: (module.softmax_bwd(dy[i], y[i]),)


def _quack_add_rmsnorm(rows: Rows, _: Sequence[Any]) -> Call:
    forward = _quack("rmsnorm").rmsnorm_fwd

    def run(i: int) -> tuple[Any, ...]:
        x, residual, w = rows[i]
        return tuple(forward(x, w, residual=residual, eps=1e-6, store_rstd=True)[:2])

    return run


# By op, direction and what it takes for layouts; rows of all kinds are alike to a peer unless it says more.
PEERS: Mapping[str, Mapping[tuple[str, str, str], Make]] = {
    "liger": {
        ("rmsnorm", "forward", "rows"): _liger_rmsnorm,
        ("rmsnorm", "backward", "rows"): _liger_rmsnorm_backward,
        ("layernorm", "forward", "rows"): _liger_layernorm,
        ("layernorm", "backward", "rows"): _liger_layernorm_backward,
        ("softmax", "forward", "rows"): _liger_softmax,
        ("softmax", "backward", "rows"): _liger_softmax_backward,
        ("add_rmsnorm", "forward", "rows"): _liger_add_rmsnorm,
        ("groupnorm", "forward", "nchw"): _liger_groupnorm,
        ("groupnorm", "backward", "nchw"): _liger_groupnorm_backward,
    },
    "quack": {
        ("rmsnorm", "forward", "rows"): _quack_rmsnorm,
        ("rmsnorm", "forward", "given"): _quack_rmsnorm_given,
        ("rmsnorm", "backward", "rows"): _quack_rmsnorm_backward,
        ("layernorm", "forward", "rows"): _quack_layernorm,
        ("layernorm", "backward", "rows"): _quack_layernorm_backward,
        ("softmax", "forward", "rows"): _quack_softmax,
        ("softmax", "backward", "rows"): _quack_softmax_backward,
        ("add_rmsnorm", "forward", "rows"): _quack_add_rmsnorm,
    },
}


def peer(provider: str, op: str, direction: str, layout: str) -> Make | None:
    """What a peer has for an op in a direction and layout, if anything."""
    table = PEERS[provider]
    found = table.get((op, direction, layout))
    if found is None and layout not in IMAGES:
        found = table.get((op, direction, "rows"))
    return found
