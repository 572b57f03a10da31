"""PyTorch's rules of autograd: what is computed of which cotangents, for whom, in which thread and mode."""

from __future__ import annotations

from functools import partial

import pytest

from tests.threads import at_once
from tests.torch.norms import batch, drawn, every_case, gradients, nt, rms, same, torch

grad = torch.autograd.grad
KNOWN = 3  # the call from which on all is in C++


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # PyTorch's own rms_norm has no fused kernel for it
@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_element_types_of_results_and_gradients_are_those_of_pytorch(case, dtype):
    x, *params = (tensor.detach() for tensor in case.draw())
    given = [x.to(dtype), *(params if dtype is torch.bfloat16 else [each.to(dtype) for each in params])]
    given = [each.requires_grad_() for each in given]
    found = []
    for norm in (case.mine, case.theirs):
        y = norm(*given)
        found.append([y, *grad(y.float().sum(), given)])
    assert [each.dtype for each in found[0]] == [each.dtype for each in found[1]]
    same(*found, tolerance=0.05 if dtype is torch.bfloat16 else 1e-5)


@every_case
def test_only_what_needs_a_gradient_is_computed(case, runs, in_python):
    tensors, norm = case.draw(), case.mine
    backward, x = norm._step.derive().step, tensors[0].detach()
    for index, name in enumerate(backward.results):
        given = [tensor.detach() for tensor in tensors]
        wanted = given[index].requires_grad_()
        norm(*given).sum().backward()
        assert runs[-1] == (backward.name, (name,)) and wanted.grad is not None
    with torch.no_grad():
        found = [norm(x), norm(*tensors)]
    for y in (norm(x), *found):
        assert y.grad_fn is None and runs.pop()[1] == ("y",), "no save is computed"


COTANGENTS = {
    "expanded": lambda shape: torch.randn(()).expand(shape),
    "transposed": lambda shape: torch.randn(shape[::-1]).permute(*reversed(range(len(shape)))),
    "strided": lambda shape: torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2],
    "reversed": lambda shape: torch.randn(shape).flip(-1),
}


@every_case
@pytest.mark.parametrize("kind", COTANGENTS)
def test_cotangents_may_lie_in_any_way(case, kind, load):
    tensors, norm = case.draw(), load(case.name, **case.attrs)
    cotangent = COTANGENTS[kind](tensors[0].shape)
    want = grad(case.theirs(*tensors), tensors, cotangent)
    for _ in range(KNOWN):
        same(grad(norm(*tensors), tensors, cotangent), want)


def test_undefined_cotangents_are_zero(load):
    norm, x, residual, w = load("add_rmsnorm"), drawn(3, 8), drawn(3, 8), drawn(8)
    for index in (0, 1) * KNOWN:
        made, h = norm(x, residual, w), x + residual
        got, want = (grad(each.sin().sum(), x)[0] for each in (made[index], (h, rms(h, w))[index]))
        same(got, want)
        assert made._fields == ("h", "y")


def test_a_graph_may_be_walked_again_if_it_is_retained(load):
    norm, x = load("rmsnorm"), drawn(3, 8)
    for _ in range(KNOWN):
        y = norm(x).sin().sum()
        walk = partial(grad, y, x, retain_graph=True)
        once = walk()
        assert all(torch.equal(*found, *once) for found in at_once(*[walk] * 4))
        same(grad(y, x), once)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.backward()


@every_case
def test_threads_go_forward_and_backward_at_once(case, load):
    norm = load(case.name, **case.attrs)

    def work(operands):
        want = gradients(case.theirs, operands)
        return lambda: [same(gradients(norm, operands), want) for _ in range(10)]

    at_once(*(work(case.draw()) for _ in range(4)))


def test_inference_mode(load):
    norm = load("rmsnorm")
    for _ in range(KNOWN):
        with torch.inference_mode():
            x = torch.randn(3, 8)
            y = norm(x)
        assert y.is_inference() and y.grad_fn is None
        same(y, rms(x))
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            norm(x, drawn(8))


def test_saved_tensors_that_changed_are_autograds_own_error(load):
    norm, x, w = load("rmsnorm"), drawn(3, 8), drawn(8)
    for _ in range(KNOWN):
        y = norm(x, w).sum()
        grad(y, (x, w), retain_graph=True)
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_states_are_written_and_autograd_knows(load):
    norm, x, weight = load("batchnorm"), torch.randn(4, 3, 5), drawn(3)
    mine, theirs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    for _ in range(KNOWN):
        version = mine[0]._version
        norm(x, weight, running_mean=mine[0], running_var=mine[1])
        same(norm(x, weight, None, *mine, momentum=0.2), batch(x, weight, None, *theirs))
        batch(x, weight, None, *theirs, momentum=0.2)
        same(mine, theirs)
        assert mine[0]._version == version + 2
    y = norm(x, weight, None, *mine).sum()
    mine[0].add_(1)  # which the backward does not read
    y.backward()
    with pytest.raises(RuntimeError, match="is a state of batchnorm and cannot require grad"):
        norm(x, weight, None, mine[0].requires_grad_(), mine[1])


def test_saved_tensors_may_be_kept_elsewhere(load):
    norm, x, w = load("rmsnorm"), drawn(3, 8), drawn(8)
    want = gradients(rms, (x, w))
    for _ in range(KNOWN):
        packed = []

        def pack(tensor, packed=packed):
            packed.append(tuple(tensor.shape))
            return tensor.detach().numpy().copy()

        with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
            y = norm(x, w)
        same(grad(y.sin().sum(), (x, w)), want)
        assert packed == [(3, 8), (8,), (3,)]
        gradients(norm, (x, w))


def test_compiled_autograd_follows_a_recorded_norm(load):
    enable = pytest.importorskip("torch._dynamo.compiled_autograd")._enable
    norm, operands = load("rmsnorm"), [drawn(3, 8), drawn(8)]
    want = gradients(rms, operands)
    for _ in range(KNOWN):
        same(gradients(norm, operands), want)
    with enable(torch.compile(backend="aot_eager", fullgraph=True)):
        same(gradients(norm, operands), want)
        for eps in (0.5, 2.0, 0.5):  # which is no tensor, and yet part of what is traced
            same(*(gradients(partial(each, eps=eps), operands) for each in (norm, rms)))


@pytest.mark.parametrize(("name", "theirs"), (("rmsnorm", rms), ("softmax", lambda x: x.softmax(-1))))
def test_second_derivatives_and_those_by_cotangents(name, theirs, load):
    norm, operands = load(name), (drawn(3, 8), drawn(8))[: 1 + (name == "rmsnorm")]
    for _ in range(KNOWN):
        found, dy = [], drawn(3, 8)
        for each in (norm, theirs):
            first = grad(each(*operands), operands, dy, create_graph=True)
            found.append(grad(sum(g.sin().sum() for g in first), (*operands, dy)))
        same(*found, tolerance=1e-4)


@every_case
def test_empty_batches_have_empty_results_and_gradients_of_zero(case):
    x, *params = case.draw()
    empty = x.detach()[:0].requires_grad_()
    y = case.mine(empty, *params)
    gradient, *others = grad(y.sum(), (empty, *params))
    assert y.shape == gradient.shape == empty.shape and not any(each.any() for each in others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_without_elements_have_no_statistics(dtype):
    with pytest.raises(RuntimeError, match="D is 0, but the norm reduces over"):
        nt.load("rmsnorm")(torch.empty(3, 0, dtype=dtype))
    assert nt.load("softmax")(torch.empty(0, 0, dtype=dtype)).shape == (0, 0)
