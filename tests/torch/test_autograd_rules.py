"""PyTorch's rules of autograd: what is computed of which cotangents, for whom, in which thread and mode."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from normgen.torch.steps import Step
from tests.torch.norms import every_case, functional, nt, same, torch


@pytest.fixture
def runs(monkeypatch):
    """The steps that run, each with what is asked of it."""
    noted = []
    run = Step.run

    def note(self, tensors, numbers, wanted):
        noted.append((self.name, wanted))
        return run(self, tensors, numbers, wanted)

    monkeypatch.setattr(Step, "run", note)
    return noted


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
        found.append([y, *torch.autograd.grad(y.float().sum(), given)])
    assert [each.dtype for each in found[0]] == [each.dtype for each in found[1]]
    for mine, theirs in zip(*found, strict=True):
        same(mine, theirs, 0.05 if dtype is torch.bfloat16 else 1e-5)


@every_case
def test_only_what_needs_a_gradient_is_computed(case, runs):
    tensors = case.draw()
    backward = case.mine._step.derive().step
    for index, name in enumerate(backward.results):
        given = [tensor.detach() for tensor in tensors]
        wanted = given[index].requires_grad_()
        runs.clear()
        case.mine(*given).sum().backward()
        assert runs[-1] == (backward.name, (name,))
        assert wanted.grad is not None


def test_nothing_is_recorded_where_nothing_requires_a_gradient(runs):
    norm = nt.load("rmsnorm")
    x, w = torch.randn(3, 8), torch.rand(8)
    assert norm(x, w).grad_fn is None
    assert runs[-1] == ("rmsnorm_forward", ("y",)), "no save is computed"
    with torch.no_grad():
        assert norm(x.requires_grad_(), w).grad_fn is None
    assert runs[-1] == ("rmsnorm_forward", ("y",))
    norm(x, w)
    assert runs[-1] == ("rmsnorm_forward", ("y", "rstd"))


@every_case
@pytest.mark.parametrize("kind", ["expanded", "transposed", "strided", "reversed"])
def test_cotangents_may_lie_in_any_way(case, kind):
    tensors = case.draw()
    x = tensors[0]
    cotangent = {
        "expanded": lambda: torch.randn(()).expand(x.shape),
        "transposed": lambda: torch.randn(x.shape[::-1]).permute(*reversed(range(x.ndim))),
        "strided": lambda: torch.randn(*x.shape[:-1], 2 * x.shape[-1])[..., ::2],
        "reversed": lambda: torch.randn(x.shape).flip(-1),
    }[kind]()
    for mine, theirs in zip(
        torch.autograd.grad(case.mine(*tensors), tensors, cotangent),
        torch.autograd.grad(case.theirs(*tensors), tensors, cotangent),
        strict=True,
    ):
        same(mine, theirs)


def test_undefined_cotangents_are_zero():
    norm = nt.load("add_rmsnorm")
    x, residual = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    for index in range(2):
        made = norm(x, residual)
        h = x + residual
        wanted = (h, functional.rms_norm(h, (8,), eps=1e-6))[index]
        got, want = (torch.autograd.grad(each.sin().sum(), x)[0] for each in (made[index], wanted))
        same(got, want)


def test_a_graph_may_be_walked_again_if_it_is_retained():
    x = torch.randn(3, 8, requires_grad=True)
    y = nt.load("rmsnorm")(x).sin().sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    same(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


@every_case
def test_threads_go_forward_and_backward_at_once(case):
    tensors = case.draw()
    want = torch.autograd.grad(case.theirs(*tensors).sin().sum(), tensors)
    barrier = threading.Barrier(4)

    def work(_):
        barrier.wait(timeout=60)
        return torch.autograd.grad(case.mine(*tensors).sin().sum(), tensors)

    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(work, range(4)):
            for mine, theirs in zip(got, want, strict=True):
                same(mine, theirs)


def test_threads_walk_one_graph():
    x = torch.randn(3, 8, requires_grad=True)
    y = nt.load("rmsnorm")(x).sin().sum()
    (want,) = torch.autograd.grad(y, x, retain_graph=True)
    with ThreadPoolExecutor(4) as pool:
        for (got,) in pool.map(lambda _: torch.autograd.grad(y, x, retain_graph=True), range(8)):
            assert torch.equal(got, want)


def test_inference_mode():
    norm = nt.load("rmsnorm")
    with torch.inference_mode():
        x = torch.randn(3, 8)
        y = norm(x)
    assert y.is_inference()
    same(y, functional.rms_norm(x, (8,), eps=1e-6))
    weight = torch.rand(8, requires_grad=True)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        norm(x, weight)


def test_a_state_that_changed_after_a_call_in_training_does_not_matter_and_in_evaluation_it_does():
    x, mean, var = torch.randn(4, 3, requires_grad=True), torch.zeros(3), torch.ones(3)
    y = nt.load("batchnorm")(x, running_mean=mean, running_var=var)
    mean.add_(1)
    y.sum().backward()
    y = nt.load("batchnorm", training=False)(x * 1, running_mean=mean, running_var=var)
    theirs = functional.batch_norm(x, mean, var)
    same(y, theirs)


@every_case
def test_empty_batches_have_empty_results_and_gradients_of_zero(case):
    tensors = case.draw()
    x = tensors[0].detach()[:0].requires_grad_()
    y = case.mine(x, *tensors[1:])
    assert y.shape == x.shape
    gradient, *others = torch.autograd.grad(y.sum(), (x, *tensors[1:]))
    assert gradient.shape == x.shape and not any(each.any() for each in others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_without_elements_have_no_statistics(dtype):
    with pytest.raises(RuntimeError, match="D is 0: nothing to reduce over"):
        nt.load("rmsnorm")(torch.empty(3, 0, dtype=dtype))
    assert nt.load("softmax")(torch.empty(0, 0, dtype=dtype)).shape == (0, 0)


def test_several_outputs_are_a_named_tuple_and_saves_are_asked_for():
    norm, x = nt.load("add_rmsnorm"), torch.randn(3, 8)
    assert norm(x, x)._fields == ("h", "y")
    assert norm.with_saved(x, x)._fields == ("h", "y", "rstd")
