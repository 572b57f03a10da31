"""What calls of arrays are known by, component by component: two calls that differ in one alone do, one after
the other, what each does as the first call of a norm of its own."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.arrays.numpy import Numpy
from normgen.arrays.views import View
from normgen.devices.host.executor import HostExecutor
from normgen.launching.machine import HOST_MACHINE
from normgen.runtime.calls import look
from normgen.runtime.calls.look import ViewedCall
from normgen.runtime.calls.plan import Plan
from normgen.runtime.calls.shortcut import brief
from normgen.runtime.norm import Norm
from tests.fakes.driver import FakeDriver
from tests.runtime.calling import tensor

# The backward reads no a and c, whose element types it can be told.
NORM = """norm keyed "Several of everything."
attr   scale = 2
attr   shift = 3
input  x[..., D]
input  a[..., D]
param  w[D] = 1
param  v[D] = 1
param  b[D] = 0
param  c[D] = 0
param  k[] = 1
state  s[D] = 0
state  t[D] = 0
save   r[...] = rsqrt(mean[D](x^2) + 1)
output y[..., D] = x * r * w * scale + b + c
output z[..., D] = x * v + a + shift + b * k
update s = s + sum[...](x)
update t = t + 1
"""
F16, BF16 = np.float16, ml_dtypes.bfloat16
_DRAW = np.random.default_rng(0)


class Call(NamedTuple):
    """Arguments by position and by name, to be copied: a call may write them."""

    direction: str
    given: tuple[Any, ...]
    named: Mapping[str, Any]


def drawn(*shape: int, offset: int = 0, pitch: int = 0, dtype: Any = np.float32) -> Any:
    """An array whose rows are so far apart, which begins so many elements behind an aligned place."""
    pitch = pitch or shape[-1]
    return _laid(_DRAW.standard_normal(shape).astype(dtype), offset, pitch)


def _laid(values: Any, offset: int, pitch: int) -> Any:
    rows = int(np.prod(values.shape[:-1]))
    memory = np.zeros((rows * pitch + offset) * values.itemsize + 16, np.uint8)
    start = -memory.__array_interface__["data"][0] % 16 + offset * values.itemsize
    flat = memory[start : start + rows * pitch * values.itemsize].view(values.dtype)
    made = flat.reshape(*values.shape[:-1], pitch)[..., : values.shape[-1]]
    made[...] = values
    return made


def copied(value: Any) -> Any:
    """An argument of its own that lies alike."""
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    if not isinstance(value, np.ndarray) or not value.ndim:
        return value
    address, pitch = value.__array_interface__["data"][0], value.strides[0] // value.itemsize
    made = _laid(value, address % 16 // value.itemsize, pitch if value.ndim > 1 else value.shape[0])
    made.flags.writeable = value.flags.writeable
    return made


X, A, W, V = drawn(4, 8), drawn(4, 8), drawn(8), drawn(8)
LONG = drawn(600, 8)
DY, DZ, R = drawn(4, 8), drawn(4, 8), drawn(4)
BACK = {"dy": DY, "dz": DZ, "x": X, "w": W, "v": V, "b": W, "k": None, "r": R}
GRADIENTS = {f"d{name}": np.ones((4, 8) if name in "xa" else 8, np.float32) for name in "xawvbc"}


def forward(*given: Any, **named: Any) -> Call:
    return Call("forward", given or (X, A), named)


def named(**named: Any) -> Call:
    return Call("forward", (), named)


def backward(**named: Any) -> Call:
    return Call("backward", (), {**BACK, **named})


def fixed(array: Any) -> Any:
    made = array.copy()
    made.flags.writeable = False
    return made


def in_workspace(sm_count: int) -> Call:
    """A call whose scratch memory is for so many multiprocessors."""
    told = _norm().workspace("forward", {"...": 600, "D": 8}, sm_count=sm_count, device=HOST_MACHINE)
    room = {name: np.zeros(shape, np.float32) for name, (shape, _) in told.items()}
    params = [W, V, W, V, np.ones((), np.float32), W, V]
    return forward(LONG, LONG, *params, workspace=room, sm_count=sm_count)


def pairs() -> dict[str, tuple[Call, Call]]:
    out = {"y": drawn(4, 8), "z": drawn(4, 8)}
    lying: dict[str, tuple[Any, Any]] = {
        "type": (X.astype(F16), X.astype(BF16)),
        "alignment": (drawn(4, 8), drawn(4, 8, offset=1)),
        "lengths": (drawn(4, 8), drawn(3, 8)),
        "strides": (drawn(4, 8), drawn(4, 8, pitch=12)),
    }
    return {
        **{
            f"{what} of an input": tuple(forward(each, drawn(*each.shape)) for each in each_way)
            for what, each_way in lying.items()
        },
        "type of a param": (forward(X, A, W.astype(F16)), forward(X, A, W.astype(BF16))),
        "alignment of a param": (forward(X, A, drawn(8)), forward(X, A, drawn(8, offset=1))),
        "alignment of a result": tuple(
            forward(out={"y": drawn(4, 8, offset=offset)}) for offset in (0, 1)
        ),
        "a state that may be written, or not": (forward(s=W, t=V), forward(s=W, t=fixed(V))),
        "how many by position": (forward(X, A, W), forward(X, A, W, V)),
        "one left out, or another": (forward(X, A, W, None), forward(X, A, None, W)),
        "names": (forward(w=W), forward(v=W)),
        "names in another order": (named(x=X, a=A), named(a=X, x=A)),
        "by position, or another by name": (forward(X, A, W), forward(X, A, b=W)),
        "states": (forward(s=W), forward(t=W)),
        "first number": (forward(scale=1.0), forward(scale=4.0)),
        "second number": (forward(scale=1.0), forward(shift=1.0)),
        "kind of number": (forward(k=np.float32(3)), forward(k=BF16(3))),
        "which results are given": (forward(out={"y": out["y"]}), forward(out={"z": out["y"]})),
        "results in another order": (forward(out=out), forward(out={"z": out["y"], "y": out["z"]})),
        "saves": (forward(save=True), forward(save=False)),
        "which gradients": (backward(wrt=("x", "b")), backward(wrt=("w", "c"))),
        "one gradient, or another": (backward(wrt="a"), backward(wrt="c")),
        "added to": (backward(out=GRADIENTS, wrt=tuple("xawvbc")),
                     backward(out=GRADIENTS, wrt=tuple("xawvbc"), accumulate=True)),
        "types told": (backward(dtypes={"c": "f16"}), backward(dtypes={"c": "bf16"})),
        "types told of one, or another": (backward(dtypes={"a": "f16"}), backward(dtypes={"c": "f16"})),
        "cotangents": (backward(dy=None), backward(dz=None)),
        "multiprocessors": (in_workspace(1), in_workspace(2)),
    }  # fmt: skip


@cache
def _norm() -> Norm:
    return normgen.load(NORM)


def _fresh() -> Norm:
    """A norm that has made no call."""
    return _norm().on(HostExecutor(checked=True))


PAIRS = pairs()
OTHER = "test_devices_are_told_apart"
# By key, what it is made of in the words of the source: the pairs that differ in it, or why there are none.
KEYS: dict[str, dict[str, list[str] | str]] = {
    "ViewedCall": {
        "_signatures(self.views)": ["type of an input", "one left out, or another"],
        "out": ["which results are given", "alignment of a result"],
        "asked": ["which gradients", "saves"],
        "(*self.bits,)": "numbers and arrays differ in `readonly` and alignment too",
    },
    "asked": {
        "self.wanted": ["which gradients", "saves"],
        "self.accumulate": ["added to"],
        "self.sm_count": ["multiprocessors"],
        "self.types": ["types told", "types told of one, or another"],
    },
    "_signatures": {
        "name": ["one left out, or another", "by position, or another by name", "states"],
        "view.pointer & 15": ["alignment of an input", "alignment of a param", "alignment of a result"],
        "view[1:6]": "the next row has them",
    },
    "view[1:6]": {
        "dtype": ["type of an input", "type of a param", "kind of number"],
        "shape": ["lengths of an input"],
        "strides": ["strides of an input"],
        "readonly": ["a state that may be written, or not"],
        "device": OTHER,
    },
    "brief": {
        "len(given)": ["how many by position", "by position, or another by name"],
        "tuple(named)": ["names", "names in another order", "states"],
        "results": ["which results are given", "results in another order"],
        "*choice": "the next rows have it",
        "*keys": "the last row has them",
    },
    "choice of forward": {"bool(save)": ["saves"]},
    "choice of backward": {
        "arguments.names(wrt)": ["which gradients", "one gradient, or another"],
        "bool(accumulate)": ["added to"],
        "arguments.types(dtypes)": ["types told", "types told of one, or another"],
    },
    "glance": {
        "'numpy'": "arrays of all libraries have keys",
        "array.shape": ["lengths of an input"],
        "array.strides": ["strides of an input"],
        "array.dtype": ["type of an input", "type of a param"],
        "array.flags.writeable": ["a state that may be written, or not"],
        "pointer & 15": ["alignment of an input", "alignment of a param", "alignment of a result"],
    },
    "Plan": {"values": "test_plans_are_of_these_addresses", "addresses": "test_plans_are_of_these_addresses"},
}  # fmt: skip


def _tuples(item: Any, *names: str) -> set[str]:
    """What the tuples are made of that a function gives these names, or returns."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(item)))):
        value = getattr(node, "value", None)
        targets = [ast.unparse(each) for each in getattr(node, "targets", ())]
        targets += ["return"] * isinstance(node, ast.Return)
        if isinstance(value, ast.Tuple) and {*targets} & {*names}:
            found += value.elts
    return {ast.unparse(each) for each in found}


def _signature_words() -> set[str]:
    (node,) = (
        each
        for each in ast.walk(ast.parse(inspect.getsource(look._signatures)))
        if isinstance(each, ast.ListComp)
    )
    assert isinstance(node.elt, ast.Tuple)
    return {ast.unparse(each) for each in node.elt.elts}


def _brief_words() -> set[str]:
    (made,) = (each for each in _tuples(brief, "return") if each.startswith("("))
    node = ast.parse(made, mode="eval").body
    assert isinstance(node, ast.Tuple)
    return {ast.unparse(each) for each in node.elts}


def _choice(method: Any) -> set[str]:
    named = _tuples(method, "choice")
    calls = [
        n for n in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(method)))) if isinstance(n, ast.Call)
    ]
    (call,) = (n for n in calls if ast.unparse(n.func).endswith(".call"))
    chosen = call.args[2]
    return {ast.unparse(each) for each in chosen.elts} if isinstance(chosen, ast.Tuple) else named


MADE_OF: dict[str, Callable[[], set[str]]] = {
    "ViewedCall": lambda: _tuples(ViewedCall.key.fget, "return"),
    "asked": lambda: _tuples(ViewedCall.key.fget, "asked"),
    "_signatures": _signature_words,
    "view[1:6]": lambda: set(View._fields[1:6]),
    "brief": _brief_words,
    "choice of forward": lambda: _choice(Norm.forward),
    "choice of backward": lambda: _choice(Norm.backward),
    "glance": lambda: _tuples(Numpy.glance, "key"),
    "Plan": lambda: _tuples(Plan.__call__, "self._last") - {"launches"},
}


@pytest.mark.parametrize("key", KEYS)
def test_every_component_of_a_key_has_calls_that_differ_in_it(key: str) -> None:
    assert MADE_OF[key]() == KEYS[key].keys()
    for word, found in KEYS[key].items():
        assert isinstance(found, str) or PAIRS.keys() >= {*found}, word


def _by_call(norm: Norm, call: Call) -> Any:
    return getattr(norm, call.direction)(*call.given, **call.named)


def _by_request(norm: Norm, call: Call) -> Any:
    """By the long way, which a call takes that is not known in brief."""
    dispatcher = norm.dispatcher(call.direction)
    return dispatcher.run(dispatcher.arguments.request(call.given, call.named))


WAYS = {"call": _by_call, "request": _by_request}


def _outcome(way: str, norm: Norm, call: Call) -> list[Any]:
    """What a call returns and writes, or what is wrong with it."""
    given, named = tuple(map(copied, call.given)), copied(dict(call.named))
    try:
        made = WAYS[way](norm, Call(call.direction, given, named))
    except (TypeError, ValueError) as fault:
        return [str(fault)]
    named.pop("workspace", None)
    arrays = [*made, *given, *named.values(), *named.get("out", {}).values()]
    return [
        (each.shape, each.strides, each.dtype, each.tobytes()) if isinstance(each, np.ndarray) else each
        for each in arrays
        if not isinstance(each, dict)
    ]


@pytest.mark.kernels
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PAIRS)
def test_calls_that_differ_in_one_thing_are_other_calls(name: str, way: str) -> None:
    wanted = [_outcome("call", _fresh(), call) for call in PAIRS[name]]
    for order in ((0, 1), (1, 0)):
        norm = _fresh()
        for place in (*[order[0]] * 3, *[order[1]] * 3, *order):
            assert _outcome(way, norm, PAIRS[name][place]) == wanted[place]


@pytest.mark.kernels
def test_plans_are_of_these_addresses() -> None:
    """Each array of a call may be another, and those that it makes are."""
    norm, given, results = _fresh(), [X, A, W, V, W, V], ("y", "z", "r")
    out = dict(zip(results, (drawn(4, 8), drawn(4, 8), drawn(4)), strict=True))
    plans = norm.plan("forward", *given), norm.plan("forward", *given, out=out)
    kept = []
    for place in (*range(6), None, None, *range(6)):
        if place is not None:
            given[place] = drawn(*given[place].shape)
        kept.append(want := _fresh().forward(*given))
        for plan in plans:
            kept.append(plan(*given))  # their memory is not given out again
            assert all(np.array_equal(one, other) for one, other in zip(kept[-1], want, strict=True))


def test_devices_are_told_apart(streams: dict[int, int], driver: FakeDriver) -> None:
    norm = normgen.load("rmsnorm")
    for order in ((0, 1), (1, 0)):
        fresh = Norm(norm.package)
        for device in (*[order[0]] * 3, *[order[1]] * 3, *order):
            driver.launches.clear()
            x = tensor(4, 64, device=device)
            made = [fresh.forward(x).y, fresh.dispatcher("forward").run(_request(fresh, x)).y]
            assert {each.device.index for each in made} == {device}
            assert {each.context.index for each in driver.launches} == {device}


def _request(norm: Norm, x: Any) -> Any:
    return norm.dispatcher("forward").arguments.request((x,), {})
