"""Norms of CPU tensors as users have them: PyTorch's operators compute what kernels do."""

from __future__ import annotations

import pytest

from normgen.devices.host.executor import HostExecutor
from tests.sampling import paired
from tests.torch.drawing import differentiable_variants, example, label, variants
from tests.torch.modes import without_kernels
from tests.torch.norms import drawn, nt, same, torch

cutting = pytest.importorskip("normgen.torch.cutting")
testing = pytest.importorskip("torch._dynamo.testing")
grad, gradcheck, gradgradcheck = torch.autograd.grad, torch.autograd.gradcheck, torch.autograd.gradgradcheck
every_variant = pytest.mark.parametrize("variant", variants(), ids=label)
every_differentiable = pytest.mark.parametrize("variant", differentiable_variants(), ids=label)

# One unit of the last place of each type, and some of float32 for the order of sums.
TOLERANCES = {
    torch.float32: 2e-5,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-10,
    torch.float8_e4m3fn: 2**-3,
    torch.float8_e5m2: 2**-2,
}


def _outcome(case, tensors):
    """The outputs and the saves of a call, the gradients, and what the states are afterwards."""
    made = case.function.with_saved(*tensors, **case.named)
    wrt = [each for each in tensors if each is not None and each.requires_grad]
    outputs = [each for each in made if each.requires_grad]
    slopes = [torch.linspace(-1, 2, each.numel()).view(each.shape).to(each.dtype) for each in outputs]
    found = grad(outputs, wrt, slopes, allow_unused=True) if outputs else ()
    updated = zip(case.function._step.operands, tensors, strict=True)
    return [*made, *found, *(each for name, each in updated if name in case.function._step.updated)]


def _agree(got, want):
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        if mine is None or theirs is None:
            assert mine is theirs
            continue
        assert (mine.dtype, mine.shape, mine.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        scale = max(1.0, float(theirs.double().abs().max())) if theirs.numel() else 1.0
        same(mine.double() / scale, theirs.double() / scale, TOLERANCES[mine.dtype])


def _modes(case, tensors=None):
    """The outcome of a call without kernels, and with them."""
    given = case.required() if tensors is None else tensors

    def outcome():
        # (states are written, and what lies in some way is not to lie in another)
        owned = [each if each is None or each.requires_grad else each.clone() for each in given]
        return _outcome(case, owned)

    want = outcome()
    with without_kernels():
        return outcome(), want


@pytest.mark.parametrize(("variant", "dtype"), paired(variants(), ("f32", "bf16", "f16"), name=label))
def test_every_spec_is_what_its_kernels_compute(variant, dtype):
    _agree(*_modes(example(variant, dtype)))


@pytest.mark.parametrize(("variant", "layout"), paired(variants(), ("permuted", "expanded"), name=label))
def test_operands_may_lie_in_any_way(variant, layout):
    _agree(*_modes(example(variant, "f32", layout)))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3)])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_there_are_as_many_buffers_as_asked_for(shape, count):
    """Of tensors without elements too."""
    found = cutting._Memory().buffers(count, shape, torch.float32)
    assert [tuple(each.shape) for each in found] == [shape] * count
    assert len({each.data_ptr() for each in found}) == (
        count if torch.zeros(shape).numel() else min(count, 1)
    )


@pytest.mark.parametrize(("variant", "dtype"), paired(variants(), ("bf16", "f32"), name=label))
def test_pieces_make_the_whole(variant, dtype, monkeypatch):
    monkeypatch.setattr(cutting, "_PIECE", 8)
    _agree(*_modes(example(variant, dtype, rows=5)))


@every_variant
def test_operands_that_are_left_out_have_their_defaults(variant):
    case = example(variant)
    required = case.function._step.direction.required
    named = zip(case.function._step.operands, case.required(), strict=True)
    _agree(*_modes(case, [each if name in required else None for name, each in named]))


@every_differentiable
def test_derivatives_are_those_of_differences(variant, default_mode):
    case = example(variant, "f64", rows=2, width=4)
    assert gradcheck(case.call, case.required())
    assert gradgradcheck(case.call, case.required())


def _refused_or_made(function, tensors):
    given = [each.detach().requires_grad_() for each in tensors]
    try:
        made = function(*given)
        return [made, *grad(made.sin().sum(), given, allow_unused=True)]
    except RuntimeError as refusal:
        return str(refusal)


@pytest.mark.parametrize("shape", ((0, 4, 3), (2, 4, 0), (2, 0, 3), (0, 0, 0)))
@pytest.mark.parametrize(("name", "attrs", "axis"), (
    ("rmsnorm", {}, 2), ("layernorm", {}, 2), ("softmax", {}, None), ("batchnorm", {}, 1),
    ("instancenorm", {}, 1), ("groupnorm", {"groups": 2}, 1), ("local_response_norm", {"n": 3}, None),
))  # fmt: skip
def test_empty_tensors_are_what_they_are_to_kernels(name, attrs, axis, shape):
    norm, tensors = nt.load(name, **attrs), [torch.randn(shape)]
    tensors += [torch.randn(shape[axis])] if axis is not None else []
    want = _refused_or_made(norm, tensors)
    with without_kernels():
        got = _refused_or_made(norm, tensors)
    if isinstance(want, str) or isinstance(got, str):
        assert got == want
    else:
        _agree(got, want)


def _compiled_as_eager(case, tolerance):
    """Compile a call without a graph break, compare it with the eager one, and see what its graphs call."""
    graphs, tensors = testing.AotEagerAndRecordGraphs(), case.required()
    wrt = [each for each in tensors if each.requires_grad]

    def outcome(function):
        made = function(*(each.clone() for each in tensors))
        slopes = [torch.linspace(-1, 2, each.numel()).view(each.shape).to(each.dtype) for each in made]
        return [*made, *grad(made, wrt, slopes, allow_unused=True)]

    want = outcome(case.call)
    torch._dynamo.reset()
    same(outcome(torch.compile(case.call, backend=graphs, fullgraph=True)), want, tolerance)
    seen = [*graphs.fw_graphs, *graphs.bw_graphs]
    targets = {str(node.target) for graph in seen for node in graph.graph.nodes if node.op == "call_function"}
    assert targets and not any("normgen" in target for target in targets)


@every_differentiable
def test_a_compiler_sees_operators_of_pytorch_alone(variant, default_mode):
    _compiled_as_eager(example(variant), 1e-4)


@pytest.mark.parametrize("name", ("rmsnorm", "layernorm", "softmax", "add_rmsnorm", "qk_norm"))
def test_a_compiler_sees_them_in_bfloat16(name, default_mode):
    (variant,) = (each for each in differentiable_variants() if each[0] == name)
    _compiled_as_eager(example(variant, "bf16"), 2**-5)


def test_shapes_and_numbers_may_change_from_call_to_call_of_a_compiled_norm(default_mode):
    norm, counter = nt.load("rmsnorm"), testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda x, w, eps: norm(x, w, eps=eps), backend=counter, fullgraph=True, dynamic=True
    )
    for rows, eps in ((6, 1e-5), (7, 1e-3), (9, 0.5)):
        x, w = drawn(rows, 8), drawn(8)
        same(compiled(x, w, eps), norm(x, w, eps=eps))
    assert counter.frame_count <= 2


def test_transforms_and_exports_are_what_they_are_to_kernels(default_mode):
    norm, x, w = nt.load("layernorm"), torch.randn(3, 4, 8), torch.randn(8)
    want = norm(x, w)
    same(torch.vmap(norm, in_dims=(0, None))(x, w), want)
    same(torch.compile(torch.vmap(norm, in_dims=(0, None)), backend="aot_eager")(x, w), want)
    same(torch.func.jvp(lambda x: norm(x, w), (x,), (torch.ones_like(x),))[1], torch.zeros_like(x), 1e-4)

    class Model(torch.nn.Module):
        def forward(self, x, w):
            return norm(x, w)

    exported = torch.export.export(Model(), (x, w))
    assert str(norm.ops.forward) in {str(node.target) for node in exported.graph.nodes}
    same(exported.module()(x, w), want)


def test_no_kernel_runs_on_a_cpu_unless_it_is_asked_for(monkeypatch):
    def refuse(*_):
        raise AssertionError("a kernel runs")

    norm, x = nt.load("rmsnorm"), drawn(5, 7)
    with without_kernels():
        monkeypatch.setattr(HostExecutor, "function", refuse)
        norm(x).sum().backward()
    with pytest.raises(AssertionError, match="a kernel runs"):
        norm(drawn(5, 9))
