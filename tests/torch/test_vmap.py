"""`torch.vmap` of a norm is a stack of calls, forward and backward, of specs that are drawn: an axis takes
the batch only where nothing depends on how long it is."""

from __future__ import annotations

import os
import re

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from normgen.diagnostics import Source
from normgen.dsl import load_definition
from tests.axis_specs import axis_specs
from tests.strategies import COMPILED
from tests.torch.norms import nt, same, torch

EXAMPLES = int(os.environ.get("EXAMPLES", "25"))
LENGTHS = {"B": 2, "S": 3, "D": 4, "...": 2}
BATCH = 5  # as long as no axis
func = torch.func


@st.composite
def specs(draw):
    """Specs of axes of their own, `...` among them, whose results may depend on the lengths of some."""
    text = draw(axis_specs(2))
    for result in ("y", "v", "s0"):
        lengths = draw(st.sets(st.sampled_from("BSD"), max_size=2))
        head = re.search(rf"^(output|save) {result}\[.*?\] = |^let {result} = ", text, re.M)
        if head is not None:
            text = (
                text[: head.end()]
                + "".join(f"size[{axis}] * 0.3 * " for axis in lengths)
                + text[head.end() :]
            )
    return text.replace("B", "...") if draw(st.booleans()) else text


def _tensor(draw, tensor):
    """An operand of one sample, or of all with its dimension, or none, that is the batch."""
    shape = [LENGTHS[axis] for axis in tensor.order]
    dim = draw(st.none() | st.integers(0, len(shape)))
    shape = shape if dim is None else [*shape[:dim], BATCH, *shape[dim:]]
    return torch.randn(shape, dtype=torch.float64), dim


def _outputs(function, operands):
    made = function(*operands)
    return made if isinstance(made, tuple) else (made,)


@seed(0)
@settings(COMPILED, max_examples=EXAMPLES)
@given(specs(), st.data())
def test_a_batch_is_a_stack_of_calls(text, data):
    function, definition = nt.load(text), load_definition(Source("drawn.norm", text))
    drawn = [_tensor(data.draw, tensor) for tensor in definition.program.operands]
    tensors, dims = zip(*drawn, strict=True)
    if all(dim is None for dim in dims):
        tensors, dims = (torch.stack([tensors[0]] * BATCH).cos(), *tensors[1:]), (0, *dims[1:])
    wrt = tuple(range(len(tensors)))
    calls = {
        "outputs": lambda *given: tuple(_outputs(function, given)),
        "gradients": func.grad(lambda *given: sum(y.sin().sum() for y in _outputs(function, given)), wrt),
    }
    for call in calls.values():
        samples = [
            call(*(t if dim is None else t.select(dim, place) for t, dim in zip(tensors, dims, strict=True)))
            for place in range(BATCH)
        ]
        want = tuple(torch.stack(each) for each in zip(*samples, strict=True))
        same(func.vmap(call, dims)(*tensors), want, 1e-9)
