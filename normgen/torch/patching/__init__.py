"""Norms of whole models: replaced by normgen's, and put back.

`patch.py` asks for each module which of these ways is the first to fit it, and `dropins.py` makes the class
that the module is given:

- `drop_in`: a module of PyTorch, or a subclass that keeps its methods, gets those of its namesake in `nn/`.
- `lookalike`: a module that computes what a bundled spec does gets the forward of that. `selection.py` says
  which modules may, `effects.py` and `watching.py` which of these are not run, `lookalikes.py` tries the
  specs, and `probes.py` runs both on the same numbers.
- `within`: the methods of a subclass that call `super()` find those of the drop-in there.
- `redirecting`: a forward that calls norms of `torch.nn.functional` calls those of `functional.py` instead.
  `rewriting.py` rewrites its source.

With `fuse`, two more functions change the blocks that contain norms. `fusing.py` joins a residual add with
the RMSNorm or LayerNorm after it; `rewriting.py` finds both. `joining.py` joins a batch or group norm with
the activation after it: `joints.py` finds both, `activations.py` and `joined.py` have the specs, and the
block calls `holding.py`. Both find what they join in the source of a block's methods, which `sources.py` and
`syntax.py` read, and compile the changed source. A graph of `torch.fx` is no substitute: it keeps the branch
that a forward takes while it is traced, and tracing fails on blocks that pass on `**kwargs`, such as the
decoder layers of transformers.
"""

from __future__ import annotations

from normgen.torch.patching.patch import patch, unpatch
from normgen.torch.patching.report import Left, Replaced, Report

__all__ = ["Left", "Replaced", "Report", "patch", "unpatch"]
