"""What a check refuses before it begins: names that a spec does not have, which it would pass over in
silence, and sizes that would take the host hours."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from normgen.diagnostics import Source
from normgen.ir.program import Definition, Program
from normgen.verify.draw import attr_choices, cotangent_tensors
from normgen.verify.run import Options

LARGEST = 1 << 26  # elements of a tensor
DTYPES = ("f32", "f16", "bf16")
EXECUTORS = ("host", "cuda")


class Refused(ValueError):
    """An option that does not fit the spec, or none that there is. `option`: the field of `Options`."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


def checked_definition(source: Source, options: Options) -> Definition:
    """The definition that a check begins with. Raises `Refused`, and `SpecError` if it is none."""
    from normgen.codegen.ranks import local_definition
    from normgen.dsl import load_definition
    from normgen.dsl.syntax import parse

    _check_choices(options)
    definition = load_definition(source, attr_choices(parse(source), options.attrs or {})[0])
    for ranks in {*(options.shard or {}).values()}:
        local_definition(definition, options.shard or {}, ranks)
    _check_sizes(definition.program, options.sizes or {})
    names = [tensor.name for tensor in (*definition.program.operands, *cotangent_tensors(definition))]
    for name in options.samples or {}:
        if name not in names:
            raise Refused("samples", f"there is no tensor {name}; the tensors are {', '.join(names)}")
    return definition


def _check_choices(options: Options) -> None:
    if options.quick and options.thorough:
        raise Refused("quick", "quick and thorough exclude each other: pass one of them")
    if options.dtype not in (None, *DTYPES):
        raise Refused("dtype", f"kernels are not checked in {options.dtype}: pass one of {', '.join(DTYPES)}")
    counts = dict.fromkeys((options.shard or {}).values())
    if len(counts) > 1 or any(count < 1 for count in counts):
        raise Refused("shard", "all axes share the same ranks: give each the same number, at least 1")
    if options.shard and "cuda" in (options.executors or ()):
        raise Refused("executors", "sharded norms are checked on the host only: leave out cuda")
    for name in options.executors or ():
        if name not in EXECUTORS:
            raise Refused("executors", f"there is no executor {name}: pass {' or '.join(EXECUTORS)}")


def _check_sizes(program: Program, sizes: Mapping[str, int]) -> None:
    from normgen.codegen.package import reduced_axes

    axes = dict.fromkeys(axis for tensor in program.operands for axis in tensor.order)
    fixed = {axis.name: axis.extent for axis in program.axes if axis.extent is not None}
    for axis, length in sizes.items():
        if axis not in axes:
            raise Refused("sizes", f"there is no axis {axis}; the axes are {', '.join(axes)}")
        if fixed.get(axis, length) != length:
            raise Refused("sizes", f"the spec fixes {axis} to {fixed[axis]}: leave it out")
        if not length and axis in reduced_axes(program):
            raise Refused("sizes", f"{axis}=0: the spec reduces over {axis}, which must not be empty")
    lengths = fixed | dict(sizes)
    largest = max(prod(lengths.get(axis, 1) for axis in tensor.order) for tensor in program.operands)
    if largest > LARGEST:
        raise Refused("sizes", f"a tensor would have {largest} elements, and a check takes at most {LARGEST}")
