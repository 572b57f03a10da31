"""The bundled specs as definitions, and arrays to try them on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.ir.program import Definition, Program

SPECS = Path(__file__).parents[2] / "specs"

# What a spec needs to be told, and the variants of a spec that are different programs.
VARIANTS: dict[str, dict[str, object]] = {
    "groupnorm": {"groups": 2},
    "groupnorm_silu": {"groups": 2},
    "groupnorm_channels_last": {"groups": 2},
    "groupnorm_silu_channels_last": {"groups": 2},
    "adagn": {"groups": 2},
    "qk_norm": {"head_dim": 4},
    "batchnorm-eval": {"training": False},
    "batchnorm_channels_last-eval": {"training": False},
    "gated_rmsnorm_grouped": {"groups": 2},
    "gated_rmsnorm_grouped-after": {"groups": 2, "norm_before_gate": False},
    "weight_standardization-scaled": {"scaled": True},
    "gated_rmsnorm-after": {"norm_before_gate": False},
    "local_response_norm-even": {"n": 4},
    "local_response_norm_within-even": {"n": 4},
    "rmsnorm_fp8": {"group": 4},
    "rmsnorm_fp8-e5m2": {"group": 4, "e5m2": True},
    "rmsnorm_quantized_group": {"group": 4},
}
NAMES = tuple(sorted({p.stem for p in SPECS.glob("*.norm")} | VARIANTS.keys()))

EXTENTS: dict[str, int] = {
    "...": 3, "B": 2, "S": 3, "C": 5, "D": 7, "G": 2, "E": 4, "H": 2, "K": 3, "W": 5,
}  # fmt: skip


def bundled(name: str) -> Definition:
    """A bundled spec, or a variant of one."""
    path = SPECS / f"{name.partition('-')[0]}.norm"
    return load_definition(Source(path.name, path.read_text(encoding="utf-8")), VARIANTS.get(name, {}))


def written(text: str, **attrs: object) -> Definition:
    """A spec written in a test; the heading may be left out."""
    return load_definition(
        Source("test.norm", text if text.startswith("norm") else f"norm test\n{text}"), attrs
    )


def extents(definition: Definition) -> dict[str, int]:
    """A small length for every axis; axes that the spec fixes have theirs."""
    fixed = {axis.name: axis.extent for axis in definition.program.axes if axis.extent is not None}
    return {axis.name: EXTENTS.get(axis.name, 4) for axis in definition.program.axes} | fixed


def draw(
    definition: Definition, backward: Program | None, sizes: Mapping[str, int], seed: int = 0
) -> dict[str, Any]:
    """Arrays for operands and cotangents: N(0, 1), near the default where there is one, states above 0."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for tensor in (*definition.program.operands, *(backward.operands if backward else ())):
        if tensor.name not in arrays and tensor.role != "saved":
            noise = rng.normal(size=[sizes[axis] for axis in tensor.order])
            if tensor.role == "state":
                noise = rng.uniform(0.5, 1.5, size=noise.shape)
            elif tensor.default is not None:
                noise = float(tensor.default) + 0.2 * noise
            arrays[tensor.name] = noise
    return arrays
