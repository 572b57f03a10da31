"""Norms in programs that PyTorch compiles ahead of time, into a library that runs without Python."""

from __future__ import annotations

import pytest

from tests.torch.norms import nt, same, torch

package = pytest.importorskip("torch._inductor").aoti_compile_and_package


class Several(torch.nn.Module):
    """Norms whose saves nobody wants, with one output or several, with states and with none."""

    def __init__(self):
        super().__init__()
        self.last = nt.nn.LayerNorm(6)
        self.batch = nt.nn.BatchNorm1d(6)

    def forward(self, x, residual, w):
        y, h = nt.load("add_rmsnorm")(x, residual, w)
        return nt.load("softmax")(self.last(h)), self.batch(y)


def test_what_aotinductor_compiles_gives_what_the_module_gives():
    module, operands = Several(), (torch.randn(4, 6), torch.randn(4, 6), torch.rand(6))
    nt.load("add_rmsnorm"), nt.load("softmax")
    program = torch.export.export(module, operands)
    compiled = torch._inductor.aoti_load_package(package(program))
    same(list(compiled(*operands)), list(module(*operands)))
