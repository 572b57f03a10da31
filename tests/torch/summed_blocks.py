"""Forwards that add and then normalize, as people write them, as texts.

`self` stands for the module. Blocks have the norms `n1` and `n2`, and the layers `attn` and `mlp`.
"""

from __future__ import annotations

import linecache
import textwrap
from itertools import count

from tests.torch.norms import torch

nn = torch.nn
_FILES = count()


class Block(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.n1, self.n2, self.attn, self.mlp = norm(), norm(), nn.Linear(32, 32), nn.Linear(32, 32)
        self.drop, self.gain = nn.Dropout(0.0), nn.Parameter(torch.rand(32))
        for each in (self.n1, self.n2):
            for parameter in each.parameters():
                nn.init.uniform_(parameter, 0.5, 1.5)

    def pair(self, x, scale=1.0):
        return scale * self.attn(x), None


def block(text, own="self"):
    """A class of blocks with a forward, in which the module has a name."""
    lines = textwrap.indent(textwrap.dedent(text), "    ").replace("self", own)
    source, scope, file = f"def forward({own}, x):\n{lines}\n", {"torch": torch}, f"<forward {next(_FILES)}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    exec(compile(source, file, "exec"), scope)
    return type("Summed", (Block,), {"forward": scope["forward"]})


# Each with the norms that are fused, and how many calls of one kernel a call of the block makes.
FUSED = {
    "sum that is used": ("h = x + self.attn(x); y = self.n1(h); return h + self.mlp(y)", "n1", 1),
    "sum that is not": ("h = x + self.attn(x); y = self.n1(h); return self.mlp(y)", "n1", 1),
    "other order": ("x = self.attn(x) + x; y = self.n1(x); return x + self.mlp(y)", "n1", 1),
    "one name": ("x = x + self.attn(x); x = self.n1(x); return self.mlp(x)", "n1", 1),
    "torch.add": ("h = torch.add(x, self.attn(x)); return h * self.n1(h)", "n1", 1),
    "annotated": ("h: torch.Tensor = x + self.attn(x); y: torch.Tensor = self.n1(h); return y + h", "n1", 1),
    "three terms": ("x = x + self.attn(x) + self.mlp(x); return self.n1(x) + x", "n1", 1),
    "two norms": ("x = x + self.attn(x); return self.n1(x) * self.n2(x)", "n1", 1),
    "one norm twice": ("x = x + self.attn(x); y = self.n1(x); return y * self.n1(x)", "n1", 1),
    "sum as argument": ("x = self.n1(x + self.attn(x)); return self.n2(self.mlp(x) + x)", "n1, n2", 2),
    "twice a block": (
        """
        x = x + self.attn(self.n1(x))
        x = x + self.mlp(self.n2(x))
        x = x + self.gain * self.drop(self.attn(self.n1(x)))
        return x + self.mlp(self.n2(x))
        """,
        "n2, n1",
        3,
    ),
    "several values": (
        "x = x + self.attn(x); y, _ = self.pair(self.n1(x), scale=2.0); return x + self.mlp(y)",
        "n1",
        1,
    ),
    "by keyword": ("x = x + self.attn(x); y, _ = self.pair(scale=2.0, x=self.n1(x)); return x + y", "n1", 1),
    "llama": (
        """
        residual = x
        x = self.n1(x)
        x, _ = self.pair(x)
        x = residual + x
        residual = x
        x = self.n2(x)
        x = self.mlp(x)
        x = residual + x
        residual = x
        x = self.n1(x)
        return residual + x
        """,
        "n2, n1",
        2,
    ),
    "copies": (
        "h = x + self.attn(x); r = h; h = x; s = r; y = self.n1(s); return y + h + r + s",
        "n1",
        1,
    ),
    "within a branch, a loop and a with": (
        """
        if x.dim():
            for _ in range(2):
                with torch.enable_grad():
                    x = x + self.attn(x)
                    x = self.n1(x)
        return x
        """,
        "n1",
        2,
    ),
}

BETWEEN = "`{}` stands between it and the sum"
BRANCH = "a branch, a loop or a `with` stands between it and the sum"
EARLIER = "its statement computes something else first"
UNREADABLE = "the source of the block's forward is not available, or does not say all that it does"

# Each with what the report says of the norm n1.
APART = {
    "in place": (
        "x = 2 * x; x += self.attn(x); return self.n1(x)",
        "+= changes a tensor that others may hold",
    ),
    "changed between": (
        "h = x + self.attn(x); h.mul_(2); return self.n1(h)",
        BETWEEN.format("h.mul_(2)"),
    ),
    "called between": (
        "h = x + self.attn(x); y = self.mlp(h); return y + self.n1(h)",
        BETWEEN.format("y = self.mlp(h)"),
    ),
    "a long statement between": (
        "h = x + self.attn(x); a_name_of_some_length = self.mlp(self.mlp(self.attn(h))); return self.n1(h)",
        BETWEEN.format("a_name_of_some_length = self.mlp(self.mlp(self.att..."),
    ),
    "kept between": (
        "h = x + self.attn(x); self.kept = h; return self.n1(h)",
        BETWEEN.format("self.kept = h"),
    ),
    "dropout between": ("h = x + self.attn(x); h = self.drop(h); return self.n1(h)", None),
    "dropout of the sum": ("return self.n1(self.drop(x + self.attn(x)))", None),
    "unpacked": ("h = torch.add(*(x, x)) + 0 * x; h = torch.add(*(x,), h); return self.n1(h)", None),
    "difference": ("return self.n1(x - self.attn(x))", None),
    "another value": ("h = x + self.attn(x); h = x; return self.n1(h)", None),
    "several targets": ("h, y = x + self.attn(x), x; return self.n1(h)", None),
    "branch": ("h = x + self.attn(x)\nif h.dim():\n    h = self.n1(h)\nreturn h", BRANCH),
    "sum in a branch": ("if x.dim():\n    x = x + self.attn(x)\nreturn self.n1(x)", BRANCH),
    "loop": ("h = x + self.attn(x)\nfor _ in range(2):\n    h = self.n1(h)\nreturn h", BRANCH),
    "with": ("h = x + self.attn(x)\nwith torch.no_grad():\n    y = self.n1(h)\nreturn y * x", BRANCH),
    "choice": ("h = x + self.attn(x); y = self.n1(h) if h.dim() else h; return y", EARLIER),
    "or": ("h = x + self.attn(x); y = h.dim() and self.n1(h); return y", EARLIER),
    "after a call": ("h = x + self.attn(x); return self.mlp(h) + self.n1(h)", EARLIER),
    "after a product": ("h = x + self.attn(x); return h * 2 + self.n1(h)", EARLIER),
    "in an index": ("h = [x + self.attn(x)]; y = h[0]; return self.n1(y)", None),
    "several times": ("h = x + self.attn(x); return sum([self.n1(h) for _ in range(2)])", EARLIER),
    "names at run time": ("h = x + self.attn(x); y = self.n1(h); return y * len(locals())", UNREADABLE),
    "another module": ("self = self; h = x + self.attn(x); return self.n1(h)", None),
}
