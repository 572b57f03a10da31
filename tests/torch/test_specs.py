"""Every bundled spec and each that only modules have: its operators, and its gradients by differences."""

from __future__ import annotations

import inspect

import pytest

import normgen
from normgen.diagnostics import Source
from normgen.torch.calls import Wanted
from normgen.verify.events import Row
from normgen.verify.run import Options, run
from tests.generated import generated
from tests.sampling import paired
from tests.threads import at_once
from tests.torch.drawing import CONSTANT, TEXTS, differentiable_variants, example, label, variants
from tests.torch.norms import drawn, nt, same, torch

FakeTensorMode = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode
grad, gradcheck, gradgradcheck = torch.autograd.grad, torch.autograd.gradcheck, torch.autograd.gradgradcheck
EXACT = {"dtype": torch.float64, "requires_grad": True}
every_differentiable = pytest.mark.parametrize("variant", differentiable_variants(), ids=label)

KINDS = ("f32-dense", "f64-permuted", "bf16-expanded")
WHOLE = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
QUICK = ("test_schema", "test_faketensor")  # what differs between element types and layouts
# PyTorch's CPU kernels cannot add up or compare fp8, which `test_schema` and the AOT check do.
FLOAT8 = ("test_autograd_registration", "test_faketensor")


def _calls(variant, dtype, layout):
    """The steps of a variant, those of second derivatives too in float64, each with arguments that ask for no
    fp8 results, and with arguments that ask for all."""
    case = example(variant, dtype, layout)
    step, tensors, first = case.function._step, case.tensors, case.required()
    for _ in range(3 if dtype == "f64" else 2):
        everything = [True] * len(step.results)
        yield step, (*first, *case.numbers, _no_float8(step)), (*tensors, *case.numbers, everything)
        derivative = step.derive()
        if derivative is None:
            return
        made = step.run(tensors, case.numbers, Wanted(step.results))
        known = dict(zip((*step.operands, *step.results), (*tensors, *made), strict=True))
        tensors = first = tuple(
            torch.ones_like(known[name]) if kind == "cotangent" else known[name]
            for kind, name in derivative.operands
        )
        step = derivative.step


def _no_float8(step):
    return [not (record.dtype or "").startswith("f8") for record in step.direction.results.values()]


@pytest.mark.parametrize(("variant", "kind"), paired(variants(), KINDS, name=label))
def test_operators_pass_opcheck_and_fakes_lie_as_real_results_do(variant, kind):
    dtype, layout = kind.split("-")
    for step, arguments, whole in _calls(variant, dtype, layout):
        float8 = any(_is_tensor(each) and each.itemsize == 1 for each in arguments)
        checks = FLOAT8 if float8 else QUICK if dtype == "bf16" else WHOLE
        torch.library.opcheck(step.operator, arguments, test_utils=checks)
        with FakeTensorMode() as mode:
            fakes = step.operator(*(mode.from_tensor(each) if _is_tensor(each) else each for each in whole))
        assert _metadata(fakes) == _metadata(step.operator(*whole))


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _metadata(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(each.shape, each.stride(), each.dtype, each.device, each.layout) for each in results]


@pytest.mark.parametrize("text", TEXTS)
def test_kernels_of_what_only_modules_have_pass_a_quick_check(text):
    events = run(Source("text.norm", text), Options(executors=("host",), quick=True))
    rows = [event for event in events if isinstance(event, Row)]
    assert {row.direction for row in rows} >= {"forward", "backward"}
    assert all(row.ok for row in rows)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own
@every_differentiable
def test_derivatives_are_those_of_differences(variant):
    case = example(variant, "f64", rows=2, width=4)
    tensors = case.required()
    assert any(tensor.requires_grad for tensor in tensors)
    batched = variant[0] in ("rmsnorm", "add_rmsnorm", "softmax")
    assert gradcheck(case.call, tensors, check_forward_ad=True, check_batched_grad=batched)
    assert gradgradcheck(case.call, tensors, check_batched_grad=batched)


@every_differentiable
def test_kernels_of_second_derivatives_agree_with_float64(variant):
    case = example(variant, "f32")
    tensors = case.required()
    exact = [
        each.detach().double().requires_grad_(each.requires_grad) if each.dtype is torch.float32 else each
        for each in tensors
    ]
    for mine, theirs in zip(_second(case, tensors), _second(case, exact), strict=True):
        same(mine.double(), theirs, 2e-4)


def _second(case, tensors):
    """The gradients of a number that is made of gradients."""
    wrt = [tensor for tensor in tensors if tensor.requires_grad]
    outputs = case.call(*(tensor.clone() for tensor in tensors))
    first = grad(sum(each.sin().sum() for each in outputs), wrt, create_graph=True)
    return grad(sum(each.sin().sum() for each in first), wrt, materialize_grads=True)


@pytest.mark.parametrize("variant", [v for v in variants() if v[0] in CONSTANT], ids=label)
def test_outputs_of_what_has_no_derivative_require_none(variant):
    case = example(variant)
    made = case.function(*case.required(), **case.named)
    assert not any(each.requires_grad for each in made)


def test_quantised_outputs_require_no_gradient_beside_one_that_does():
    made = nt.load("rmsnorm_quantized_row")(drawn(3, 8))
    assert made._fields == ("y", "scale", "q")
    assert [each.requires_grad for each in made] == [True, False, False]


def test_what_differentiates_more_than_it_returns_requires_no_gradient():
    """The cotangent of `y` cannot come in, and gradients without it would be wrong in silence."""
    text = "norm n\ninput x[..., D]\noutput h[..., D] = 2 * x\nlet y[..., D] = h * h\ngrad h, y wrt x\n"
    assert not nt.load(text)(drawn(3, 8)).requires_grad


def test_what_rounds_on_purpose_has_the_derivative_of_the_spec():
    """Differences cannot see a straight-through derivative: the reference has the same."""
    text = """norm coarse "Halved, and rounded on the way."
input x[..., D]
param w[D] = 1
output y[..., D] = bf16(x * x) * w
"""
    x, w, cotangent = torch.randn(3, 5, **EXACT), torch.randn(5, **EXACT), torch.randn(3, 5).double()
    got = grad(nt.load(text)(x, w), (x, w), cotangent)
    want = normgen.load(text).reference.backward(cotangent.numpy(), x.detach().numpy(), w.detach().numpy())
    torch.testing.assert_close(got, tuple(map(torch.from_numpy, want)))


def test_generated_modules_and_what_is_left_out_have_every_order_too():
    x, b = torch.randn(2, 5, **EXACT), torch.randn(5, **EXACT)
    assert gradgradcheck(nt.load(generated("rmsnorm")), (x,))
    assert gradgradcheck(lambda x, b: nt.load("layernorm")(x, b=b), (x, b))


SAVER = """norm saver "Its backward reads what it saves in place of x."
input x[..., D]
param w[D] = 1
save t[..., D] = tanh(x)
save unread[...] = mean[D](x)
output y[..., D] = t * w + unread
"""


def test_a_save_counts_as_the_function_of_operands_that_it_is():
    function = nt.load(SAVER)
    assert "x" not in function._step.derive().step.direction.reads
    x, w = torch.randn(2, 3, **EXACT), torch.randn(3, **EXACT)
    assert gradgradcheck(function, (x, w))
    same(_curvature(function, x.float(), w.float()).double(), _curvature(function, x, w))


def _curvature(function, x, w):
    x = x.detach().requires_grad_()
    (first,) = grad(function(x, w).sin().sum(), x, create_graph=True)
    return grad(first.sin().sum(), x)[0]


def test_threads_that_ask_at_once_compile_a_derivative_once():
    function = nt.load(SAVER.replace("saver", "saver_of_threads"))
    x, w = torch.randn(2, 3), torch.randn(3)
    found = at_once(*[lambda: _curvature(function, x, w)] * 8)
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize("params", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_second_derivatives_have_the_element_types_of_operands(dtype, params):
    norm = nt.load("layernorm")
    exact = [torch.randn(3, 8).to(dtype).double(), torch.rand(8).to(params).double()]
    found = []
    for kinds in ((dtype, params), (torch.float64, torch.float64)):
        given = [each.to(kind).requires_grad_() for each, kind in zip(exact, kinds, strict=True)]
        first = grad(norm(*given).double().sin().sum(), given, create_graph=True)
        found.append(grad(sum(each.double().sin().sum() for each in first), given))
    assert [each.dtype for each in found[0]] == [dtype, params]
    same([each.double() for each in found[0]], list(found[1]), 0.05)


def test_a_function_describes_itself() -> None:
    function = nt.load("batchnorm")
    assert str(inspect.signature(function)) == (
        "(x, w=None, b=None, running_mean=None, running_var=None, *, momentum: float = 0.1, "
        "eps: float = 1e-05, correction: float = 1.0)"
    )
    doc = function.__doc__ or ""
    assert "running_var: state [C]" in doc and "stream" not in doc
    assert function._repr_html_().count("<math>") > 10
