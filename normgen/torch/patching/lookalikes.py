"""Norms of other libraries: which spec a module is, told by what it computes.

Its own forward and a spec are both run on a small draw (see `probes`), in every element type. Agreement there
says which spec it is and where it rounds: rounding once more changes one element in four of a short type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from normgen.torch.patching.probes import PAIRS, Form, Pair, Probe, Verdict

Settings = tuple[tuple[str, Any], ...]
Shapes = tuple[tuple[str, "tuple[int, ...] | None"], ...]

GAINS = ("weight", "scale", "gamma", "gain")
BIASES = ("bias", "beta")
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
)


@dataclass(frozen=True, slots=True)
class Likeness:
    """How a module of another library is a spec.

    `gain`, `bias`, `eps`: its attributes, "" where it has none. `pairs`: element types of input and
    parameters for which it is the spec. `differs`: those of them whose results round less often.
    """

    spec: str
    gain: str
    bias: str
    eps: str
    pairs: tuple[Pair, ...]
    differs: tuple[Pair, ...]


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
    """The names and shapes of a module's parameters; None for those that it does without."""
    return tuple((name, p if p is None else tuple(p.shape)) for name, p in module._parameters.items())


def likeness(cls: type[torch.nn.Module], settings: Settings, shapes: Shapes, once: bool) -> Likeness | str:
    """The spec that modules of a class compute, given what an instance has; or in words why none is known.

    `once`: whether the spec may round less often than the module does.
    """
    present = {name: shape for name, shape in shapes if shape is not None}
    gain = next((name for name in GAINS if name in present), "")
    bias = next((name for name in BIASES if name in present), "")
    eps = next((name for name, value in settings if name in EPSILONS and isinstance(value, float)), "")
    if present.keys() - {gain, bias} or any(len(shape) != 1 for shape in present.values()):
        return f"has parameters other than a gain and a bias of one dimension: {', '.join(present)}"
    sizes = {shape[0] for shape in present.values()} or {UNWEIGHTED}
    if len(sizes) > 1:
        return "its gain and its bias differ in length"
    absent = tuple(name for name, _ in shapes if name not in present)
    probe = Probe(cls, dict(settings), gain, bias, eps, sizes.pop(), absent)
    verdicts = {form: probe.compare(form) for form in FORMS}
    if all(set(each.values()) == {Verdict.RAISED} for each in verdicts.values()):
        return "does not run on a small draw on the CPU, by which norms of other libraries are known"
    found = []
    for form, each in verdicts.items():
        if each[PAIRS[0]] is Verdict.SAME:
            near = tuple(p for p, verdict in each.items() if once and verdict is Verdict.NEAR)
            same = tuple(p for p, verdict in each.items() if verdict is Verdict.SAME)
            found.append(Likeness(form.spec, gain, bias, eps, same + near, near))
    if not found:
        return "computes something that no bundled norm does"
    return max(found, key=lambda each: len(each.pairs))  # the first of equals
