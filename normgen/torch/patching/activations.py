"""The activations that are joined to norms: how a spec writes each, and how models do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

# The attr of a spec, and the argument of a function, that an activation has besides its input.
SLOPE = "negative_slope"


@dataclass(frozen=True, slots=True)
class Activation:
    """An elementwise function. Ties are PyTorch's: where it has a kink, so is its derivative.

    `value`: of v, in the language. `attrs`: further statements of a spec. `tells`: whether its result tells
    its derivative, so that v need not be computed again for that.
    """

    title: str
    value: str
    attrs: str = ""
    tells: bool = False


ACTIVATIONS = {
    "relu": Activation("ReLU", "max(v, 0)", tells=True),
    "relu6": Activation("ReLU6", "max(min(v, 6), 0)"),
    "leaky_relu": Activation(
        "leaky ReLU",
        f"v if v > 0 else v * {SLOPE}",
        f'attr   {SLOPE} = 0.01   "the slope of what is below 0"',
    ),
    "silu": Activation("SiLU", "silu(v)"),
    "gelu": Activation("GELU", "gelu(v)"),
    "gelu_tanh": Activation("GELU by tanh", "gelu_tanh(v)"),
    "mish": Activation("Mish", "v * tanh(softplus(v))"),
    "sigmoid": Activation("sigmoid", "sigmoid(v)"),
    "tanh": Activation("tanh", "tanh(v)"),
    "hardsigmoid": Activation("hard sigmoid", "0 if v <= -3 else (1 if v >= 3 else (v + 3) / 6)"),
    "hardswish": Activation("hard SiLU", "v * (0 if v <= -3 else (6 if v >= 3 else v + 3)) / 6"),
}


class Follower(NamedTuple):
    """An activation as a model calls it. `numbers`: its attrs."""

    name: str
    numbers: Mapping[str, float]


_LEAKY = {SLOPE: 0.01}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"leaky_relu": _LEAKY, "gelu": {"approximate": "none"}}
MODULES: dict[type, str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.LeakyReLU: "leaky_relu",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    nn.Mish: "mish",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Hardswish: "hardswish",
}
# What functions of `torch.nn.functional` take behind their first argument, where that is not `inplace` alone.
_PARAMETERS = {"leaky_relu": (SLOPE, "inplace"), "gelu": ("approximate",), "sigmoid": (), "tanh": ()}
FUNCTIONS: dict[Any, tuple[str, tuple[str, ...]]] = {
    **{getattr(functional, each): (each, _PARAMETERS.get(each, ("inplace",))) for each in MODULES.values()},
    torch.relu: ("relu", ()),
    torch.relu_: ("relu", ()),
    torch.sigmoid: ("sigmoid", ()),
    torch.tanh: ("tanh", ()),
}


def follower(
    activation: Any, given: Sequence[Any] = (), named: Mapping[str, Any] | None = None
) -> Follower | None:
    """What a module or a function with these further arguments is; None where it is no activation here."""
    if name := MODULES.get(type(activation), ""):
        settings = {each: getattr(activation, each) for each in _DEFAULTS[name]} if name in _DEFAULTS else {}
        return None if given or named else _follower(name, settings)
    name, parameters = _among(activation) or ("", ())
    named = named or {}
    if not name or len(given) > len(parameters) or not {*named} <= {*parameters}:
        return None
    return _follower(name, {**_DEFAULTS.get(name, {}), **dict(zip(parameters, given, strict=False)), **named})


def _among(function: Any) -> tuple[str, tuple[str, ...]] | None:
    try:
        return None if isinstance(function, nn.Module) else FUNCTIONS.get(function)
    except TypeError:  # not hashable
        return None


def _follower(name: str, settings: Mapping[str, Any]) -> Follower | None:
    approximate = settings.get("approximate", "none")
    if approximate != "none":
        return Follower("gelu_tanh", {}) if approximate == "tanh" else None
    return Follower(name, {SLOPE: float(settings[SLOPE])} if name == "leaky_relu" else {})
