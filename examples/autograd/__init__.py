"""Training with norms without a framework: a small tape over NumPy and PyCUDA arrays.

    from examples.autograd import Tensor, apply

    w = Tensor(np.ones(4096, np.float32), requires_grad=True)
    loss = (apply(rms, x, w, eps=1e-5).y * target).sum()
    loss.backward()
    w.data -= 0.1 * w.grad

It needs only the runtime: it takes norms of generated modules as well as loaded norms.
"""

from .norms import apply
from .tape import no_grad
from .tensor import Tensor

__all__ = ["Tensor", "apply", "no_grad"]
