"""Blocks of convolutions, norms and activations, as models are written, whose norms are joined with these."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Modules that blocks are made of, of 4 channels."""

    def __init__(self, activation=None):
        super().__init__()
        self.conv, self.conv2, self.shortcut = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.norm, self.norm2 = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        self.act = nn.ReLU(inplace=True) if activation is None else activation
        self.downsample = None

    def extra_repr(self):
        return type(self).__name__


class Basic(Block):
    """As in torchvision."""

    def forward(self, x):
        identity = x
        out = self.conv(x)
        out = self.norm2(out)
        out = self.act(out)
        out = self.conv2(out)
        out = self.norm(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        out = self.act(out)
        return out


class Nested(Block):
    def forward(self, x):
        x = self.conv2(F.silu(self.norm2(x)))
        return self.conv(self.act(self.norm(self.conv(x))))


class Summed(Block):
    """Sums as expressions, and an activation that changes its argument."""

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)) + self.shortcut(x), inplace=True)
        return torch.sigmoid(y + self.norm2(self.conv(y)))


class Returned(Block):
    def forward(self, x):
        x = self.conv(x)
        x = self.norm(x)
        return F.leaky_relu(x, 0.2, inplace=True)


class Branched(Block):
    """As in diffusers: the norm stands in branches, and what follows behind them."""

    mode = "default"

    def forward(self, x, scale=None):
        if self.mode == "default":
            if scale is not None:
                x = x + scale
            x = self.norm2(x)
        elif self.mode == "scale":
            x = self.norm2(x)
            x = x * 2 + 1
        else:
            x = self.norm(x)
        x = self.act(x)
        return self.conv(x)


class Scaled(Branched):
    mode = "scale"


class Otherwise(Branched):
    mode = "otherwise"


class Named(Block):
    """Names of their own, which nothing reads later."""

    def forward(self, x):
        normed: torch.Tensor = self.norm(x)
        total = x + normed
        done = self.act(total)
        for _ in range(2):
            done = self.norm2(done)
            done = F.gelu(done, approximate="tanh")
        return done


class Called(Block):
    """In methods that forward calls."""

    def forward(self, x):
        return self.conv(self.features(x))

    def features(self, x):
        return self.act(self.norm(self.deeper(x)))

    def deeper(self, x):
        x = self.norm2(x)
        x = F.hardswish(x)
        return x


class Addressed(Block):
    """A module that its methods call otherwise than `self`, each in its own way."""

    def forward(module, x):
        return module.conv(module.features(x))

    def features(m, x):
        out = m.norm(m.conv(x))
        out += m.shortcut(x)
        return m.act(out)


def sequential():
    return nn.Sequential(
        nn.Conv2d(4, 4, 1),
        nn.BatchNorm2d(4),
        nn.ReLU6(True),
        nn.GroupNorm(2, 4),
        nn.GELU(),
        nn.BatchNorm2d(4),
    )


# Each with what the report says of it, and how many calls are joined in one of its own.
JOINED = {
    "basic": (Basic, "groupnorm and relu (norm2); batchnorm, sum and relu (norm)", 2),
    "nested": (Nested, "groupnorm and silu (norm2); batchnorm and relu (norm)", 2),
    "summed": (Summed, "batchnorm, sum and relu (norm); groupnorm, sum and sigmoid (norm2)", 2),
    "returned": (Returned, "batchnorm and leaky_relu (norm)", 1),
    "branched": (Branched, "groupnorm and relu (norm2); batchnorm and relu (norm)", 1),
    "scaled": (Scaled, "groupnorm and relu (norm2); batchnorm and relu (norm)", 0),
    "otherwise": (Otherwise, "groupnorm and relu (norm2); batchnorm and relu (norm)", 1),
    "named": (Named, "batchnorm, sum and relu (norm); groupnorm and gelu_tanh (norm2)", 3),
    "called": (Called, "batchnorm and relu (norm); groupnorm and hardswish (norm2)", 2),
    "addressed": (Addressed, "batchnorm, sum and relu (norm)", 1),
    "sequential": (sequential, "batchnorm and relu6 (1); groupnorm and gelu (3)", 2),
}
