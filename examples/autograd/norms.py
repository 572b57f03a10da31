"""Norms on tensors: one call for any spec, with what its backward needs kept on the tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from normgen import arrays
from normgen.arrays.views import packed
from normgen.package.direction import directions, result_tuple, tuple_name
from normgen.runtime.norm import Norm

from .tape import Array, Kept, recording
from .tensor import Result, Tensor, record

# Options of `Norm.forward` that would write behind the tape's back, or decide what the tape decides.
OPTIONS = ("out", "save", "stream", "workspace", "sm_count")


@dataclass(frozen=True, slots=True)
class Face:
    """A norm as the tape sees it, by names in spec order.

    `updated`: the states that a call writes. `gradients`: of each operand that has one. `cotangents`: of
    each output, "" where it has none; `hidden`: of what the norm does not return. `reads`: what else the
    backward is given.
    """

    name: str
    outputs: tuple[str, ...]
    states: frozenset[str]
    updated: frozenset[str]
    params: frozenset[str]
    gradients: Mapping[str, str]
    cotangents: tuple[str, ...]
    hidden: Mapping[str, str]
    reads: tuple[str, ...]


def apply(norm: Any, /, *operands: Any, **named: Any) -> Any:
    """Run a norm and record it. Returns its outputs, as a named tuple of tensors in spec order.

    `norm`: a loaded norm or a generated module. Pass operands by position or name as in `norm.forward`: a
    tensor, an array, or None for an omitted param. Float attrs go by name. The tape keeps references to the
    saves. An output requires grad if it is differentiable with respect to an operand that requires grad.
    States are updated in place, and no gradient flows through them: TypeError for one that requires grad.
    """
    norm = norm if isinstance(norm, Norm) else getattr(norm, "NORM", norm)
    if not isinstance(norm, Norm):
        raise TypeError(f"expected a norm or a generated module, got {type(norm).__name__}")
    for option in OPTIONS:
        if option in named:
            raise TypeError(
                f"apply() does not take {option}=, because it saves results: call {norm.name}.forward"
            )
    face = _face(norm)
    given = {**dict(zip(norm.forward_args, operands, strict=False)), **named}
    tensors = {name: each for name, each in given.items() if isinstance(each, Tensor)}
    wanted = _wanted(face, tensors) if recording() else ()
    made = norm.forward(
        *map(_array, operands),
        save=bool(wanted),
        **{name: _array(each) for name, each in named.items()},
    )
    for name in face.updated & tensors.keys():
        tensors[name].written()
    results = {
        name: Result(getattr(made, name), bool(cotangent))
        for name, cotangent in zip(face.outputs, face.cotangents, strict=True)
    }
    sources = [tensors[name] for name in wanted]
    if wanted:
        read, kept = _kept(face, given, made, results)
        numbers = {name: value for name, value in named.items() if name not in norm.forward_args}
        types = {name: arrays.view(tensors[name].data).dtype for name in wanted if name not in face.reads}
        call = Backward(norm, face, wanted, read, types, numbers)
        outputs = record(norm.name, call, sources, tuple(results.values()), kept)
    else:
        outputs = record(norm.name, None, sources, tuple(results.values()))
    return result_tuple(tuple_name(norm.name, "outputs"), face.outputs)(*outputs)


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward of one call, as the tape's pull: cotangents of the outputs to gradients of `wanted`."""

    norm: Norm
    face: Face
    wanted: tuple[str, ...]
    read: Mapping[str, Any]
    types: Mapping[str, str]  # of those of `wanted` that are not read
    numbers: Mapping[str, float]

    def __call__(self, cotangents: Sequence[Array | None], sums: Sequence[Array | None]) -> Sequence[Array]:
        face = self.face
        given: dict[str, Any] = {
            name: dy for name, dy in zip(face.cotangents, cotangents, strict=True) if name
        }
        given |= dict.fromkeys(face.hidden.values())
        out = self._targets(sums)
        given.update(self.read, **self.numbers)
        made = self.norm.backward(wrt=self.wanted, accumulate=bool(out), dtypes=self.types, out=out, **given)
        return [getattr(made, face.gradients[name]) for name in self.wanted]

    def _targets(self, sums: Sequence[Array | None]) -> dict[str, Array]:
        """Existing gradients of params that the kernels can add to, which saves a separate pass.

        A call adds to all of its params or to none.
        """
        params = {
            self.face.gradients[name]: total
            for name, total in zip(self.wanted, sums, strict=True)
            if name in self.face.params
        }
        distinct = len({id(total) for total in params.values()}) == len(params)
        return params if distinct and all(map(_addable, params.values())) else {}


def _wanted(face: Face, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The operands to differentiate by; TypeError where one cannot be."""
    wanted = [name for name, each in tensors.items() if each.requires_grad]
    for name in wanted:
        if name in face.states:
            raise TypeError(
                f"{name} is a state of {face.name}, which is updated in place and has no gradient: pass "
                ".detach()"
            )
        if name not in face.gradients:
            raise TypeError(f"{face.name} has no gradient with respect to {name}: pass .detach()")
    if wanted and not any(face.cotangents):
        raise TypeError(
            f"gradients of {face.name} flow through {', '.join(face.hidden)}, which apply() does not return: "
            "call forward and backward, or pass .detach()"
        )
    return tuple(name for name in face.gradients if name in wanted)


def _kept(
    face: Face, given: Mapping[str, Any], made: Any, results: Mapping[str, Result]
) -> tuple[dict[str, Any], tuple[Kept, ...]]:
    """What the backward will read, by name, and of what belongs to tensors, in which version."""
    read: dict[str, Any] = {}
    kept: list[Kept] = []
    for name in face.reads:
        each = given.get(name)
        if name in results:
            read[name] = results[name].array
            kept.append(Kept.now(name, results[name].version))
        elif name in made._fields:
            read[name] = getattr(made, name)
        elif each is not None:
            read[name] = _array(each)
            if isinstance(each, Tensor):
                kept.append(Kept.now(name, each.version))
    return read, tuple(kept)


def _array(operand: Any) -> Any:
    return operand.data if isinstance(operand, Tensor) else operand


def _addable(total: Array | None) -> bool:
    if total is None:
        return False
    view = arrays.view(total)
    return not view.readonly and view.strides == packed(view.shape)


# By norm, as long as it lives: what is read off its records once.
_faces: WeakKeyDictionary[Norm, Face] = WeakKeyDictionary()


def _face(norm: Norm) -> Face:
    face = _faces.get(norm)
    if face is None:
        face = _faces[norm] = _read_face(norm)
    return face


def _read_face(norm: Norm) -> Face:
    forward, backward = norm.package.forward, norm.package.backward
    reads = backward.reads if backward is not None else ()
    outputs = tuple(tensor.name for tensor in forward.writes if tensor.role == "output")
    cotangents = {tensor.source: tensor.name for tensor in reads if tensor.role == "cotangent"}
    operands = {tensor.name: tensor.role for tensor in forward.reads}
    return Face(
        name=norm.name,
        outputs=outputs,
        states=frozenset(name for name, role in operands.items() if role == "state"),
        updated=directions(norm.package)[0].updated,
        params=frozenset(name for name, role in operands.items() if role == "param"),
        gradients={
            tensor.source: tensor.name
            for tensor in (backward.writes if backward is not None else ())
            if tensor.source in operands
        },
        cotangents=tuple(cotangents.get(name, "") for name in outputs),
        hidden={source: name for source, name in cotangents.items() if source not in outputs},
        reads=tuple(tensor.name for tensor in reads if tensor.role != "cotangent"),
    )
