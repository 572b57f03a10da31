"""Whether the texts of a package compile: each form of a kernel that calls may take, in one unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from normgen.devices.host.compile import check_syntax
from normgen.ir.program import Definition
from normgen.launching.launch import HOST, Binding
from normgen.launching.machine import HOST_MACHINE, USUAL_MACHINE
from normgen.package.direction import Direction, directions
from normgen.package.records import Package, PassRecord
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning.choose import in_forms
from normgen.runtime.planning.made import plan_made
from normgen.verify.cases import axis_order, fixed_extents
from normgen.verify.coverage import covering

# Which forms a kernel may take depends on the device: the usual one, the host, and one without clusters.
DEVICES = (USUAL_MACHINE, HOST_MACHINE, replace(USUAL_MACHINE, arch="sm_80"))
# How much longer than in a check the outermost axis is, and the innermost.
SCALES = ((1, 1), (4096, 1), (1, 64), (64, 4), (1, 3001), (65_536, 1))
EVERY = 3  # of so many groups of cases, one lends its lengths
ARRAYS = (("bf16", 16), ("f32", 4))  # element type and alignment


def check_texts(definition: Definition, package: Package) -> None:
    """Compile a text of each form on the host. `TextFault` where one fails, `ToolchainMissing` without a
    compiler."""
    check_syntax(texts(definition, package))


def check_made(record: PassRecord, binding: Binding) -> None:
    """Compile a text of each form of a pass of a module of one shape. `binding`: one of its calls."""
    assert record.made is not None
    launches = plan_made(record, record.made, binding, HOST_MACHINE).alike()
    check_syntax({launch.entry: launch.source for launch in launches})


def forms(package: Package) -> frozenset[str]:
    """The entry of every form of every kernel, in both directions."""
    kernels = (kernel for each in directions(package) if each for kernel in each.record.kernels)
    return frozenset(form.entry for kernel in kernels for form in kernel.forms)


def texts(definition: Definition, package: Package) -> dict[str, str]:
    """A text of each form by its entry. Forms that no call here may take are not among them, such as those
    for long rows of kernels that have few elements."""
    wanted, found = forms(package), dict[str, str]()
    ways = [(each, way) for each in directions(package) if each for way in each.record.strategies]
    for device, sizes, (dtype, alignment) in product(DEVICES, tuple(_sizes(definition)), ARRAYS):
        for direction, strategy in ways:
            left = {form.entry for kernel in strategy.kernels for form in kernel.forms} - found.keys()
            if left:
                binding = _binding(direction, sizes, dtype, alignment)
                for each in in_forms(strategy, binding, device, left):
                    found = {launch.entry: launch.source for launch in each.lowered.launches} | found
        if found.keys() == wanted:
            break
    return found


def _sizes(definition: Definition) -> Iterator[dict[str, int]]:
    """Lengths of the axes: those of cases of a check, and longer ones."""
    fixed, order = fixed_extents(definition), axis_order(definition)
    free = [axis for axis in order if axis not in fixed]
    lengths = {case.group: case.extents for case in covering(definition) if all(case.extents.values())}
    for (outer, inner), extents in product(SCALES, list(lengths.values())[::EVERY]):
        found = dict(extents)
        for axis, factor in ((free[:1], outer), (free[-1:], inner)):
            found |= {name: found[name] * factor for name in axis}
        yield found


def _binding(direction: Direction, sizes: Mapping[str, int], dtype: str, alignment: int) -> Binding:
    """A call of such arrays."""
    axes = {axis for record in direction.operands.values() for axis in record.axes}
    known = {axis: length for axis, length in sizes.items() if axis in axes}
    return bind_sizes(direction, known, dtype, alignment, HOST).binding
