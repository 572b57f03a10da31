"""Operators that are called again, as compiled graphs call them: known calls run in C++, and all else does
what it did."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import normgen
from normgen import bundled
from normgen.torch import native, node
from normgen.torch.calls import Calls
from tests.threads import at_once
from tests.torch.norms import drawn, nt, rms, same, torch

NORMS = (
    ("rmsnorm", {}, ((3, 8), (8,))),
    ("layernorm", {}, ((3, 8), (8,), (8,))),
    ("add_rmsnorm", {}, ((3, 8), (3, 8), (8,))),
    ("groupnorm", {"groups": 2}, ((3, 4, 5), (4,), (4,))),
    ("batchnorm", {"training": True}, ((3, 4, 5), (4,), (4,), (4,), (4,))),
    ("softmax", {}, ((3, 8),)),
)
every_norm = pytest.mark.parametrize("name, attrs, shapes", NORMS, ids=[name for name, *_ in NORMS])


@pytest.fixture
def known(monkeypatch):
    """Lets no call be made in Python from here on."""

    def refuse(*_):
        raise AssertionError("a call that is known was made in Python")

    def begin():
        monkeypatch.setattr(Calls, "run", refuse)

    if native.EXTENSION.loaded is None:
        pytest.skip(native.EXTENSION.fault)
    return begin


def _given(function, tensors):
    """All that the operator of a forward takes."""
    numbers = [attr.default for attr in function.step.attrs]
    return *tensors, *numbers, [True] * len(function.step.results)


def _several(made):
    return made if isinstance(made, tuple) else (made,)


def _alike(got, want):
    for one, other in zip(_several(got), _several(want), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(one, other) and one.stride() == other.stride() and one.dtype == other.dtype


@every_norm
def test_known_calls_need_no_python(name, attrs, shapes, known):
    function = nt.load(name, **attrs)
    tensors = [torch.rand(shape) for shape in shapes]
    before = [tensor.clone() for tensor in tensors]
    given = _given(function, tensors)
    first = [function.ops.forward(*given) for _ in range(3)]
    known()
    for _ in range(2):
        _alike(function.ops.forward(*given), first[0])
    _alike(tuple(tensors), tuple(before))  # new states are results
    with pytest.raises(AssertionError, match="made in Python"):
        function.ops.forward(*_given(function, [torch.cat([tensors[0]] * 2), *tensors[1:]]))


@every_norm
def test_compiled_steps_need_no_python(name, attrs, shapes, known):
    function = nt.load(name, **attrs)
    states = [each.role == "state" for each in function.step.direction.operands.values()]

    def operands():
        made = [drawn(*shape) for shape in shapes]
        return [t.detach().abs() if state else t for t, state in zip(made, states, strict=False)]

    def results(call, tensors):
        made = call(*tensors)
        total = sum(each.square().sum() for each in (made if isinstance(made, tuple) else (made,)))
        total.backward()
        return [made] if not isinstance(made, tuple) else [*made]

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        results(compiled, operands())
    known()
    mine = operands()
    theirs = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in mine]
    got = results(compiled, mine)
    want = results(function, theirs)
    for one, other in zip([*got, *mine], [*want, *theirs], strict=True):
        same(one, other)
        if one.requires_grad and one.is_leaf:
            same(one.grad, other.grad)


def test_what_is_recorded_is_recorded_by_python():
    function = nt.load("rmsnorm")
    x, w = torch.rand(3, 8), torch.rand(8)
    for _ in range(3):
        function.ops.forward(*_given(function, [x, w]))
    y, *_ = _several(function.ops.forward(*_given(function, [x.requires_grad_(), w])))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    x2 = x.detach().clone().requires_grad_()
    (want,) = torch.autograd.grad(torch.nn.functional.rms_norm(x2, (8,), w, 1e-6).sum(), x2)
    same(gradient, want)
    with torch.no_grad():
        assert _several(function.ops.forward(*_given(function, [x, w])))[0].grad_fn is None


def test_transforms_and_modes_see_known_operators():
    function = nt.load("rmsnorm")
    x, w = torch.rand(3, 8), torch.rand(8)
    for _ in range(3):
        function.ops.forward(*_given(function, [x, w]))
    seen = []

    class Watches(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watches():
        made = function.ops.forward(*_given(function, [x, w]))
    assert function.ops.forward in seen
    _alike(made, function.ops.forward(*_given(function, [x, w])))
    many = torch.func.vmap(lambda one: function.ops.forward(*_given(function, [one, w]))[0])(x)
    same(many, function(x, w))
    _, tangent = torch.func.jvp(lambda one: function.ops.forward(*_given(function, [one, w]))[0], (x,), (x,))
    _, want = torch.func.jvp(lambda one: torch.nn.functional.rms_norm(one, (8,), w, 1e-6), (x,), (x,))
    same(tangent, want)


def test_mistakes_are_told_as_before(known):
    function = nt.load("rmsnorm")
    given = _given(function, [torch.rand(3, 8), torch.rand(8)])
    for _ in range(3):
        function.ops.forward(*given)
    with pytest.raises((TypeError, ValueError, RuntimeError), match="w"):
        function.ops.forward(*_given(function, [torch.rand(3, 8), torch.rand(9)]))


def test_threads_share_known_operators():
    function = nt.load("layernorm")
    tensors = [torch.rand(5, 24), torch.rand(24), torch.rand(24)]
    want = function(*tensors)

    def call():
        for _ in range(20):
            same(_several(function.ops.forward(*_given(function, tensors)))[0], want)

    at_once(*[call] * 8)


def _many(inputs, outputs=1):
    """A norm of so many inputs and outputs."""
    names = [f"x{n}" for n in range(inputs)]
    results = [f"y{n}" for n in range(outputs)]
    lines = [f"input {name}[D]" for name in names]
    lines += [f"output {result}[D] = {' + '.join(names)} + {n}" for n, result in enumerate(results)]
    return "\n".join([f"norm many_{inputs}_{outputs}", *lines, ""])


@pytest.mark.parametrize(("inputs", "outputs"), ((62, 1), (1, 62), (30, 32)))
def test_as_many_tensors_as_an_operator_can_have(inputs, outputs, load):
    """The last one of them is told from the others."""
    norm, operands = load(_many(inputs, outputs)), [drawn(3) for _ in range(inputs)]
    for _ in range(3):
        made = norm(*operands)
        made = made if isinstance(made, tuple) else (made,)
        for n in (0, outputs - 1):
            same(made[n], sum(operands) + n)
        for wrt in ({0}, {inputs - 1}, {0, inputs - 1}):
            given = [operand if place in wrt else operand.detach() for place, operand in enumerate(operands)]
            made = norm(*given)
            last = made[-1] if isinstance(made, tuple) else made
            found = torch.autograd.grad(last.sin().sum(), [given[place] for place in sorted(wrt)])
            same(list(found), [last.cos().detach()] * len(wrt))


@pytest.mark.parametrize(
    ("inputs", "outputs", "fault"),
    (
        (64, 1, "many_64_1_.*forward would have 65 arguments and 1 results"),
        (2, 65, "many_2_65_.*forward would have 3 arguments and 65 results"),
    ),
)
def test_more_tensors_than_an_operator_can_have_are_refused(inputs, outputs, fault):
    for _ in range(2):
        with pytest.raises(RuntimeError, match=fault):
            nt.load(_many(inputs, outputs))
    arrays = [np.full(3, n, np.float32) for n in range(inputs)]
    made = normgen.load(_many(inputs, outputs))(*arrays)
    assert ((made if outputs == 1 else made[-1]) == sum(arrays) + outputs - 1).all()


def test_operators_are_registered_before_anybody_can_call_them(monkeypatch, extension):
    """The dispatcher's table has no lock for those that read it. An extension that comes later makes the
    calls of operators that Python has."""
    if extension is None:
        pytest.skip(native.EXTENSION.fault)
    register, noted, x = node.register, [], torch.randn(3, 8)
    add = extension.register_known_calls

    def note_extension(name, *given):
        noted.append(name)
        add(name, *given)

    def note(step, *given):
        noted.append((step.name, step.operator))
        register(step, *given)

    monkeypatch.setattr(node, "register", note)
    monkeypatch.setattr(extension, "register_known_calls", note_extension)
    for there in (True, False):
        late = native._Extension()
        late.loaded, late.fault = (extension, "") if there else (None, "it comes later")
        monkeypatch.setattr(native, "EXTENSION", late)
        norm = nt.load(f"{bundled.read('rmsnorm').text}# registered with it: {there}\n")
        steps = [norm.step, norm.step.derive().step]
        late.loaded, late.fault = extension, ""
        for _ in range(3):
            same(norm.ops.forward(*_given(norm, (x, None)))[0], rms(x))
        each = [[(step.name, None), *[f"normgen::{step.name}"] * there] for step in steps]
        assert noted == [*each[0], *each[1]]
        noted.clear()
