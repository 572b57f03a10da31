"""Norms of other libraries: which spec a module is, told by what it computes.

Its own forward and a spec are both run on a small draw (see `probes`), in every element type. Agreement there
says which spec it is and where it rounds: rounding once more changes one element in four of a short type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import torch

from normgen.torch.patching.constants import constants_of
from normgen.torch.patching.probes import OPERANDS, PAIRS, RANKS, Form, Names, Pair, Probe, Verdict

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
EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps")
UNWEIGHTED = 64  # elements of a probe's row where no parameter says how many

# Those that round less often come first.
FORMS = (
    Form("rmsnorm", -1),
    Form("rmsnorm_llama", -1),
    Form("rmsnorm_zero_centred", -1),
    Form("rmsnorm_eps_outside", -1),
    Form("layernorm", -1),
    Form("layernorm_zero_centred", -1),
    Form("layernorm2d", 1),
    Form("instancenorm", 1),
)
FROZEN = Form("batchnorm", 1, (("training", False),))


@dataclass(frozen=True, slots=True)
class Likeness:
    """How a module of another library is a spec.

    `attributes`: its own, in the order of the spec's operands behind the input, "" for one that it lacks.
    `eps`: an attribute too, or the number itself. `pairs`: element types of input and parameters for which it
    is the spec. `differs`: those of them whose results round less often. `ranks`: numbers of dimensions of an
    input; `others`: those for which it computes something else. `widened`: whether autocast on a GPU gives it
    float32.
    """

    form: Form
    attributes: tuple[str, ...]
    eps: str | float
    pairs: tuple[Pair, ...]
    differs: tuple[Pair, ...]
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    widened: bool

    @property
    def spec(self) -> str:
        return self.form.spec


def settings_of(module: torch.nn.Module) -> Settings:
    """What an instance has beyond its parameters and what all modules have, as far as it can be a key."""
    common = vars(torch.nn.Module()).keys()
    return tuple((k, v) for k, v in vars(module).items() if k not in common and _hashable(v))


def _hashable(value: Any) -> bool:
    """Whether a value is a key: a tuple is one only where all that it has are."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def shapes_of(module: torch.nn.Module) -> Shapes:
    """What parameters and buffers a module has."""
    homes = (module._parameters, True), (module._buffers, False)
    return tuple(
        (name, each if each is None else tuple(each.shape), trained)
        for home, trained in homes
        for name, each in home.items()
    )


def likeness(cls: type[torch.nn.Module], settings: Settings, shapes: Shapes, once: bool) -> Likeness | str:
    """The spec that modules of a class compute, given what an instance has; or in words why none is known.

    `once`: whether the spec may round less often than the module does.
    """
    present = {name: shape for name, shape, _ in shapes if shape is not None}
    fault = _unknown(present)
    if fault:
        return fault
    size = next((shape[0] for shape in present.values()), UNWEIGHTED)
    absent = tuple(name for name, shape, _ in shapes if shape is None)
    trained = tuple(name for name, shape, trained in shapes if shape is not None and trained)
    probe = Probe(cls, dict(settings), size, absent, trained)
    forms = _forms(present, dict(settings), size)
    if all(probe.raises(form, tuple(present)) for form in forms):
        return "does not run on a small draw on the CPU, by which norms of other libraries are known"
    for eps in _epsilons(cls, dict(settings)):
        found = [
            made
            for names, form in product(_assignments(present), forms)
            if (made := _likeness(probe, form, names, eps, once)) is not None
        ]
        if found:
            return max(found, key=lambda each: len(each.pairs))  # the first of equals
    return "computes something that no bundled norm does"


def _unknown(present: dict[str, tuple[int, ...]]) -> str:
    """Why no spec has these parameters and buffers; "" where one may."""
    others = present.keys() - {name for name, what in USUAL.items() if what in STATISTICS}
    if len(others) > 2 or any(len(shape) != 1 for shape in present.values()):
        return f"has more than a gain, a bias and statistics of one dimension: {', '.join(present)}"
    if len(set(present.values())) > 1:
        return "its parameters and buffers differ in length"
    return "its parameters have one element" if (1,) in present.values() else ""


def _forms(present: dict[str, Any], settings: dict[str, Any], size: int) -> tuple[Form, ...]:
    if STATISTICS & {USUAL.get(name) for name in present}:
        return (FROZEN,)
    counts = {v for k, v in settings.items() if "group" in k and type(v) is int and v > 0 and size % v == 0}
    return (*FORMS, *(Form("groupnorm", 1, (("groups", count),)) for count in sorted(counts)))


def _assignments(present: dict[str, Any]) -> Iterator[Names]:
    """Which operand of a spec each parameter and buffer may be."""
    known = {name: USUAL[name] for name in present if name in USUAL}
    others = [name for name in present if name not in known]
    left = [operand for operand in ("w", "b") if operand not in known.values()]
    for operands in permutations(left, len(others)):
        assigned = {**known, **dict(zip(others, operands, strict=True))}
        if len({*assigned.values()}) == len(assigned):
            yield tuple((operand, name) for name, operand in assigned.items())


def _epsilons(cls: type[torch.nn.Module], settings: dict[str, Any]) -> Iterator[str | float]:
    """Attributes that may be an eps, then the numbers that a forward is written with."""
    usual = [name for name in EPSILONS if isinstance(settings.get(name), float)]
    others = [name for name, value in settings.items() if "eps" in name and isinstance(value, float)]
    yield from dict.fromkeys((*usual, *others))
    yield from constants_of(cls)


def _in_order(names: Names) -> tuple[str, ...]:
    known = dict(names)
    last = max((OPERANDS.index(operand) for operand in known), default=-1)
    return tuple(known.get(operand, "") for operand in OPERANDS[: last + 1])


def _likeness(probe: Probe, form: Form, names: Names, eps: str | float, once: bool) -> Likeness | None:
    each = probe.compare(form, names, eps)
    if each[PAIRS[0]] is not Verdict.SAME:
        return None
    near = tuple(p for p, verdict in each.items() if once and verdict is Verdict.NEAR)
    same = tuple(p for p, verdict in each.items() if verdict is Verdict.SAME)
    ranks = {rank: probe.compare_rank(form, names, eps, rank) for rank in RANKS}
    return Likeness(
        form,
        _in_order(names),
        eps,
        same + near,
        near,
        tuple(rank for rank, verdict in ranks.items() if verdict is Verdict.SAME),
        tuple(rank for rank, verdict in ranks.items() if verdict in (Verdict.NEAR, Verdict.APART)),
        probe.is_widened(form, names),
    )
