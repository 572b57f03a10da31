"""The operators of every bundled spec: torch.library.opcheck, and fake results beside real ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from tests.torch.drawing import example, label, variants  # noqa: E402

KINDS = [("f32", "dense"), ("f64", "permuted"), ("bf16", "expanded")]
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
        made = step.run(tensors, case.numbers, step.results)
        known = dict(zip((*step.operands, *step.results), (*tensors, *made), strict=True))
        tensors = first = tuple(
            torch.ones_like(known[name]) if kind == "cotangent" else known[name]
            for kind, name in derivative.operands
        )
        step = derivative.step


def _no_float8(step):
    return [not (record.dtype or "").startswith("f8") for record in step.direction.results.values()]


@pytest.mark.parametrize(("dtype", "layout"), KINDS, ids=[f"{dtype}-{layout}" for dtype, layout in KINDS])
@pytest.mark.parametrize("variant", variants(), ids=label)
def test_operators_pass_opcheck_and_fakes_lie_as_real_results_do(variant, dtype, layout):
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
