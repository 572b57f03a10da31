"""The specs that only modules have: checked as bundled ones are."""

from __future__ import annotations

import pytest

from normgen.diagnostics import Source
from normgen.verify.events import Row
from normgen.verify.run import Options, run

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgen.torch")
texts = pytest.importorskip("normgen.torch.nn.texts")

TEXTS = {name: text for name, text in vars(texts).items() if name.isupper()}
every_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


def _operands(text):
    """A small call in float64."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    if "running_mean" not in text:
        return [x]
    w, b, mean = (torch.randn(4, dtype=torch.float64, requires_grad=each) for each in (True, True, False))
    return [x, w, b, mean, mean.exp()]


@every_text
def test_kernels_pass_a_quick_check(text):
    events = run(Source("text.norm", text), Options(executors=("host",), quick=True))
    rows = [event for event in events if isinstance(event, Row)]
    assert {row.direction for row in rows} >= {"forward", "backward"}
    assert not [row for row in rows if not row.ok]


@every_text
def test_operators_pass_opcheck(text):
    function, operands = nt.load(text), _operands(text)
    attrs = [attr.default for attr in function.norm.package.attrs]
    wanted = [True] * len(function.with_saved(*_operands(text)))
    torch.library.opcheck(function.ops.forward, (*operands, *attrs, wanted))


@every_text
def test_gradients_agree_with_differences(text):
    function = nt.load(text)

    def call(*given):
        states = [each.clone() for each in _operands(text)[3:]]
        return function(*given, *states)

    given = _operands(text)[:3]
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)
