"""What a rank has of a definition whose axes are spread: axes by name, and dimensions that are several axes.

A run of a dimension `(G C)` that is whole groups is a run of G, its outer axis. Where the spec fixes the
length of that, as `axis G = groups` does, each rank has a norm of fewer groups.

A run that begins or ends within a group is a run of neither axis. It is at most three blocks: the rest of a
group, whole groups, the beginning of a group. Each of them is so many groups of so many channels, to a
definition in which both axes are dimensions of their own, of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from normgen.codegen.refusals import fault
from normgen.diagnostics import Span, SpecError
from normgen.ir.kinds import CutAxes
from normgen.ir.program import Axis, Definition, Program, Tensor
from normgen.package.records import AxisRecord, Dims, Package, PassRecord, TensorRecord, dims_text
from normgen.package.spread import GroupsRecord, PairRecord


@dataclass(frozen=True, slots=True)
class Runs:
    """What each of some ranks has of a definition.

    `whole`: that of whole groups, as many on each rank where the spec fixes how many there are, of which
    `axes` are spread; None where ranks do not divide them. `split`: that of blocks of `pairs`; None where
    ranks have no such dimensions, or cannot have runs of them that straddle groups.
    """

    whole: Definition | None
    axes: tuple[str, ...]
    pairs: tuple[PairRecord, ...] = ()
    split: Definition | None = None
    given: Definition | None = None  # before anything was spread

    @property
    def definition(self) -> Definition:
        """That which has tensors as ranks are given them, whatever their runs are."""
        found = self.whole or self.given
        assert found is not None
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """What ranks have runs of, as arrays have it: axes, and `(G C)`."""
        dims = {pair.outer: pair.name for pair in self.pairs}
        return tuple(dims.get(axis, axis) for axis in self.axes)

    @property
    def cut(self) -> CutAxes:
        """What is spread of the definition of blocks."""
        return CutAxes(frozenset(), tuple(pair.axes for pair in self.pairs))

    def flat(self, package: Package) -> Package:
        """A package of signatures as runs of any length have it: with `(G C)` as one axis."""
        if not self.pairs:
            return package
        outer = {pair.outer: pair for pair in self.pairs}
        groups = {name: self._groups(pair, package) for name, pair in outer.items()}
        return replace(
            package,
            axes=(
                *(groups.get(axis.name, axis) for axis in package.axes),
                *(AxisRecord(pair.name) for pair in self.pairs),
            ),
            forward=self._flat(package.forward),
            backward=None if package.backward is None else self._flat(package.backward),
        )

    def _groups(self, pair: PairRecord, package: Package) -> AxisRecord:
        own = next(axis for axis in package.axes if axis.name == pair.outer)
        if own.extent is not None or pair.members is None:
            return own
        return GroupsRecord(pair.outer, None, pair.name, pair.members)

    def _flat(self, record: PassRecord) -> PassRecord:
        names = {axis: pair.name for pair in self.pairs for axis in pair.axes}
        return replace(
            record,
            reads=tuple(map(self._flat_tensor, record.reads)),
            writes=tuple(map(self._flat_tensor, record.writes)),
            reduced=tuple(dict.fromkeys(names.get(axis, axis) for axis in record.reduced)),
        )

    def _flat_tensor(self, tensor: TensorRecord) -> TensorRecord:
        names: dict[tuple[str, ...], str] = {pair.axes: pair.name for pair in self.pairs}
        return replace(tensor, dims=tuple((names[dim],) if dim in names else dim for dim in tensor.dims))


def local_definition(definition: Definition, names: Iterable[str], ranks: int) -> Runs:
    """What each of so many ranks has. `names`: of axes, and of dimensions as they are written in the spec.

    Raises `SpecError` (code `spread`) for what cannot be spread whatever is computed: what is not there, an
    axis of fixed length, groups that ranks cannot have runs of, and two axes of a tensor.
    """
    axes, pairs = [], []
    whole: Definition | None = definition
    for name in names:
        if not name.startswith("("):
            axes.append(name)
            _check_axis(definition, name)
            continue
        dim = _dimension(definition, name)
        axes.append(dim[0])
        groups = _extent(definition.program, dim[0])
        members = _extent(definition.program, dim[1]) if len(dim) == 2 else None
        if len(dim) == 2 and (groups is not None or members is not None):
            pairs.append(PairRecord(dim[0], dim[1], groups, members, True))
        if groups is not None and groups % ranks:
            whole = None
        elif groups is not None and whole is not None:
            whole = _shared(whole, dim[0], groups // ranks)
    _check_pairs(definition, axes)
    against = _against(definition, pairs)
    # Of groups whose number is open a rank cannot know all.
    open_ = whole is None and any(pair.groups is None for pair in pairs)
    if len(pairs) < len(axes) or against is not None or open_:
        pairs = []
    pairs = [replace(pair, shared=whole is not None) for pair in pairs]
    if whole is None and not pairs:
        raise _unequal(definition, axes, ranks, against)
    split = _split(definition, pairs) if pairs else None
    return Runs(whole, tuple(axes), tuple(pairs), split, definition)


def _axes_of(program: Program) -> list[str]:
    """The axes that tensors have."""
    return list(dict.fromkeys(axis for tensor in _tensors(program) for axis in tensor.order))


def _tensors(program: Program) -> tuple[Tensor, ...]:
    return (*program.operands, *(r.tensor for r in program.results))


def _free_axes(program: Program) -> list[str]:
    """Those whose length the spec leaves open."""
    fixed = {axis.name for axis in program.axes if axis.extent is not None}
    return [axis for axis in _axes_of(program) if axis not in fixed]


def _check_axis(definition: Definition, axis: str) -> None:
    program = definition.program
    free = _free_axes(program)
    if axis in free:
        return
    if axis not in _axes_of(program):
        message = f"{program.name} has no axis {axis!r} to shard"
        raise fault(definition, message, f"shard one of {', '.join(free)}", program.operands[0].span)
    groups = [group for tensor in program.operands for group in tensor.dims]
    whole = [dims_text((group,)) for group in groups if len(group) > 1 and axis in group]
    others = ", ".join(dict.fromkeys([*whole, *free]))
    message = f"{program.name} fixes {axis} to {_extent(program, axis)}, so {axis} cannot be sharded"
    raise fault(definition, message, f"shard one of {others}", _place(program, axis))


def _check_pairs(definition: Definition, axes: Collection[str]) -> None:
    for tensor in _tensors(definition.program):
        both = [axis for axis in tensor.order if axis in axes]
        if len(both) > 1:
            message = f"{tensor.name} has two sharded axes, {both[0]} and {both[1]}"
            raise fault(definition, message, "shard one of them", tensor.span)


def _extent(program: Program, axis: str) -> int | None:
    return next((each.extent for each in program.axes if each.name == axis), None)


def _place(program: Program, axis: str) -> Span | None:
    """Of the first operand with an axis."""
    return next(tensor.span for tensor in program.operands if axis in tensor.axes)


def _dimension(definition: Definition, name: str) -> tuple[str, ...]:
    program = definition.program
    groups = [group for tensor in program.operands for group in tensor.dims if len(group) > 1]
    for group in groups:
        if dims_text((group,)) == " ".join(name.split()):
            return group
    known = ", ".join(dict.fromkeys(dims_text((group,)) for group in groups)) or "none"
    message = f"{program.name} has no dimension {name} to shard"
    raise fault(definition, message, f"its dimensions of several axes: {known}", program.operands[0].span)


def _unequal(definition: Definition, axes: Iterable[str], ranks: int, against: Tensor | None) -> SpecError:
    program = definition.program
    axis = next(axis for axis in axes if (_extent(program, axis) or 0) % ranks)
    length = _extent(program, axis)
    message = f"{program.name} fixes {axis} to {length}, which {ranks} ranks cannot share equally"
    others = "shard another axis"
    if against is not None:
        message += f", and shards cannot cut through groups because of {against.name}"
        others = f"declare {against.name} with the same dimension of several axes as the other tensors"
    cure = f"use a number of ranks that divides {length}, or {others}"
    return fault(definition, message, cure, against.span if against else _place(program, axis))


def _shared(definition: Definition, axis: str, share: int) -> Definition:
    """The definition with a rank's share of an axis that has a fixed length."""
    own = Axis(axis, share)

    def shared(program: Program) -> Program:
        return replace(program, axes=tuple(own if each.name == axis else each for each in program.axes))

    return _everywhere(definition, shared)


def _against(definition: Definition, pairs: Collection[PairRecord]) -> Tensor | None:
    """A tensor of which no block of runs that straddle groups could be had: it has the axes of a dimension
    apart, or one of them within another dimension, or is a state of groups, of which each rank has some."""
    known = {pair.axes for pair in pairs}
    free = {axis for pair in known for axis in pair}
    for tensor in _tensors(definition.program):
        apart = [dim for dim in tensor.dims if dim not in known and free.intersection(dim)]
        both = any(tensor.axes.issuperset(pair) for pair in known)
        composite = any(len(dim) > 1 for dim in apart)
        if composite or (apart and (both or tensor.role == "state")):
            return tensor
    return None


def _split(definition: Definition, pairs: Collection[PairRecord]) -> Definition:
    """The definition of blocks."""
    known = {pair.axes for pair in pairs}
    free = {axis for pair in known for axis in pair}

    def apart_dims(dims: Dims) -> Dims:
        return tuple(part for dim in dims for part in (((dim[0],), (dim[1],)) if dim in known else (dim,)))

    def of_blocks(each: Tensor) -> Tensor:
        return replace(each, dims=apart_dims(each.dims))

    def split(program: Program) -> Program:
        return replace(
            program,
            axes=tuple(Axis(each.name, None) if each.name in free else each for each in program.axes),
            operands=tuple(map(of_blocks, program.operands)),
            results=tuple(replace(r, tensor=of_blocks(r.tensor)) for r in program.results),
            bindings=tuple(
                b if b.dims is None else replace(b, dims=apart_dims(b.dims)) for b in program.bindings
            ),
        )

    return _everywhere(definition, split)


def _everywhere(definition: Definition, change: Callable[[Program], Program]) -> Definition:
    opened = None if definition.opened is None else change(definition.opened)
    return replace(definition, program=change(definition.program), opened=opened)
