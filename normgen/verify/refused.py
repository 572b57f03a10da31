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
            raise Refused("samples", f"no tensor is called {name}: they are {', '.join(names)}")
    return definition


def _check_choices(options: Options) -> None:
    if options.quick and options.thorough:
        raise Refused("quick", "quick and thorough contradict each other")
    if options.dtype not in (None, *DTYPES):
        raise Refused("dtype", f"no kernel is checked in {options.dtype}: take one of {', '.join(DTYPES)}")
    counts = dict.fromkeys((options.shard or {}).values())
    if len(counts) > 1 or any(count < 1 for count in counts):
        raise Refused("shard", "axes are spread over the same ranks: as many for each, and at least 1")
    if options.shard and "cuda" in (options.executors or ()):
        raise Refused("executors", "ranks are simulated on the host")
    for name in options.executors or ():
        if name not in EXECUTORS:
            raise Refused("executors", f"no executor is called {name}: they are {', '.join(EXECUTORS)}")


def _check_sizes(program: Program, sizes: Mapping[str, int]) -> None:
    from normgen.codegen.package import reduced_axes

    axes = dict.fromkeys(axis for tensor in program.operands for axis in tensor.order)
    fixed = {axis.name: axis.extent for axis in program.axes if axis.extent is not None}
    for axis, length in sizes.items():
        if axis not in axes:
            raise Refused("sizes", f"no axis is called {axis}: they are {', '.join(axes)}")
        if fixed.get(axis, length) != length:
            raise Refused("sizes", f"the spec fixes {axis} to {fixed[axis]}")
        if not length and axis in reduced_axes(program):
            raise Refused("sizes", f"{axis}=0: the spec reduces over {axis}, which may not be empty")
    lengths = fixed | dict(sizes)
    largest = max(prod(lengths.get(axis, 1) for axis in tensor.order) for tensor in program.operands)
    if largest > LARGEST:
        raise Refused("sizes", f"this makes tensors of {largest} elements, and a check goes up to {LARGEST}")
