"""Replace the norms of a model by normgen's, in place, and put them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import Module

from normgen.torch.patching.classes import Patched, restore
from normgen.torch.patching.dropins import (
    SPECS,
    base_of,
    drop_in,
    lookalike,
    overridden,
    redirected_to,
    redirecting,
    within,
    wraps_super,
)
from normgen.torch.patching.fusing import fused, fusible
from normgen.torch.patching.joining import Found, joinable, joining
from normgen.torch.patching.lookalikes import Likeness, likeness, settings_of, shapes_of
from normgen.torch.patching.probes import PAIRS, Pair
from normgen.torch.patching.report import Left, Replaced, Report
from normgen.torch.patching.selection import Only, Predicate, selector

KEEP, ONCE = "keep", "once"
ONCE_ROUNDED = "rounds less often in bfloat16, float16"


def patch(model: Module, dtype: str = KEEP, only: Only = None, fuse: bool = False) -> Report:
    """Let normgen compute the norms of a model; returns what was replaced, and what was not and why.

    Modules are replaced by what they are: PyTorch's own by the drop-in of the same name in
    `normgen.torch.nn`, also where a subclass keeps their methods, or calls them by `super()` in its own; and
    modules of other libraries, such as the RMSNorms of transformers, whose forward is found to compute what a
    bundled spec does. In other forwards of norms, kernels take the place of what they call of
    `torch.nn.functional`. A module stays the object that it is and changes its class, so its name, parameters
    (tied ones too), buffers, hooks, device, training flag and `state_dict` stay as they are. Patching twice
    is patching once.

    `dtype`: "keep" keeps the points at which a module rounds to a short element type. "once" lets results
    round once, at the end, which is at least as exact but differs by a unit of the last place here and there;
    the report says where.
    `only`: a glob pattern of module names, a type, a function of a name and a module, or several of these of
    which one has to hold. None: all modules.
    `fuse`: whether norms that were replaced are computed with what stands beside them in a block: RMSNorms
    with the residual add before them, batch and group norms with the activation behind them, and a residual
    add between. A block is known by the source of its forward; neighbours in a Sequential are seen too. A
    norm whose result anything else reads stays as it is.

    Raises TypeError and ValueError for what it cannot take, before anything is changed.
    """
    if not isinstance(model, Module):
        raise TypeError(f"patch takes a torch.nn.Module, not {type(model).__name__}")
    if dtype not in (KEEP, ONCE):
        raise ValueError(f"dtype={dtype!r} is no policy: it is {KEEP!r} or {ONCE!r}")
    chosen = selector(only, model)
    known = cache(likeness)
    decisions, already = [], []
    for module, names in _named(model).items():
        for name in [each for each in names if chosen(each, module)][:1]:
            if isinstance(module, Patched):
                already.append(name)
            else:
                decisions.append((name, module, _decide(module, known, dtype == ONCE)))
    for _, module, found in decisions:
        if isinstance(found, _Change):
            module.__class__ = found.cls
    blocks = (*_fuse(model, chosen), *_join(model, chosen, dtype == KEEP)) if fuse else ()
    return Report(
        type(model).__name__,
        replaced=tuple(
            Replaced(name, type(module).__name__, found.spec, found.note)
            for name, module, found in decisions
            if isinstance(found, _Change)
        ),
        left=tuple(
            Left(name, type(module).__name__, found)
            for name, module, found in decisions
            if isinstance(found, str)
        ),
        fused=blocks,
        already=tuple(already),
    )


def unpatch(model: Module) -> tuple[str, ...]:
    """Put back what `patch` replaced; returns the names of the modules. Their parameters, buffers and hooks
    stay as they are.

    Raises TypeError for what is no module, and RuntimeError where the class of a module was changed again
    since (by `fully_shard`, or a parametrization); then nothing is put back.
    """
    if not isinstance(model, Module):
        raise TypeError(f"unpatch takes a torch.nn.Module, not {type(model).__name__}")
    return restore(list(model.named_modules()))


def _fuse(model: Module, chosen: Predicate) -> tuple[Replaced, ...]:
    """Fuse the blocks of a model whose norms are chosen."""
    done = []
    for name, block in list(model.named_modules()):
        cls: Any = type(block)
        norm = fusible(block)
        if norm and chosen(f"{name}.{norm}".lstrip("."), getattr(block, norm)):
            spec = getattr(block, norm).likeness.spec
            done.append(Replaced(name, cls.__name__, f"sum and {spec} ({norm})"))
            block.__class__ = fused(cls, norm, spec)
    return tuple(done)


def _join(model: Module, chosen: Predicate, rounded: bool) -> tuple[Replaced, ...]:
    """Join the norms of blocks that are chosen with what follows them."""
    done = []
    for name, block in list(model.named_modules()):
        cls: Any = type(block)
        found = [
            each
            for each in joinable(block)
            if chosen(f"{name}.{each.norm}".lstrip("."), block.get_submodule(each.norm))
        ]
        if found:
            done.append(Replaced(name, cls.__name__, _shown(block, found), "" if rounded else ONCE_ROUNDED))
            pairs = tuple(dict.fromkeys((each.norm, each.activation) for each in found))
            block.__class__ = joining(cls, pairs, rounded)
    return tuple(done)


def _shown(block: Module, found: Iterable[Found]) -> str:
    """The specs of norms and what they are joined with, each with the names of the norms."""
    names: dict[str, list[str]] = {}
    for each in found:
        base: Any = base_of(type(block.get_submodule(each.norm)))
        parts = f"{SPECS[base.__name__]}, sum" if each.added else SPECS[base.__name__]
        names.setdefault(f"{parts} and {each.kind}", []).append(each.norm)
    return "; ".join(f"{what} ({', '.join(dict.fromkeys(norms))})" for what, norms in names.items())


def _named(model: Module) -> dict[Module, list[str]]:
    """Each module once, with all its names in a model."""
    names: dict[Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return names


@dataclass(frozen=True, slots=True)
class _Change:
    """The class that a module is given."""

    cls: type[Module]
    spec: str
    note: str = ""


def _decide(module: Module, known: Callable[..., Likeness | str], once: bool) -> _Change | str | None:
    """What to make of a module: a change, the reason that there is none, or None if it is not a norm."""
    cls: Any = type(module)
    base = base_of(cls)
    if base is None and ("norm" not in cls.__name__.lower() or any(True for _ in module.children())):
        return None
    for holds, reason in OBSTACLES:
        if holds(module):
            return reason
    own = overridden(cls) if base is not None else ()
    if base is not None and not own:
        return _Change(drop_in(cls), SPECS[base.__name__])
    found = known(cls, settings_of(module), shapes_of(module), once)
    if isinstance(found, Likeness):
        return _Change(lookalike(cls, found), found.spec, _note(found))
    if base is not None and wraps_super(cls):
        return _Change(within(cls), SPECS[base.__name__], f"within {' and '.join(own)} of its own")
    if set(own) <= {"forward"} and redirected_to(cls):
        return _Change(redirecting(cls), " and ".join(redirected_to(cls)), "within forward of its own")
    return found if base is None else f"has {' and '.join(own)} of its own, and {found}"


# Why a module is left alone that is, or might be, a norm with a drop-in.
OBSTACLES: tuple[tuple[Callable[[Module], bool], str], ...] = (
    (lambda m: isinstance(m, torch.jit.ScriptModule), "is compiled by TorchScript"),
    (lambda m: "forward" in vars(m), "has a forward set on the instance (by accelerate, Liger or the like)"),
    (torch.nn.utils.parametrize.is_parametrized, "is parametrized: patch before that"),
    (
        lambda m: any(torch.nn.parameter.is_lazy(p) for p in m._parameters.values()),
        "has no parameters before its first call: patch after that",
    ),
)


def _note(found: Likeness) -> str:
    """Where results differ by more than the rounding of float32, and what runs as before."""
    before = [pair for pair in PAIRS if pair not in found.pairs]
    parts = [f"rounds less often in {_listed(found.differs)}"] if found.differs else []
    parts += [f"as before in {_listed(before)}"] if before else []
    parts += [f"as before with {', '.join(map(str, found.others))} dimensions"] if found.others else []
    return "; ".join(parts)


def _listed(pairs: Iterable[Pair]) -> str:
    """bfloat16, float16 x float32 (input x parameters)."""
    return ", ".join(" with ".join(dict.fromkeys(str(t).removeprefix("torch.") for t in p)) for p in pairs)
