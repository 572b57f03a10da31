"""Norms of whole models: replaced by normgen's, and put back.

`patch.py` asks for each module which of these ways is the first to fit it, and `dropins.py` makes the class
that the module is given:

- `drop_in`: a module of PyTorch, or a subclass that keeps its methods, gets those of its namesake in `nn/`.
- `lookalike`: a module that computes what a bundled spec does gets the forward of that. `lookalikes.py` tries
  the specs, `probes.py` runs both on the same numbers, `constants.py` finds an eps that is no attribute.
- `within`: the methods of a subclass that call `super()` find those of the drop-in there.
- `redirecting`: a forward that calls norms of `torch.nn.functional` calls those of `functional.py` instead.
  `rewriting.py` writes it anew from its source.

With `fuse`, two more change the blocks that norms are in. `fusing.py` joins residual adds and the RMSNorms
behind them. `joining.py` joins batch and group norms and the activations behind them: `joints.py` finds both
in the source of a block (`sources.py` and `syntax.py` read it), `activations.py` and `joined.py` have the
specs, and `holding.py` is what the block calls.
"""

from __future__ import annotations

from normgen.torch.patching.patch import patch, unpatch
from normgen.torch.patching.report import Left, Replaced, Report

__all__ = ["Left", "Replaced", "Report", "patch", "unpatch"]
