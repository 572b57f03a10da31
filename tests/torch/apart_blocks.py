"""Blocks whose norms are not to be joined with the activations behind them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.torch.joined_blocks import Block


class ReadAgain(Block):
    """The norm's result is read after the activation."""

    def forward(self, x):
        y = self.norm(x)
        z = F.silu(y)
        return y + z


class ReadInALoop(Block):
    def forward(self, x):
        y = x
        for _ in range(2):
            z = 0 if y is x else y
            y = self.norm(x)
            w = F.silu(y)
        return z + w


class ReadByAFunction(Block):
    def forward(self, x):
        def read():
            return y

        y = self.norm(x)
        y = self.act(y)
        return read()


class ReadInAnotherBranch(Block):
    def forward(self, x):
        y = self.norm(x)
        if x.dim() == 4:
            z = y.mean()
        else:
            z = 0
        y = F.silu(y)
        return y + z


class ReadByASum(Block):
    def forward(self, x):
        y = self.norm(x)
        y = y + y * 2
        return self.act(y)


class ReadWhereItIsFetchedByName(Block):
    def forward(self, x):
        y = self.norm(x)
        y = F.silu(y)
        return y + len(locals()) * 0


class Guarded(Block):
    """An exception may come between."""

    def forward(self, x):
        try:
            x = self.norm(x)
            x = self.act(x)
        finally:
            x = x + 1
        return x


class LeftEarly(Block):
    """Its running statistics follow even where the activation is not reached."""

    def forward(self, x):
        x = self.norm(self.conv(x))
        if self.training:
            return x
        x = self.act(x)
        return x


class Changed(Block):
    """What the norm reads changes before the activation."""

    def forward(self, x):
        x = x.clone()
        y = self.norm(x)
        z = x.mul_(2)
        y += z
        return self.act(y)


class Shadowed(Block):
    """A function that only looks like an activation."""

    def forward(self, x):
        silu = torch.exp
        y = self.norm(x)
        return silu(y)


class Computed(Block):
    """With arguments that are not known before the call."""

    def forward(self, x):
        slope = 0.5 if self.training else 0.25
        return F.leaky_relu(self.norm(x), slope)


class OtherOperators(Block):
    def forward(self, x):
        return F.relu(self.norm(x) - x) + F.relu(self.norm2(x) * x)


class Unknown(Block):
    """An activation that no spec has, one of a class of its own, and a norm of its own."""

    class Mine(nn.ReLU):
        def forward(self, x):
            return super().forward(x) + 1

    class Norm(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x) * 2

    def __init__(self):
        super().__init__(nn.Softplus())
        self.mine, self.own = self.Mine(), self.Norm(4)

    def forward(self, x):
        return self.act(self.norm(x)) + self.mine(self.norm2(x)) + torch.relu(self.own(x))


def unlike_neighbours():
    return nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.GroupNorm(2, 4), nn.Softplus())


class Reversed(nn.Sequential):
    """A Sequential with a forward of its own."""

    def __init__(self):
        super().__init__(nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, x):
        for module in reversed(self):
            x = module(x)
        return x


APART = (
    ReadAgain,
    ReadInALoop,
    ReadByAFunction,
    ReadInAnotherBranch,
    ReadByASum,
    ReadWhereItIsFetchedByName,
    Guarded,
    LeftEarly,
    Shadowed,
    Computed,
    OtherOperators,
    Unknown,
    unlike_neighbours,
    Reversed,
)
