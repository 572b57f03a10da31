"""The mathematics of a norm in float64, called like the norm itself: what users' own tests compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from normgen.dtypes import name_of_numpy, real
from normgen.launching.layout import REST, Lengths, shape_of, solve
from normgen.locks import cached_property
from normgen.package.direction import result_tuple
from normgen.package.records import AxisRecord, TensorRecord

if TYPE_CHECKING:
    from normgen.ir.program import Program, Tensor


class Reference:
    """`forward` and `backward` as named tuples of float64 NumPy arrays, from anything NumPy can read.

    Operands go by position or name as in the norm's own `forward` and `backward`.

    Roundings that the spec writes are performed; what a kernel stores is rounded once more, to its dtype.
    """

    def __init__(self, programs: Callable[[], tuple[Program, Program | None]]) -> None:
        """`programs`: makes those of forward and backward, when one is first asked for."""
        self._make = programs

    def __reduce__(self) -> Any:
        return Reference, (self._make,)

    @cached_property
    def _programs(self) -> tuple[Program, Program | None]:
        return self._make()

    def _repr_html_(self) -> str:
        """The formulas of both directions, for notebooks."""
        from normgen.ir.mathml import formulas_html

        titled = zip(("forward", "backward"), self._programs, strict=True)
        shown = [(title, formulas_html(program)) for title, program in titled if program is not None]
        return "".join(f"<div><strong>{title}</strong>{formulas}</div>" for title, formulas in shown)

    def forward(self, *arrays: Any, **named: Any) -> Any:
        """Outputs, then saves. A state that is updated follows, as `new_<state>`."""
        program, _ = self._programs
        return _evaluate(program, program.operands, arrays, named)

    def backward(self, *arrays: Any, **named: Any) -> Any:
        """The gradients. A cotangent that is None is zero; other operands of the forward are accepted."""
        forward, backward = self._programs
        if backward is None:
            raise ValueError(f"{forward.name} has no backward: no output of it can be differentiated")
        return _evaluate(backward, forward.operands, arrays, named)


def _evaluate(
    program: Program, welcome: tuple[Tensor, ...], arrays: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    from normgen.ir.reference import evaluate

    operands = {tensor.name: tensor for tensor in program.operands}
    given = _sorted(program, welcome, arrays, named)
    attrs = {attr.name for attr in program.attrs}
    scalars = {name: real(value, name) for name, value in given.items() if name in attrs}
    records = {t.name: _record(t) for t in (*welcome, *program.operands)}
    present = {
        name: np.asarray(value) for name, value in given.items() if name in records and value is not None
    }
    axes = [AxisRecord(axis.name, axis.extent) for axis in program.axes]
    lengths = solve([(records[name], array.shape) for name, array in present.items()], axes)
    values = {}
    for name, tensor in operands.items():
        sizes = [lengths.axes[axis] for axis in tensor.order]
        if name in present:
            values[name] = present[name].astype(np.float64).reshape(sizes)
        elif tensor.role == "cotangent":
            values[name] = np.zeros(sizes)
        elif tensor.default is None and tensor.role != "state":
            raise TypeError(f"the reference of {program.name} needs {name}")
    dtypes = {name: found for name, array in present.items() if (found := name_of_numpy(array.dtype))}
    extents = {REST: 1, **lengths.axes}
    made = evaluate(program, values, extents, scalars, rounding=True, dtypes=dtypes)
    return _tuple(program, made, lengths)


def _sorted(
    program: Program, welcome: tuple[Tensor, ...], arrays: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    names = [tensor.name for tensor in program.operands]
    if len(arrays) > len(names):
        raise TypeError(f"{program.name} takes {len(names)} arrays ({', '.join(names)}), not {len(arrays)}")
    given = dict(zip(names, arrays, strict=False))
    known = {*names, *(tensor.name for tensor in welcome), *(attr.name for attr in program.attrs)}
    for name, value in named.items():
        if name in given or name not in known:
            raise TypeError(f"the reference of {program.name} got an unexpected {name!r}")
        given[name] = value
    return given


def _tuple(program: Program, made: Mapping[str, Any], lengths: Lengths) -> Any:
    written = sorted((result.tensor for result in program.results), key=lambda tensor: tensor.role == "save")
    records = [(tensor.name, tensor.name, _record(tensor)) for tensor in written]
    states = {tensor.name: _record(tensor) for tensor in program.operands if tensor.role == "state"}
    records += [(f"new_{u.state}", f"update:{u.state}", states[u.state]) for u in program.updates]
    kind = result_tuple("Reference", tuple(name for name, _, _ in records))
    return kind(*[made[key].reshape(shape_of(record, lengths)) for _, key, record in records])


def _record(tensor: Tensor) -> TensorRecord:
    return TensorRecord(tensor.name, tensor.role, tensor.dims)
