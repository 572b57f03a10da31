"""Training with norms where there is no framework: a small tape over NumPy and PyCUDA arrays.

    from normgen.autograd import Tensor, apply

    w = Tensor(np.ones(4096, np.float32), requires_grad=True)
    loss = (apply(rms, x, w, eps=1e-5).y * target).sum()
    loss.backward()
    w.data -= 0.1 * w.grad

It stands on the runtime alone: norms of generated modules go as well as loaded ones.
"""

from normgen.autograd.norms import apply
from normgen.autograd.tape import no_grad
from normgen.autograd.tensor import Tensor

__all__ = ["Tensor", "apply", "no_grad"]
