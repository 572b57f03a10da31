"""What every family of kernels needs to turn a record and a call's arrays into launches.

A launch is a text, a grid and arguments. The text is printed with the launch's constants: element types, the
schedule, and which operands are there. Other lengths and strides are arguments as a rule, so that calls that
differ in them share a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from functools import wraps
from itertools import pairwise
from math import prod
from operator import gt
from typing import Any, TypeVar

from normgen.dtypes import DTYPES
from normgen.launching.launch import Binding, Launch, Operand, Printed, Slot
from normgen.launching.layout import Lengths, is_run, packed_strides
from normgen.launching.machine import Machine
from normgen.launching.support import TooLarge
from normgen.package.constants import Constants
from normgen.package.operands import FormRecord, OperandRecord, Parameter, axis_name, element_key
from normgen.package.records import TensorRecord

# Offsets, and row numbers as far as the pipeline looks ahead, stay below this where 32 bits are to do.
INT_LIMIT = 2**31 - 2**24
WORD = 16  # bytes of the widest access
_GRID = (2**31 - 1, 65535, 65535)  # blocks along each dimension, at most
_INTEGERS = ("blocks", "team", "members")  # parameters of 32 bits, whatever the call

K = TypeVar("K")
Found = TypeVar("Found")


class Call:
    """The arrays of one call as kernels see them: those of the binding, and temporaries in the workspace.

    `warm`: by kernel, the arrays that kernels before it in the call have read.
    """

    def __init__(
        self,
        binding: Binding,
        device: Machine,
        temporaries: Iterable[TensorRecord] = (),
        warm: Mapping[str, Set[str]] | None = None,
    ) -> None:
        self.binding, self.device = binding, device
        self.warm = warm or {}
        self.known: dict[tuple[Any, int], tuple[Any, Any]] = {}  # see `once`
        self.extents = dict(binding.extents)
        self.operands = dict(binding.operands)
        for tensor in temporaries:
            self.operands[tensor.name] = self._temporary(tensor)

    def _temporary(self, tensor: TensorRecord) -> Operand:
        assert tensor.dtype is not None
        strides = packed_strides(tensor, Lengths(self.extents, None))
        return Operand(tensor.dtype, tuple(strides.items()), WORD)

    # -------------------------------------------------------------------------------------------- operands

    @property
    def large(self) -> bool:
        """Whether some schedule may have more blocks or longer rows than there can be."""
        return prod(self.extents.values()) > INT_LIMIT

    def size(self, axes: Iterable[str]) -> int:
        """The number of elements over some axes."""
        return prod(self.extents[axis] for axis in axes)

    def itemsize(self, operand: OperandRecord | str) -> int:
        """Bytes of an element of an operand that is there."""
        name = operand if isinstance(operand, str) else operand.tensor
        return DTYPES[self.operands[name].dtype].bytes

    def bytes_of(self, name: str) -> int:
        """The bytes of all elements of an operand that is there, each counted once."""
        return self.size(axis for axis, _ in self.operands[name].strides) * self.itemsize(name)

    def present(self, operands: Iterable[OperandRecord]) -> list[OperandRecord]:
        """Those that the call has."""
        return [o for o in operands if o.tensor in self.operands]

    def read(self, operands: Iterable[OperandRecord]) -> list[OperandRecord]:
        """Those that the call has and that some wanted result is computed from."""
        return [o for o in self.present(operands) if any(name in self.operands for name in o.wanted_by)]

    def touched(self, reads: Iterable[OperandRecord], writes: Iterable[OperandRecord]) -> list[OperandRecord]:
        """What a kernel reads and writes in this call."""
        return [*self.read(reads), *self.present(writes)]

    def vector_width(self, wide: Iterable[OperandRecord], length: int) -> int:
        """The widest vector, in elements, in which runs of `length` contiguous elements of every operand can
        be moved."""
        operands = list(wide)
        if not operands:
            return 1
        vector = WORD // min(map(self.itemsize, operands))
        while vector > 1 and (length % vector or not all(self._aligned(o, vector) for o in operands)):
            vector //= 2
        return vector

    def aligned(self, operands: Iterable[OperandRecord]) -> bool:
        """Whether every run of the operands' inner axes begins where the widest access may."""
        return all(self._aligned(o, WORD) for o in operands)

    def contiguous(self, operand: OperandRecord) -> bool:
        """Whether elements along an operand's inner axes lie side by side."""
        return is_run(operand.inner, dict(self.operands[operand.tensor].strides), self.extents)

    def apart(self, operands: Iterable[OperandRecord], length: int) -> bool:
        """Whether the rows of operands, of `length` contiguous elements, lie one after the other."""
        return all(
            step >= length
            for o in operands
            for axis, step in self.operands[o.tensor].strides
            if axis not in o.inner and self.extents[axis] > 1
        )

    def in_step(self, operands: Iterable[OperandRecord], axes: tuple[str, ...]) -> bool:
        """Whether the rows along some axes begin at the same element of a word in all operands, and one step
        leads from any row to the next."""
        long = [axis for axis in axes if self.extents[axis] > 1]
        ways = set()
        for o in operands:
            strides = dict(self.operands[o.tensor].strides)
            if self.operands[o.tensor].alignment % WORD or not strides.keys() >= set(axes):
                return False
            ways.add((self.itemsize(o), *(strides[axis] for axis in long)))
        if len(ways) != 1:
            return False
        steps = dict(zip(long, ways.pop()[1:], strict=True))
        return all(steps[outer] == steps[inner] * self.extents[inner] for outer, inner in pairwise(long))

    def side_by_side(self, operands: list[OperandRecord], axes: tuple[str, ...], length: int) -> bool:
        """Whether such rows, of `length` contiguous elements, leave no gap."""
        last = next((axis for axis in reversed(axes) if self.extents[axis] > 1), "")
        steps = dict(self.operands[operands[0].tensor].strides)
        return self.in_step(operands, axes) and (not last or steps[last] == length)

    def _aligned(self, o: OperandRecord, vector: int) -> bool:
        """Whether every run of an operand's inner axes starts where a vector may."""
        operand, itemsize = self.operands[o.tensor], self.itemsize(o)
        word = min(WORD, vector * itemsize)
        outer = [(axis, s) for axis, s in operand.strides if axis not in o.inner]
        # (of a single run as if there were more, side by side: how many there are makes no difference)
        side_by_side = self.size(o.inner)
        steps = [(s if self.extents[axis] > 1 else side_by_side) * itemsize for axis, s in outer]
        return operand.alignment % word == 0 and all(step % word == 0 for step in steps)

    def reach(self) -> int:
        """The largest offset of any element, in elements."""
        return max(
            (
                sum((self.extents[axis] - 1) * abs(stride) for axis, stride in operand.strides)
                for operand in self.operands.values()
            ),
            default=0,
        )

    def reach_of_rows(self, operands: Iterable[OperandRecord], last: tuple[str, ...]) -> int:
        """The largest offset of any element from where its row begins, or step from one row to the next along
        the `last` axis, in elements."""
        found = 0
        for o in self.present(operands):
            steps = [(axis, abs(step)) for axis, step in self.operands[o.tensor].strides]
            within = sum((self.extents[axis] - 1) * step for axis, step in steps if axis in o.inner)
            found = max(found, within, *(s for axis, s in steps if axis in last and self.extents[axis] > 1))
        return found

    # -------------------------------------------------------------------------------------------- launches

    def argument(
        self, p: Parameter, own: Mapping[tuple[str, str], int | Slot], wide: bool, far: Collection[str] = ()
    ) -> tuple[int | float | Slot, str]:
        """The value of a parameter and its `struct` code. `own`: the family's values by (kind, name);
        `wide`: offsets take 64 bits; `far`: axes along which strides always do."""
        index = "q" if wide else "i"
        if (p.kind, p.name) in own:
            value = own[p.kind, p.name]
            pointer = isinstance(value, Slot) or p.kind in ("pointer", "partial", "published")
            return value, "P" if pointer else "i" if p.kind in _INTEGERS else index
        match p.kind:
            case "pointer" | "channel":
                return (Slot("pointer", p.name) if p.name in self.operands else 0), "P"
            case "stride":
                operand = self.operands.get(p.name)
                # an axis of one element is never stepped along
                steps = {} if operand is None else dict(operand.strides)
                step = steps.get(p.axis, 0) if self.extents[p.axis] > 1 else 0
                return step, "q" if p.axis in far else index
            case "size":
                return self.extents[p.axis], index
            case "scalar":
                return Slot("scalar", p.name), "f"
        raise AssertionError(p)

    def launch(
        self,
        form: FormRecord,
        grid: int | tuple[int, int, int],
        threads: int,
        constants: Mapping[str, int | bool],
        *,
        reads: Iterable[OperandRecord],
        writes: Iterable[OperandRecord],
        scratch: tuple[Iterable[str], Iterable[str]] = ((), ()),
        own: Mapping[tuple[str, str], int | Slot] | None = None,
        sizes: Iterable[str] = (),
        wide: bool = False,
        far: Collection[str] | None = None,
        cluster: int = 1,
        shared: int = 0,
    ) -> Launch:
        """A launch of a form. `reads`, `writes`: every operand that it may touch, and `scratch` the arrays of
        the workspace, of which the launch keeps those that are arguments. `constants`: what the schedule
        sets; `sizes`: axes whose lengths are constants too; `own`: values of the family's own parameters.
        `wide`: indices and offsets take 64 bits; `far`: the axes whose strides do, where offsets of rows do.

        Where the device allows it every launch is programmatic, since small kernels gain by it: their texts
        wait before they read."""
        reads, writes = list(reads), list(writes)
        grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
        wide = wide or any(p.kind == "size" and self.extents[p.axis] > INT_LIMIT for p in form.parameters)
        if any(map(gt, grid, _GRID)):
            blocks, most = map(" x ".join, (map(str, grid), map(str, _GRID)))
            raise TooLarge(f"{form.entry} needs a grid of {blocks} blocks, and a grid has at most {most}")
        if constants.get("LENGTH", 0) > INT_LIMIT:
            length = f"{constants['LENGTH']} elements"
            raise TooLarge(f"{form.entry} reduces over {length}, and the limit is {INT_LIMIT}")
        own = own or {}
        _check_known(form, own, (*reads, *writes))
        values, codes = self._arguments(form, own, wide, far or ())
        read, written = _touched(form.entry, values, reads, writes, scratch)
        given: dict[str, int | bool | str] = {
            "CLUSTER": cluster,
            "offset_t": "long long" if wide or far is not None else "int",
            "index_t": "long long" if wide else "int",
            **{element_key(name): DTYPES[each.dtype].c_type for name, each in self.operands.items()},
            **{f"size_{axis_name(a)}": self.extents[a] for a in sizes},
            **constants,
            **{o.there: o.tensor in self.operands for o in reads},
            **{o.wanted: o.tensor in self.operands for o in writes},
            "ACCUMULATE": self.binding.accumulate,
            "PROGRAMMATIC": self.device.programmatic,
        }
        return Launch(
            text=Printed(form.text, Constants((key, _number(given[key])) for key in sorted(given))),
            entry=form.entry,
            grid=grid,
            block=(threads, 1, 1),
            shared=shared,
            format=codes,
            values=tuple(values),
            reads=read,
            writes=written,
            cluster=cluster,
            programmatic=self.device.programmatic,
        )

    def _arguments(
        self, form: FormRecord, own: Mapping[tuple[str, str], int | Slot], wide: bool, far: Collection[str]
    ) -> tuple[list[int | float | Slot], str]:
        """The arguments of a launch, and the `struct` format of them."""
        found = [(p, *self.argument(p, own, wide, far)) for p in form.parameters]
        for p, value, code in found:
            if code == "i" and not isinstance(value, Slot) and not -(2**31) <= value < 2**31:
                raise TooLarge(f"{form.entry} needs {value} as {p.meaning}, and takes 32-bit numbers")
        return [value for _, value, _ in found], "".join([code for *_, code in found])


def _check_known(
    form: FormRecord, own: Mapping[tuple[str, str], int | Slot], operands: Iterable[OperandRecord]
) -> None:
    """Of every operand of a form a launch says whether it is there, or wanted."""
    known = {("pointer", o.tensor) for o in operands} | own.keys()
    unknown = {(p.kind, p.name) for p in form.parameters if p.kind == "pointer"} - known
    assert not unknown, f"{form.entry}: whether {unknown} are there"


def _touched(
    entry: str,
    values: Iterable[int | float | Slot],
    reads: Iterable[OperandRecord],
    writes: Iterable[OperandRecord],
    scratch: tuple[Iterable[str], Iterable[str]],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the arrays that a launch may read and write those that are among its arguments."""
    reading = {o.tensor for o in reads} | set(scratch[0])
    writing = {o.tensor for o in writes} | set(scratch[1])
    touched = dict.fromkeys([v.name for v in values if isinstance(v, Slot) and v.kind == "pointer"])
    assert touched.keys() <= reading | writing, f"{entry}: {touched.keys() - reading - writing}"
    return tuple([n for n in touched if n in reading]), tuple([n for n in touched if n in writing])


def _number(value: int | bool | str) -> int | bool | str:
    """A constant of a text: a length that a case leaves open is known from then on."""
    return value if isinstance(value, bool | str) else int(value)


def once(find: Callable[[K, Call], Found]) -> Callable[[K, Call], Found]:
    """A function of a kernel and a call, whose result is kept with the call for when it is asked again."""

    @wraps(find)
    def asked(kernel: K, call: Call) -> Found:
        key = (find, id(kernel))
        if key not in call.known:
            call.known[key] = kernel, find(kernel, call)
        found: Found = call.known[key][1]
        return found

    return asked


def width_of_parts(widest: int, spans: list[int]) -> int:
    """The widest vector, or half of it where each then needs one element of the operands that have some of
    the axes that vectors lie along. `spans`: the neighbours that share an element of those.
    """
    narrow = widest // 2 if any(span % widest for span in spans) else widest
    return narrow if narrow and not any(span % narrow for span in spans) else widest
