"""What PyTorch's calls are known by, component by component: two calls that differ in one alone have, one
after the other, the bits that each has of a function of its own."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

import normgen
from normgen.arrays.torch import Torch
from normgen.devices.host.executor import HostExecutor
from normgen.torch import extension, native
from normgen.torch.calls import Calls, Wanted
from normgen.torch.function import NormFunction
from normgen.torch.ranks import steps
from normgen.torch.steps import Pull
from tests.torch.conftest import forget_calls
from tests.torch.norms import torch

# The derivative reads no a, b and c, so that only their element types are kept for their gradients.
NORM = """norm keyed "Several of everything."
attr   scale = 2
attr   shift = 3
input  x[..., D]
input  a[..., D]
param  w[D] = 1
param  v[D] = 1
param  b[D] = 0
param  c[D] = 0
save   r[...] = rsqrt(mean[D](x^2) + 1)
output y[..., D] = x * r * w * scale + b + c
output z[..., D] = x * v + a + shift + b
"""
COUNT = count()
OPERANDS = ("x", "a", "w", "v", "b", "c")
HALF, BF16 = torch.float16, torch.bfloat16
_DRAWN = torch.Generator().manual_seed(0)


def _drawn(*shape, offset=0, pitch=None, dtype=torch.float32):
    """A tensor whose rows are so far apart, which begins so many elements behind an aligned place."""
    pitch = pitch or shape[-1]
    memory = torch.randn(offset + pitch * torch.Size(shape[:-1]).numel(), generator=_DRAWN).to(dtype)
    return memory[offset:].view(*shape[:-1], pitch)[..., : shape[-1]]


class Call(NamedTuple):
    """Operands in order, numbers by name, the operands that are differentiated by, and the outputs whose
    cotangents come in."""

    tensors: tuple[torch.Tensor | None, ...]
    numbers: dict[str, float]
    wrt: tuple[str, ...]
    of: tuple[int, ...]
    told: dict[str, torch.dtype | None]  # to operators, of others than operands have


USUAL = {
    "x": _drawn(4, 8), "a": _drawn(4, 8), "w": _drawn(8), "v": _drawn(8), "b": _drawn(8), "c": _drawn(8)
}  # fmt: skip


def call(wrt=OPERANDS, of=(0, 1), numbers=None, told=None, **operands):
    given = {**USUAL, **operands}
    wrt = tuple(name for name in wrt if given[name] is not None)
    return Call(tuple(given[name] for name in OPERANDS), numbers or {}, wrt, of, told or {})


BASE = call()


def typed(**dtypes):
    return call(**{name: USUAL[name].to(dtype) for name, dtype in dtypes.items()})


ROWS = {"x": _drawn(3, 8), "a": _drawn(3, 8)}
DEEP = {name: USUAL[name].view(2, 2, 8) for name in "xa"}
PAIRS = {
    **{f"type of {name}": (typed(**{name: HALF}), typed(**{name: BF16})) for name in OPERANDS},
    "types of two params": (typed(b=HALF, c=BF16), typed(b=BF16, c=HALF)),
    "types of an input and a param": (typed(a=HALF, b=BF16), typed(a=BF16, b=HALF)),
    **{
        f"alignment of {name}": tuple(
            call(**{name: _drawn(*USUAL[name].shape, offset=offset)}) for offset in (0, 1)
        )
        for name in OPERANDS
    },
    "lengths": (BASE, call(**ROWS)),
    "dimensions": (BASE, call(**DEEP)),
    **{
        f"strides of {name}": tuple(call(**{name: _drawn(4, 8, pitch=pitch)}) for pitch in (8, 12))
        for name in "xa"
    },
    "rows that are one": (BASE, call(x=USUAL["x"][:1].expand(4, 8))),
    **{f"{name} left out": (BASE, call(**{name: None})) for name in OPERANDS[2:]},
    "two left out, or one": (call(w=None), call(w=None, v=None)),
    "one left out, or another": (call(w=USUAL["w"], v=None), call(w=None, v=USUAL["w"])),
    "one without a gradient left out, or another": (call(b=USUAL["b"], c=None), call(b=None, c=USUAL["b"])),
    "recorded, or not": (BASE, call(wrt=())),
    **{f"gradient of {name} alone": (BASE, call(wrt=(name,))) for name in OPERANDS},
    "one gradient, or another": (call(wrt=("x",)), call(wrt=("w",))),
    "gradients of two, or others": (call(wrt=("x", "b")), call(wrt=("w", "c"))),
    "first number": (call(numbers={"scale": 2.0}), call(numbers={"scale": 5.0})),
    "second number": (call(numbers={"scale": 2.0}), call(numbers={"shift": 5.0})),
    "cotangents": (call(of=(0,)), call(of=(1,))),
    "one cotangent, or two": (call(of=(1,)), call(of=(0, 1))),
}
GPU = "no other device is here: test_gpu.py"
LENGTH = "what is known by the number of words: "
# By key, what it is made of in the words of the source: the pairs that differ in it, or why there are none.
KEYS = {
    "key_of": {
        "(int64_t)wanted.results": ["recorded, or not", "gradient of x alone", "gradients of two, or others"],
        "(int64_t)wanted.types.size()": LENGTH + "a type goes with a result that is wanted",
        "(int64_t)place << 8": "test_types_told_of_one_or_another_make_other_calls",
        "(int64_t)dtype": ["type of a", "type of b", "type of c"],
        "0": ["w left out", "one left out, or another", "one without a gradient left out, or another"],
        "dtype << 32": ["type of x", "type of w", "type of v"],
        "device << 24": GPU,
        "alignment << 16": ["alignment of x", "alignment of a", "alignment of v"],
        "(int64_t)sizes.size()": LENGTH + "all operands have the dimensions of `...` alike",
        "sizes": ["lengths", "dimensions"],
        "strides": ["strides of x", "strides of a", "rows that are one"],
    },
    "glance": {
        "'torch'": "arrays of all libraries have keys",
        "array.shape": ["lengths", "dimensions"],
        "array.stride()": ["strides of x", "rows that are one"],
        "array.dtype": ["type of x", "type of w"],
        "array.device": GPU,
        "aligned": ["alignment of x", "alignment of w"],
        "refused": "test_lazy_tensors.py",
    },
    "Calls.run": {
        "wanted": ["recorded, or not", "gradient of x alone"],
        "None": ["w left out", "one left out, or another"],
        "lies": ["type of x", "lengths"],
    },
    "Wanted": {
        "names": ["one gradient, or another", "gradients of two, or others"],
        "types": ["type of b", "types of two params"],
    },
    "Pull.choose": {"needed": ["gradient of x alone"], "types": ["type of b", "types of two params"]},
    "ranks": {"wanted": "as Calls.run", "*lying": "as Calls.run"},
}  # fmt: skip


def _source(item):
    return ast.parse(textwrap.dedent(inspect.getsource(item)))


def _words(item, name):
    """What a tuple of this name is made of, and what is added to a list of this name."""
    found = []
    for node in ast.walk(_source(item)):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, (ast.Tuple, ast.List)):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            found += node.value.elts if ast.unparse(target) == name else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == f"{name}.append":
            found += node.args
        elif isinstance(node, ast.Return) and name == "return" and isinstance(node.value, ast.Tuple):
            found += node.value.elts
    return {ast.unparse(each) for each in found}


def _words_in_cpp():
    text = (Path(extension.__file__).parent / "cpp" / "calls.h").read_text()
    body = re.search(r"inline Key key_of\(.*?\n}\n", text, re.S)[0]
    words = re.findall(r"key\.push_back\((.*)\);", body) + re.findall(r"key\.append\((\w+)\.begin", body)
    assert len(words) == body.count("key.") and body.count("return") == 2
    return {part for word in words for part in word.split(" | ")}


MADE_OF = {
    "key_of": _words_in_cpp,
    "glance": lambda: _words(Torch.glance, "key"),
    "Calls.run": lambda: _words(Calls.run, "key"),
    "Wanted": lambda: set(Wanted._fields),
    "Pull.choose": lambda: set(list(inspect.signature(Pull.choose).parameters)[1:]),
    "ranks": lambda: _words(steps._key, "return"),
}


@pytest.mark.parametrize("key", KEYS)
def test_every_component_of_a_key_has_calls_that_differ_in_it(key):
    assert MADE_OF[key]() == KEYS[key].keys()
    for word, pairs in KEYS[key].items():
        assert isinstance(pairs, str) or PAIRS.keys() >= {*pairs}, word


def _fresh():
    """A function that has made no call, whose operators nobody else has."""
    return NormFunction(normgen.load(f"{NORM}# {next(COUNT)}\n").on(HostExecutor(checked=True)))


def _cotangents(made, of):
    return {
        place: torch.linspace(-1, place + 1, made[place].numel())
        .view(made[place].shape)
        .to(made[place].dtype)
        for place in of
    }


def by_function(norm, given):
    """The outputs, and the gradients of what is differentiated by."""
    tensors = {
        name: None if tensor is None else tensor.detach().requires_grad_(name in given.wrt)
        for name, tensor in zip(OPERANDS, given.tensors, strict=True)
    }
    made = norm(*tensors.values(), **given.numbers)
    if not given.wrt:
        return tuple(made)
    cotangents = _cotangents(made, given.of)
    outputs, wrt = [made[place] for place in cotangents], [tensors[name] for name in given.wrt]
    found = torch.autograd.grad(outputs, wrt, [*cotangents.values()], allow_unused=True)
    return (*(each.detach() for each in made), *found)


def by_operators(norm, given):
    """The same by what compiled graphs call."""
    step, derivative = norm.step, norm.step.derive()
    numbers = {attr.name: attr.default for attr in step.attrs} | given.numbers
    made = norm.ops.forward(*given.tensors, *numbers.values(), [True, True, bool(given.wrt)])
    if not given.wrt:
        return made[:2]
    known = dict(zip((*OPERANDS, *step.results), (*given.tensors, *made), strict=True))
    cotangents = _cotangents(made, given.of)
    taken = [
        cotangents.get(step.results.index(name)) if kind == "cotangent" else known[name]
        for kind, name in derivative.operands
    ]
    mask = [source in given.wrt for source in derivative.gradients]
    own = {name: known[name].dtype for name in given.wrt} | given.told
    types = [own.get(name) for name in derivative.step.typed.values()]
    found = norm.ops.backward(*taken, *numbers.values(), mask, *types)
    gradients = dict(zip(derivative.gradients, found, strict=True))
    return (*made[:2], *(gradients[name] for name in given.wrt))


WAYS = {
    "function in C++": by_function,
    "function in Python": by_function,
    "operators in C++": by_operators,
}
_WANTED = {}


def _wanted(given):
    """What a function of its own makes of a call."""
    if id(given) not in _WANTED:
        _WANTED[id(given)] = by_function(_fresh(), given)
    return _WANTED[id(given)]


@pytest.fixture(scope="module")
def shared():
    return _fresh()


def _same_bits(got, want):
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
            assert torch.equal(one, other)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PAIRS)
def test_calls_that_differ_in_one_thing_are_other_calls(name, way, shared, runs, request):
    """What comes for the first time is made in Python, and all else in C++."""
    in_cpp = "C++" in way and native.EXTENSION.loaded is not None
    if "Python" in way:
        request.getfixturevalue("in_python")
    for first, second in (PAIRS[name], PAIRS[name][::-1]):
        forget_calls()
        for place, given in enumerate((*[first] * 3, *[second] * 3, first, second)):
            runs.clear()
            _same_bits(WAYS[way](shared, given), _wanted(given))
            if in_cpp and place > 1 and "number" not in name:
                assert bool(runs) == (place == 3)


def test_types_told_of_one_or_another_make_other_calls(shared, runs):
    """An operator may be told the types of some gradients alone."""
    types = {"a": HALF, "b": None}, {"a": None, "b": HALF}
    for first, second in (types, types[::-1]):
        forget_calls()
        for place, told in enumerate((first, first, first, second, first, second)):
            runs.clear()
            made = by_operators(shared, call(wrt=("a", "b"), told=told))
            assert [each.dtype for each in made[2:]] == [told[name] or torch.float32 for name in "ab"]
            assert native.EXTENSION.loaded is None or place < 2 or bool(runs) == (place == 3)
