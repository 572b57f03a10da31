"""Replace the norms of a model by normgen's, in place, and put them back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module

from normgen.torch.patching.classes import Match, Patched, become, restore
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
from normgen.torch.patching.functional import INSTEAD
from normgen.torch.patching.fusing import fused, fusible, unfused
from normgen.torch.patching.joining import joinable, joining
from normgen.torch.patching.lookalikes import Likeness, Likenesses
from normgen.torch.patching.probes import PAIRS, Pair
from normgen.torch.patching.report import Left, Replaced, Report
from normgen.torch.patching.selection import Only, Predicate, holds_norm, is_foreign, may_be_norm, selector
from normgen.torch.patching.sources import FORWARD, codes

KEEP = "keep"
ONCE = "once"
FUNCTIONS = frozenset(function.__name__ for function in INSTEAD)
ONCE_ROUNDED = "rounds less often for bf16, f16"
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.float64: "f64"}


def patch(model: Module, dtype: str = KEEP, only: Only = None, fuse: bool = False) -> Report:
    """Replace the norms of a model with normgen's, in place; returns what it replaced, what it left, and why.

    PyTorch's own norms become the drop-in of the same name in `normgen.torch.nn`, also in subclasses that
    keep their methods or call them with `super()`. Modules of other libraries, whatever their name, become
    the bundled spec that their forward computes; a small draw on the CPU decides. A forward that calls
    norms of `torch.nn.functional` calls kernels instead. A module stays the same object and changes its
    class: name, parameters (tied ones too), buffers, hooks, device, training flag and `state_dict` stay.
    Patching twice is patching once. On a CPU, a patched module runs its own code.

    `dtype`: "keep" keeps the places where a module rounds to a short dtype. "once" lets results round once,
    at the end. This is at least as exact, but differs in the last bit of some elements; the report says
    where.
    `only`: a glob pattern of module names, a type, a function of a name and a module, or a sequence of
    these, of which one must match. None: all modules.
    `fuse`: whether to join replaced norms with their neighbors in a block: RMSNorm and LayerNorm with the
    residual add before them, batch and group norms with the activation after them, and a residual add in
    between. normgen reads the source of a block's forward, and the order of modules in a Sequential.

    Raises TypeError and ValueError for arguments that it cannot take, before anything changes.
    """
    if not isinstance(model, Module):
        raise TypeError(f"patch takes a torch.nn.Module, not {type(model).__name__}")
    if dtype not in (KEEP, ONCE):
        raise ValueError(f"dtype must be {KEEP!r} or {ONCE!r} but is {dtype!r}")
    chosen = selector(only, model)
    known = Likenesses(dtype == ONCE)
    decisions, already = [], []
    for module, names in _named(model).items():
        for name in [each for each in names if chosen(each, module)][:1]:
            if isinstance(module, Patched):
                already.append(name)
            else:
                decisions.append((name, module, _tried(_decide, module, known)))
    for _, module, found in decisions:
        if isinstance(found, _Change):
            become(module, found.cls)
    kept = {module for _, module, found in decisions if isinstance(found, str)}
    apart = unfused(model, kept) if fuse else ()
    blocks = tuple(_joined(model, chosen, dtype == KEEP)) if fuse else ()
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
        unfused=apart,
        already=tuple(already),
        on_cpu=_devices(model) == {"cpu"},
    )


def unpatch(model: Module) -> tuple[str, ...]:
    """Put back what `patch` replaced; returns the names of the modules. Their parameters, buffers and hooks
    stay as they are.

    Raises TypeError for anything but a module, and RuntimeError where the class of a module was changed again
    since (by `fully_shard`, or a parametrization); then nothing is put back.
    """
    if not isinstance(model, Module):
        raise TypeError(f"unpatch takes a torch.nn.Module, not {type(model).__name__}")
    return restore(list(model.named_modules()))


def _joined(model: Module, chosen: Predicate, rounded: bool) -> Iterator[Replaced]:
    """Join the chosen norms of blocks with a sum before them, then others with an activation behind them.
    `rounded`: whether what stands between is rounded as before."""
    yield from _join(model, chosen, fusible, fused)
    note = "" if rounded else ONCE_ROUNDED
    yield from _join(model, chosen, joinable, lambda cls, pairs: joining(cls, pairs, rounded), note)


def _join(
    model: Module,
    chosen: Predicate,
    find: Callable[[Module], Iterable[Match]],
    make: Callable[..., type[Module]],
    note: str = "",
) -> Iterator[Replaced]:
    """Join the chosen norms of blocks with their neighbors. `find`: the norms of a block that can be joined;
    `make`: the class for a block, from its own class and the keys of these."""

    def change(name: str, block: Module) -> _Change | None:
        shown: dict[str, dict[str, None]] = {}
        keys: dict[Any, None] = {}
        for each in () if isinstance(block, Patched) or FORWARD in vars(block) else find(block):
            if chosen(f"{name}.{each.norm}".lstrip("."), block.get_submodule(each.norm)):
                shown.setdefault(each.shown, {})[each.norm] = keys[each.key] = None
        text = "; ".join(f"{what} ({', '.join(norms)})" for what, norms in shown.items())
        return _Change(make(type(block), tuple(keys)), text, note) if keys else None

    for name, block in list(model.named_modules()):
        found = _tried(change, name, block)
        if isinstance(found, _Change):
            yield Replaced(name, type(block).__name__, found.spec, found.note)
            become(block, found.cls)


def _devices(model: Module) -> set[str]:
    """The kinds of device on which a model has parameters and buffers."""
    homes = (home for module in model.modules() for home in (module._parameters, module._buffers))
    own = (each for home in homes for each in home.values())
    return {each.device.type for each in own if each is not None}


def _tried(look: Callable[..., _Change | str | None], *given: Any) -> _Change | str | None:
    """What is found where the code of a module may run, which may raise whatever it likes."""
    try:
        return look(*given)
    except Exception as fault:
        return f"inspecting it raised {type(fault).__name__}: {str(fault).partition(chr(10))[0]}"


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


def _decide(module: Module, known: Likenesses) -> _Change | str | None:
    """What to make of a module: a change, the reason that there is none, or None if it is not a norm."""
    cls: Any = type(module)
    base = base_of(cls)
    if base is None and not may_be_norm(module) and not _calls_norm(module):
        return None
    for holds, reason in OBSTACLES:
        if holds(module):
            return reason
    own = overridden(cls) if base is not None else ()
    if base is not None and not own:
        return _Change(drop_in(cls), SPECS[base.__name__])
    held = ", ".join(name for name, _ in module.named_children())
    found = f"is not probed, since it holds other modules: {held}" if held else known.of(module)
    if isinstance(found, Likeness):
        return _Change(lookalike(cls, found), found.spec, _note(found))
    if base is not None and wraps_super(cls):
        return _Change(within(cls), SPECS[base.__name__], f"inside its own {' and '.join(own)}")
    if set(own) <= {"forward"} and redirected_to(cls):
        return _Change(redirecting(cls), " and ".join(redirected_to(cls)), "inside its own forward")
    return found if base is None else f"overrides {' and '.join(own)}, and {found}"


def _calls_norm(module: Module) -> bool:
    """Whether the forward of a module that is no norm, and holds none with which it could be fused, calls a
    norm of `torch.nn.functional`. Its source is read only if its code has such a name."""
    cls: Any = type(module)
    code = getattr(inspect.unwrap(cls.forward), "__code__", None)
    names = {name for each in codes(code) for name in each.co_names} if code else set()
    if not is_foreign(cls) or names.isdisjoint(FUNCTIONS) or holds_norm(module):
        return False
    return bool(redirected_to(cls))


# Why a module is left alone that is, or might be, a norm with a drop-in.
OBSTACLES: tuple[tuple[Callable[[Module], bool], str], ...] = (
    (lambda m: type(m).__module__.startswith("normgen."), "is a module of normgen"),
    (lambda m: isinstance(m, torch.jit.ScriptModule), "is compiled by TorchScript"),
    (lambda m: "forward" in vars(m), "has a forward set on the instance (by accelerate, Liger or the like)"),
    (torch.nn.utils.parametrize.is_parametrized, "is parametrized: call patch before"),
    (
        lambda m: any(torch.nn.parameter.is_lazy(p) for p in m._parameters.values()),
        "has no parameters before its first call: call patch after it",
    ),
)


def _note(found: Likeness) -> str:
    """Where results differ by more than the rounding of float32, and for what the original code runs."""
    original = _listed([pair for pair in PAIRS if pair not in found.pairs])
    original += [f"{rank}-dimensional input" for rank in found.others]
    parts = [f"rounds less often for {', '.join(_listed(found.differs))}"] if found.differs else []
    parts += [f"runs the original code for {', '.join(original)}"] if original else []
    return "; ".join(parts)


def _listed(pairs: Container[Pair]) -> list[str]:
    """Element types such as "f16", or "f16 input with f32 weight" where not all weights are meant."""
    listed = []
    for x, name in NAMES.items():
        own = [pair for pair in PAIRS if pair[0] is x]
        found = [pair for pair in own if pair in pairs]
        listed += (
            [name] if found == own else [f"{name} input with {NAMES[weight]} weight" for _, weight in found]
        )
    return listed
