"""The activations that are joined to norms: how a spec writes each, and how models do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

# Which attrs of a spec, or arguments of functions, an activation has besides what it is of.
SLOPE = "negative_slope"
_IN_PLACE = ("inplace",)


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


@dataclass(frozen=True, slots=True)
class _Known:
    """A module or a function that is an activation.

    `parameters`: those of a function behind its first. `defaults`: of what is no number of a spec's and yet
    decides, or of what is.
    """

    name: str
    parameters: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


_GELU, _LEAKY = {"approximate": "none"}, {SLOPE: 0.01}
MODULES: dict[type, _Known] = {
    nn.ReLU: _Known("relu"),
    nn.ReLU6: _Known("relu6"),
    nn.LeakyReLU: _Known("leaky_relu", defaults=_LEAKY),
    nn.SiLU: _Known("silu"),
    nn.GELU: _Known("gelu", defaults=_GELU),
    nn.Mish: _Known("mish"),
    nn.Sigmoid: _Known("sigmoid"),
    nn.Tanh: _Known("tanh"),
    nn.Hardsigmoid: _Known("hardsigmoid"),
    nn.Hardswish: _Known("hardswish"),
}
FUNCTIONS: dict[Any, _Known] = {
    torch.relu: _Known("relu"),
    torch.relu_: _Known("relu"),
    functional.relu: _Known("relu", _IN_PLACE),
    functional.relu6: _Known("relu6", _IN_PLACE),
    functional.leaky_relu: _Known("leaky_relu", (SLOPE, *_IN_PLACE), _LEAKY),
    functional.silu: _Known("silu", _IN_PLACE),
    functional.gelu: _Known("gelu", tuple(_GELU), _GELU),
    functional.mish: _Known("mish", _IN_PLACE),
    torch.sigmoid: _Known("sigmoid"),
    functional.sigmoid: _Known("sigmoid"),
    torch.tanh: _Known("tanh"),
    functional.tanh: _Known("tanh"),
    functional.hardsigmoid: _Known("hardsigmoid", _IN_PLACE),
    functional.hardswish: _Known("hardswish", _IN_PLACE),
}


def follower(activation: Any, given: Sequence[Any] = (), named: Mapping[str, Any] | None = None) -> Any:
    """What a module or a function with these further arguments is; None where it is no activation here."""
    named = named or {}
    known = MODULES.get(type(activation))
    if known is not None:
        found = {name: getattr(activation, name) for name in known.defaults}
        return None if given or named else _follower(known, found)
    known = _function(activation)
    if known is None or len(given) > len(known.parameters) or not {*named} <= {*known.parameters}:
        return None
    return _follower(known, {**known.defaults, **dict(zip(known.parameters, given, strict=False)), **named})


def _function(activation: Any) -> _Known | None:
    return None if isinstance(activation, nn.Module) or not callable(activation) else _among(activation)


def _among(function: Any) -> _Known | None:
    try:
        return FUNCTIONS.get(function)
    except TypeError:  # not hashable
        return None


def _follower(known: _Known, found: Mapping[str, Any]) -> Follower | None:
    approximate = found.get("approximate", "none")
    if approximate != "none":
        return Follower("gelu_tanh", {}) if approximate == "tanh" else None
    return Follower(known.name, {SLOPE: float(found[SLOPE])} if SLOPE in known.defaults else {})
