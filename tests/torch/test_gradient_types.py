"""A gradient has the element type of its operand, whatever else a call is given: by every way of calling, it
is the float64 value rounded once to that type, within the bounds that `normgen check` has."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import normgen
from examples.autograd import Tensor, apply
from normgen import bundled
from normgen.codegen.compilation import Compilation
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.dtypes import DTYPES
from normgen.ir.centre import centre
from normgen.ir.reference import evaluate
from normgen.torch.dtypes import NAMES, TYPES
from normgen.verify.bounds import BACKWARD_SLACK, Setting, analyse
from normgen.verify.cases import DtypeSet, make_case
from normgen.verify.compare import compare
from normgen.verify.draw import draw, scalar_values
from tests.torch.norms import nt, same, torch

EXAMPLES = int(os.environ.get("EXAMPLES", "0"))
grad = torch.autograd.grad
KINDS = ("f32", "f16", "bf16")
SEVERAL = """norm several "Of five operands the derivative reads two."
input  x[..., D]
input  a[..., D]
param  w[D] = 1
param  b[D] = 0
param  c[] = 0
output y[..., D] = x * w + a + b
output z[..., D] = a + c
"""
NORMS = (
    ("layernorm", {}),
    ("layernorm2d", {}),
    ("groupnorm", {"groups": 2}),
    ("batchnorm", {}),
    ("instancenorm", {}),
    ("add_rmsnorm", {}),
    ("add_layernorm", {}),
    ("adaln_modulate", {}),
    ("dyt", {}),
    ("derf", {}),
    (SEVERAL, {}),
)
types = st.lists(st.sampled_from(KINDS), min_size=5, max_size=5)


class Drawn:
    """A call of a norm whose operands have element types of their own: arrays, what is differentiated by, and
    what each gradient must be."""

    def __init__(self, norm: Any, inputs: Any, params: Any, wanted: Any) -> None:
        name, attrs = norm
        self.text = name if name == SEVERAL else bundled.read(name).text
        definition = load_definition(Source("drawn.norm", self.text), attrs)
        self.attrs, self.program, self.of = attrs, definition.program, definition.of
        self.scalars = scalar_values(self.program)
        forward = make_case(definition, 3, 6, DtypeSet("", inputs, params, ("f32",)))
        cotangents = [forward.dtypes[name] for name in definition.of]
        self.case = make_case(definition, 3, 6, DtypeSet("", inputs, params, cotangents))
        self.arrays = draw(definition, self.case, self.scalars).arrays
        known = {t.name: t for t in self.program.operands}
        self.wrt = [name for name, want in zip(definition.wrt, wanted, strict=False) if want]
        self.wrt = self.wrt or list(definition.wrt)
        self.shapes = {name: self.case.memory_shape(tensor) for name, tensor in known.items()}
        self.shapes |= {f"d{r.tensor.name}": self.case.memory_shape(r.tensor) for r in self.program.results}
        self.backward = Compilation(definition).derived

    def array(self, name: str) -> Any:
        """An operand or a cotangent for NumPy."""
        values = self.arrays[name].reshape(self.shapes[name])
        return values.astype(DTYPES[self.case.dtypes[name]].numpy)

    def tensor(self, name: str) -> Any:
        """The same for PyTorch, which differentiates by what is wanted."""
        made = torch.from_numpy(self.arrays[name].reshape(self.shapes[name]).copy())
        return made.to(TYPES[self.case.dtypes[name]]).requires_grad_(name in self.wrt)

    @property
    def operands(self) -> list[str]:
        return [tensor.name for tensor in self.program.operands]

    def check(self, saved: dict[str, Any], gradients: dict[str, Any]) -> None:
        """Compare gradients, arrays by operand. `saved`: what the forward returned."""
        orders = {
            r.tensor.name: [self.case.extents[axis] for axis in r.tensor.order] for r in self.program.results
        }
        stored = {name: np.float64(saved[name]).reshape(orders[name]) for name in orders if name in saved}
        arrays, extents, dtypes = {**self.arrays, **stored}, self.case.extents, self.case.dtypes
        program = centre(self.backward)
        truth = evaluate(program, arrays, extents, self.scalars, True, dtypes)
        bounds = analyse(program, Setting(arrays, extents, self.scalars, dtypes), {}, BACKWARD_SLACK)
        assert gradients.keys() == set(self.wrt)
        for name, got in gradients.items():
            kind, shape = self.case.dtypes[name], self.shapes[name]
            want, bound = (
                truth[f"d{name}"].reshape(shape),
                np.broadcast_to(bounds[f"d{name}"].error, truth[f"d{name}"].shape),
            )
            assert got.dtype == DTYPES[kind].numpy, name
            found = compare(got, kind, want, bound.reshape(shape))
            assert found.ok, (name, kind, found)


def _numpy(tensor: Any) -> Any:
    return tensor.detach().double().numpy().astype(DTYPES[NAMES[tensor.dtype]].numpy)


def _in_torch(function: Any, call: Drawn) -> None:
    """Three times, since a call that was made before is made in C++ where that is there."""
    tensors = {name: call.tensor(name) for name in call.operands}
    cotangents = [call.tensor(f"d{name}").detach() for name in call.of]
    with torch.no_grad():
        states = {name: tensors[name].clone() for name in tensors}
        saved = nt.load(call.text, **call.attrs).with_saved(*states.values(), **call.scalars)
    saved = {name: _numpy(each) for name, each in saved._asdict().items()}
    for _ in range(3):
        made = function(
            *[each.detach().clone() if not each.requires_grad else each for each in tensors.values()],
            **call.scalars,
        )
        made = made if isinstance(made, tuple) else (made,)
        found = grad(made, [tensors[name] for name in call.wrt], cotangents)
        call.check(saved, {name: _numpy(each) for name, each in zip(call.wrt, found, strict=True)})


def _compiled(call: Drawn) -> None:
    torch._dynamo.reset()
    _in_torch(torch.compile(nt.load(call.text, **call.attrs), backend="aot_eager", fullgraph=True), call)


def _on_the_tape(call: Drawn) -> None:
    norm = normgen.load(call.text, **call.attrs)
    operands = [call.array(name) for name in call.operands]
    saved = norm.forward(*[each.copy() for each in operands], **call.scalars)._asdict()
    tensors = {
        name: Tensor(each, name in call.wrt) for name, each in zip(call.operands, operands, strict=True)
    }
    made = apply(norm, *tensors.values(), **call.scalars)
    (output,) = call.of
    getattr(made, output).backward(call.array(f"d{output}"))
    call.check(saved, {name: tensors[name].grad for name in call.wrt})


def _in_numpy(call: Drawn) -> None:
    norm = normgen.load(call.text, **call.attrs)
    operands = {name: call.array(name) for name in call.operands}
    saved = norm.forward(**operands, **call.scalars)._asdict()
    given = {**operands, **saved, **{f"d{name}": call.array(f"d{name}") for name in call.of}}
    read = {name: given[name] for name in norm.backward_args}
    told = {name: call.case.dtypes[name] for name in call.wrt}
    whole = {name: operands[name] for name in call.wrt if name not in read}
    for more in ({"dtypes": told}, whole):
        made = norm.backward(wrt=call.wrt, **read, **more, **call.scalars)
        call.check(saved, {name: getattr(made, f"d{name}") for name in call.wrt})


def _in_python(call: Drawn) -> None:
    _in_torch(nt.load(call.text, **call.attrs), call)


def _in_cpp(call: Drawn) -> None:
    call.text += "\n# called in C++\n"  # another text, so that no other test has its functions
    _in_torch(nt.load(call.text, **call.attrs), call)


WAYS = {"Python": _in_python, "C++": _in_cpp, "compiled": _compiled, "tape": _on_the_tape, "NumPy": _in_numpy}


@pytest.mark.parametrize("way", WAYS)
@settings(
    max_examples=EXAMPLES or 4,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(norm=st.sampled_from(NORMS), inputs=types, params=types, wanted=st.lists(st.booleans(), max_size=5))
def test_a_gradient_is_rounded_once_to_the_type_of_its_operand(way, request, norm, inputs, params, wanted):
    if way == "C++":
        request.getfixturevalue("launcher")
    call = Drawn(norm, inputs, params, wanted)
    assume(way != "tape" or len(call.of) == 1)
    WAYS[way](call)


def test_a_bias_beside_half_activations_has_a_gradient_beyond_their_range():
    module, x = nt.nn.BatchNorm1d(4), torch.randn(200, 4, 333).half().requires_grad_()
    y = module(x)
    y.backward(torch.full_like(y, 2))
    assert y.dtype is x.grad.dtype is torch.float16
    same(module.bias.grad, torch.full((4,), 133200.0))


@pytest.mark.parametrize("x", (torch.float64, torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("b", (torch.float64, torch.float32, torch.bfloat16), ids=str)
def test_float64_beside_other_types_changes_no_gradients_type(x, b):
    x, b = torch.randn(9, 5, dtype=x), torch.randn(5, dtype=b, requires_grad=True)
    norm = nt.load(SEVERAL)
    for function in (norm, torch.compile(norm, backend="aot_eager")):
        y = function(x, x, None, b)[0]
        dy = torch.ones_like(y)
        (db,) = grad(y, b, dy)
        assert db.dtype is b.dtype and db.tolist() == [9.0] * 5


def test_second_derivatives_have_the_types_of_their_operands():
    x, w, b = (torch.randn(4, 6).bfloat16(), torch.randn(6).half(), torch.randn(6))
    operands = [each.requires_grad_() for each in (x, w, b)]
    first = grad(nt.load("layernorm")(*operands).sin().sum(), operands, create_graph=True)
    second = grad(sum(each.float().sin().sum() for each in first), operands)
    for each in (first, second):
        assert [gradient.dtype for gradient in each] == [operand.dtype for operand in operands]


def test_a_type_that_an_operand_has_not_is_refused_in_a_line():
    norm = normgen.load("layernorm")
    x, b = np.ones((3, 8), np.float16), np.zeros(8, np.float32)
    _, mu, rstd = norm.forward(x, None, b)
    for told, fault in (
        ({"b": "f16"}, "dtypes: b is f32, not f16"),
        ({"b": "float"}, "dtypes: 'float' is not supported; use one of f32, f16"),
        ({"c": "f32"}, "layernorm has no 'c'"),
        ("f32", "dtypes is a str: pass a dict of element types by name"),
    ):
        with pytest.raises((TypeError, ValueError), match=fault):
            norm.backward(x, x, None, mu, rstd, b=b, dtypes=told)
    sizes = {"...": (3,), "D": 8}
    assert norm.workspace("backward", sizes, {"x": "f16", "b": "f32"}) is not None
