"""What surrounds a norm in training: checkpoints, tensors without data, copies."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest

from tests.torch.norms import batch, drawn, every_case, gradients, nt, same, torch

checkpointing = pytest.importorskip("torch.utils.checkpoint")
FakeTensorMode = pytest.importorskip("torch._subclasses").FakeTensorMode
Policy = checkpointing.CheckpointPolicy


@pytest.mark.parametrize("reentrant", (True, False))
@every_case
def test_a_checkpointed_norm_has_its_gradients(case, reentrant, runs, in_python):
    norm, operands = case.mine, case.draw()

    def block(*operands):
        return norm(*operands).cos()

    want = gradients(block, operands)
    runs.clear()
    y = checkpointing.checkpoint(block, *operands, use_reentrant=reentrant)
    y.sin().sum().backward()
    same([each.grad for each in operands], want)
    assert [name.rpartition("_")[2] for name, _ in runs] == ["forward", "forward", "backward"]


@pytest.mark.parametrize("compiled", (False, True), ids=("eager", "compiled"))
@pytest.mark.parametrize("policy", (Policy.MUST_SAVE, Policy.MUST_RECOMPUTE), ids=("save", "recompute"))
def test_policies_name_the_operators_of_a_norm(policy, compiled, in_python, runs):
    norm, operands = nt.load("rmsnorm"), [drawn(3, 8), drawn(8)]

    def choose(context, operator, *arguments, **named):
        return policy if operator is norm.ops.forward else Policy.MUST_RECOMPUTE

    def block(x, w):
        return norm(x.sin(), w).cos()

    want = gradients(block, operands)
    contexts = partial(checkpointing.create_selective_checkpoint_contexts, choose)
    checkpointed = partial(checkpointing.checkpoint, block, use_reentrant=False, context_fn=contexts)
    if compiled:
        torch._dynamo.reset()  # it would not notice another policy
        checkpointed = torch.compile(checkpointed, fullgraph=True, backend="aot_eager")
    runs.clear()
    same(gradients(checkpointed, operands), want)
    names = [name for name, _ in runs]
    assert names.count("rmsnorm_forward") == (1 if policy is Policy.MUST_SAVE else 2)


@every_case
def test_tensors_without_data_have_the_shapes_of_others(case):
    norm, operands = case.mine, case.draw()
    got = norm(*[operand.detach().to("meta").requires_grad_() for operand in operands])
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(operand) for operand in operands]
        imagined = norm(*fakes)
        found = torch.autograd.grad(imagined.sum(), fakes)
    want = norm(*operands)
    for each in (got, imagined):
        assert (each.shape, each.stride(), each.dtype) == (want.shape, want.stride(), want.dtype)
    assert got.is_meta and got.requires_grad
    assert [each.shape for each in found] == [each.shape for each in operands]


def test_a_copy_is_the_function_itself():
    for norm in (nt.load("rmsnorm"), nt.load("groupnorm", groups=2)):
        assert copy.copy(norm) is copy.deepcopy(norm) is pickle.loads(pickle.dumps(norm)) is norm


def test_states_are_updated_in_inference_mode():
    norm, x = nt.load("batchnorm"), torch.randn(4, 6, 5)
    outside, want = ([torch.zeros(6), torch.ones(6)] for _ in range(2))
    y = batch(x, None, None, *want)
    with torch.inference_mode():
        for states in (outside, [torch.zeros(6), torch.ones(6)]):
            got = norm(x, None, None, *states)
            same((got, *states), (y, *want))
    assert got.is_inference() and outside[0]._version == 1
