"""Calls of the functions of specs, with operands drawn as `normgen check` draws them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

import normgen.torch as nt
from normgen import bundled
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.torch.dtypes import TYPES
from normgen.torch.nn import texts
from normgen.verify.cases import make_case, same_dtype
from normgen.verify.draw import attr_choices, draw, scalar_values

GROUPS = 2  # every int attr that has no default
SMALL = {"rmsnorm_quantized_group": {"group": 4}, "rmsnorm_fp8": {"group": 4}}


# The specs that only modules have.
TEXTS = [text for name, text in vars(texts).items() if name.isupper()]


@cache
def variants():
    """Every spec, by name or as text, with each choice of its bools: (spec, attrs)."""
    return [
        (spec, attrs)
        for spec in (*bundled.names(), *TEXTS)
        for attrs in attr_choices(parse(_source(spec)), SMALL.get(spec, {}))
        if all(
            isinstance(value, bool) or value in (GROUPS, SMALL.get(spec, {}).get(key))
            for key, value in attrs.items()
        )
    ]


def _source(spec):
    return Source("text.norm", spec) if spec in TEXTS else bundled.read(spec)


# What PyTorch cannot differentiate: what is differentiated is not returned.
CONSTANT = {
    "rmsnorm_fp8": "the gradient is that of `y`, a let: outputs are quantised",
    "rmsnorm_quantized_static": "the gradient is that of `y`, a let: outputs are quantised",
}


def differentiable_variants():
    """The variants that have gradients in PyTorch."""
    return [variant for variant in variants() if variant[0] not in CONSTANT]


def label(variant):
    """The name of a variant in a test's, groupnorm-groups=2, or the name of a kind itself."""
    if isinstance(variant, str):
        return variant
    spec, attrs = variant
    name = spec.split()[1] if spec in TEXTS else spec
    return "-".join([name, *(f"{key}={value}" for key, value in attrs.items())])


@dataclass(frozen=True)
class Example:
    """A call of a function: tensors in the order of its operands, numbers in that of its attrs."""

    function: nt.NormFunction
    definition: object
    tensors: tuple[torch.Tensor, ...]
    numbers: tuple[float, ...]

    def required(self):
        """The tensors, of which those that the spec differentiates by require a gradient."""
        names = self.function._step.operands
        return tuple(
            tensor.detach().clone().requires_grad_(name in self.definition.wrt and tensor.itemsize > 1)
            for name, tensor in zip(names, self.tensors, strict=True)
        )

    def call(self, *tensors):
        """The differentiable outputs of a call."""
        step = self.function._step
        made = self.function(*tensors, **self.named)
        made = made if isinstance(made, tuple) else (made,)
        return tuple(each for place, each in enumerate(made) if place not in step.constants)

    @property
    def named(self):
        """The attrs by name."""
        return dict(zip((attr.name for attr in self.function._step.attrs), self.numbers, strict=True))


def example(variant, dtype="f32", layout="dense", rows=3, width=6):
    """A call of a variant, whose operands have this element type where the spec leaves it open."""
    spec, attrs = variant
    definition = load_definition(_source(spec), attrs)
    scalars = scalar_values(definition.program)
    case = make_case(definition, rows, width, same_dtype(dtype))
    arrays = draw(definition, case, scalars).arrays
    tensors = []
    for tensor in definition.program.operands:
        kind = "f64" if dtype == "f64" and tensor.dtype is None else case.dtypes[tensor.name]
        drawn = torch.from_numpy(arrays[tensor.name]).reshape(case.memory_shape(tensor)).to(TYPES[kind])
        tensors.append(drawn if tensor.role == "state" else LAYOUTS[layout](drawn))
    return Example(nt.load(spec, **attrs), definition, tuple(tensors), tuple(scalars.values()))


def _permuted(tensor):
    order = tuple(reversed(range(tensor.ndim)))
    return tensor.permute(order).contiguous().permute(order)


def _expanded(tensor):
    return tensor[:1].expand(tensor.shape) if tensor.ndim else tensor


LAYOUTS = {"dense": lambda tensor: tensor, "permuted": _permuted, "expanded": _expanded}
