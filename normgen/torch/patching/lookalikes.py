"""Norms of other libraries: which spec a module is, told by what it computes.

Its own forward and a spec are both run on a small draw (see `probes`), in every element type. Agreement there
says which spec it is and where it rounds: rounding once more changes one element in four of a short type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from inspect import signature
from itertools import permutations, product
from typing import Any

import torch

from normgen.torch.patching.effects import effects
from normgen.torch.patching.probes import OPERANDS, PAIRS, RANKS, Form, Names, Pair, Probe, Verdict
from normgen.torch.patching.selection import is_called_norm
from normgen.torch.patching.watching import MISSING, Watch, Watched, is_plain

Settings = tuple[tuple[str, Any], ...]
# The names of parameters and buffers, their shapes, None where they are, and whether they are parameters.
Shapes = tuple[tuple[str, "tuple[int, ...] | None", bool], ...]

# What an attribute of a name is. Others are tried as a gain and as a bias.
USUAL = {
    **dict.fromkeys(("weight", "scale", "gamma", "gain"), "w"),
    **dict.fromkeys(("bias", "beta"), "b"),
    **dict.fromkeys(("running_mean", "moving_mean", "mean"), "running_mean"),
    **dict.fromkeys(("running_var", "moving_var", "moving_variance", "var"), "running_var"),
}
STATISTICS = {"running_mean", "running_var"}
UNWEIGHTED = 64  # elements of a probe's row where no parameter says how many

# Those that round less often come first.
FORMS = (
    Form("rmsnorm", -1),
    Form("rmsnorm_llama", -1),
    Form("rmsnorm_zero_centred", -1),
    Form("rmsnorm_eps_outside", -1, power=1),
    Form("layernorm", -1),
    Form("layernorm_zero_centred", -1),
    Form("layernorm2d", 1),
    Form("instancenorm", 1),
)
APART = "computes something that no bundled norm does"
FROZEN = Form("batchnorm", 1, (("training", False),))


@dataclass(frozen=True, slots=True)
class Likeness:
    """How a module of another library is a spec.

    `names`: its attributes for operands of the spec. `watched`: what its forward reads beside them. `eps`,
    `pairs`: for which number, and for which element types of input and parameters, it is the spec. `differs`:
    those of them whose results round less often. `ranks`: numbers of dimensions of an input; `others`: those
    for which it computes something else. `widened`: whether autocast on a GPU gives it float32.
    """

    form: Form
    names: Names
    watched: Watched
    eps: float
    pairs: tuple[Pair, ...]
    differs: tuple[Pair, ...]
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    widened: bool

    @property
    def spec(self) -> str:
        return self.form.spec

    @property
    def attributes(self) -> tuple[str, ...]:
        """Those for the spec's operands behind the input, in their order; "" for one that it lacks."""
        known = dict(self.names)
        last = max((OPERANDS.index(operand) for operand in known), default=-1)
        return tuple(known.get(operand, "") for operand in OPERANDS[: last + 1])


def settings_of(module: torch.nn.Module) -> dict[str, Any]:
    """What an instance has beyond its parameters and what all modules have, where nothing else can change
    it."""
    common = vars(torch.nn.Module()).keys()
    return {k: v for k, v in vars(module).items() if k not in common and is_plain(v)}


def shapes_of(module: torch.nn.Module) -> Shapes:
    """What parameters and buffers a module has."""
    homes = (module._parameters, True), (module._buffers, False)
    return tuple(
        (name, each if each is None else tuple(each.shape), trained)
        for home, trained in homes
        for name, each in home.items()
    )


class Likenesses:
    """The specs that modules compute, or in words why none is known. Each is found once for all modules of a
    class that agree in their shapes and in what their forward reads.

    `once`: whether a spec may round less often than the module does.
    """

    def __init__(self, once: bool) -> None:
        self.once = once
        self._known: dict[Any, list[tuple[Settings, Likeness | str]]] = {}

    def of(self, module: torch.nn.Module) -> Likeness | str:
        cls, shapes, own = type(module), shapes_of(module), settings_of(module)
        known = self._known.setdefault((cls, shapes), [])
        for read, found in known:
            if all(_is_same(own.get(name, MISSING), value) for name, value in read):
                return found
        watch = Watch(cls)
        found = _likeness(watch, own, shapes, self.once)
        known.append((tuple((name, own.get(name, MISSING)) for name in watch.read), found))
        return found


def _is_same(now: Any, value: Any) -> bool:
    return type(now) is type(value) and now == value


def _likeness(watch: Watch, own: dict[str, Any], shapes: Shapes, once: bool) -> Likeness | str:
    present = {name: shape for name, shape, _ in shapes if shape is not None}
    fault = _unknown(present)
    if fault:
        return fault
    size = next((shape[0] for shape in present.values()), UNWEIGHTED)
    absent = tuple(name for name, shape, _ in shapes if shape is None)
    trained = tuple(name for name, shape, trained in shapes if shape is not None and trained)
    if doubt := _doubt(watch):  # before the forward runs, which may change what it names
        return doubt
    probe = Probe(watch, own, size, absent, trained)
    found = _found(probe, present, once)
    if isinstance(found, Likeness):
        found = _with_ranks(probe, found)
    doubt = watch.doubt({*present, *absent, *own})
    if doubt or isinstance(found, str):
        return doubt or found
    return replace(found, watched=watch.watched(present, absent, own))


def _unknown(present: dict[str, tuple[int, ...]]) -> str:
    """Why no spec has these parameters and buffers; "" where one may."""
    others = present.keys() - {name for name, what in USUAL.items() if what in STATISTICS}
    if len(others) > 2 or any(len(shape) != 1 for shape in present.values()):
        return f"has more than a 1-D weight, bias and running statistics: {', '.join(present)}"
    if (0,) in present.values():
        return "its parameters are empty: call patch before they are partitioned, or after they are filled"
    if len(set(present.values())) > 1:
        return "its parameters and buffers differ in length"
    return "its parameters have one element each" if (1,) in present.values() else ""


def _doubt(watch: Watch) -> str:
    """Why the forward of a class is not run."""
    needed = [each for each in signature(watch.cls.forward).parameters.values() if each.default is each.empty]
    inputs = [
        each.name for each in needed[1:] if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    if len(inputs) > 1:
        return f"its forward takes several inputs: {', '.join(inputs)}"
    if is_called_norm(watch.cls):
        return watch.doubt({})
    acts = effects(watch.cls)
    return f"is not probed, since it may have side effects: it uses {', '.join(acts)}" if acts else ""


def _found(probe: Probe, present: dict[str, Any], once: bool) -> Likeness | str:
    """The form that the class of a probe agrees with in most element types."""
    attributes = tuple(present)
    forms: tuple[Form, ...] = (FROZEN,) if STATISTICS & {USUAL.get(name) for name in present} else FORMS
    places = {form.channels: form for form in forms}
    runs = {place: probe.is_scale_free(form, attributes) for place, form in places.items()}
    if all(each is None for each in runs.values()):
        return "fails on the small CPU inputs by which patch tells norms"
    if forms != (FROZEN,):
        forms = tuple(form for form in forms if runs[form.channels])
        groups = probe.groups(attributes) if runs[1] else None
        forms += () if groups is None else (Form("groupnorm", 1, (("groups", groups),)),)
    tried = (_agreed(probe, form, names, once) for names, form in product(_assignments(present), forms))
    return max((each for each in tried if each), key=lambda each: len(each.pairs), default=APART)


def _assignments(present: dict[str, Any]) -> Iterator[Names]:
    """Which operand of a spec each parameter and buffer may be."""
    known = {name: USUAL[name] for name in present if name in USUAL}
    others = [name for name in present if name not in known]
    left = [operand for operand in ("w", "b") if operand not in known.values()]
    for operands in permutations(left, len(others)):
        assigned = {**known, **dict(zip(others, operands, strict=True))}
        if len({*assigned.values()}) == len(assigned):
            yield tuple((operand, name) for name, operand in assigned.items())


def _agreed(probe: Probe, form: Form, names: Names, once: bool) -> Likeness | None:
    eps = probe.fit(form, names)
    if eps is None:
        return None
    each = probe.compare(form, names, eps)
    if each[PAIRS[0]] is not Verdict.SAME:
        return None
    near = tuple(p for p, verdict in each.items() if once and verdict is Verdict.NEAR)
    taken = tuple(pair for pair, verdict in each.items() if verdict is Verdict.SAME) + near
    return Likeness(form, names, (), eps, taken, near, (), (), probe.is_widened(form, names))


def _with_ranks(probe: Probe, found: Likeness) -> Likeness | str:
    """The same with the numbers of dimensions for which it holds."""
    verdicts = {rank: probe.compare_rank(found.form, found.names, found.eps, rank) for rank in RANKS}
    ranks = [rank for rank, verdict in verdicts.items() if verdict is Verdict.SAME]
    if not all(probe.is_straight(found.form, found.names, rank) for rank in ranks):
        return "computes differently for some values or sizes"
    others = (rank for rank in RANKS if verdicts[rank] is not Verdict.RAISED and rank not in ranks)
    return replace(found, ranks=tuple(ranks), others=tuple(others))
