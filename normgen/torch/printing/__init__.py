"""Programs as Python text that calls PyTorch's operators."""

from normgen.torch.printing.plan import Form, axes_of
from normgen.torch.printing.printer import Text, text_of

__all__ = ["Form", "Text", "axes_of", "text_of"]
