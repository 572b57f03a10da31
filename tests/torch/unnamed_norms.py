"""Layers of other libraries whose classes are not called norms: some are norms, and some only have the
parameters of one."""

from __future__ import annotations

from tests.torch.norms import functional, torch

nn = torch.nn
SIZE = 12
KEPT: list[object] = []


class Gained(nn.Module):
    """What all below have, unless they say otherwise."""

    def __init__(self, size=SIZE, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        if bias:
            self.bias = nn.Parameter(torch.randn(size))

    def rms(self, x, eps=1e-6):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class MyRMS(Gained):
    """As in Llama. The number of its layer is one that its forward does not read."""

    def __init__(self, size=SIZE, layer=0):
        super().__init__(size)
        self.variance_epsilon, self.layer = 1e-6, layer

    def forward(self, x):
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * y.to(x.dtype)


class LN(Gained):
    def __init__(self, size=SIZE):
        super().__init__(size, bias=True)

    def forward(self, x):
        return functional.layer_norm(x, (x.shape[-1],), self.weight, self.bias, 1e-5)


class T5Scale(Gained):
    """As in T5."""

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class GemmaGain(Gained):
    def forward(self, x):
        return (self.rms(x.float()) * (1.0 + self.weight.float())).type_as(x)


class ByGroups(Gained):
    """A group norm written by hand."""

    def __init__(self, size=SIZE):
        super().__init__(size, bias=True)
        self.groups = 3

    def forward(self, x):
        y = x.reshape(x.shape[0], self.groups, -1)
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        shape = (1, -1, *[1] * (x.dim() - 2))
        return y.reshape(x.shape) * self.weight.reshape(shape) + self.bias.reshape(shape)


class ChannelsFirst(Gained):
    """As in ConvNeXt."""

    def __init__(self, size=SIZE):
        super().__init__(size, bias=True)

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(var + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Frozen(Gained):
    """A batch norm whose statistics stay, all of it buffers."""

    def __init__(self, size=SIZE):
        nn.Module.__init__(self)
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(size) + 0.5)

    def forward(self, x):
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        bias = self.bias - self.running_mean * scale
        return x * scale[None, :, None, None] + bias[None, :, None, None]


def _normalized(x, eps=1e-6):
    return x * (x.square().mean(-1, True) + eps).rsqrt()


class Helped(Gained):
    """By a function of its module, under a decorator of PyTorch."""

    @torch.autocast("cpu", enabled=False)
    def forward(self, x):
        return _normalized(x) * self.weight


class Ungained(nn.Module):
    """Without parameters, by a function of PyTorch."""

    def forward(self, x):
        return functional.layer_norm(x, x.shape[-1:])


class Activated(Gained):
    def __init__(self, size=SIZE):
        super().__init__(size)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(functional.rms_norm(x, self.weight.shape, self.weight, 1e-6))


class Functional(nn.Module):
    """A block with the parameters of two norms and others."""

    def __init__(self, size=SIZE):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.rand(size)) for _ in range(2))
        self.linear = nn.Linear(size, size)
        self.layer_norm = nn.Parameter(torch.rand(size))

    def forward(self, x):
        x = self.linear(functional.layer_norm(x, self.first.shape, self.first))
        return functional.rms_norm(x, self.second.shape, self.second, 1e-6) + self.layer_norm


class Scale(Gained):
    def forward(self, x):
        return x * self.weight


class Affine(Gained):
    def __init__(self, size=SIZE):
        super().__init__(size, bias=True)

    def forward(self, x):
        return x * self.weight + self.bias


class LearnedPosition(Gained):
    def forward(self, x):
        return x + self.weight


class LayerScale(nn.Module):
    def __init__(self, size=SIZE):
        super().__init__()
        self.gamma = nn.Parameter(1e-5 * torch.ones(size))

    def forward(self, x):
        return x.mul(self.gamma)


class Gate(Gained):
    def forward(self, x):
        return torch.sigmoid(self.weight) * x


class Projection(Gained):
    """A linear layer with one output."""

    def forward(self, x):
        return x @ self.weight


class Squashed(Gained):
    """Large inputs all give the same, as those of a norm."""

    def forward(self, x):
        return torch.tanh(x) * self.weight


class Sharpened(Gained):
    def forward(self, x):
        return torch.softmax(x * self.weight, -1)


class UnitLength(Gained):
    """By a sum and not by a mean."""

    def forward(self, x):
        return functional.normalize(x, dim=-1) * self.weight


class Bias(Gained):
    """A vector, and no input at all."""

    def forward(self):
        return self.weight


class GatedRMS(Gained):
    def forward(self, x, gate):
        return self.rms(x) * self.weight * functional.silu(gate)


class Dropped(Gained):
    def __init__(self, size=SIZE):
        super().__init__(size)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(self.rms(x) * self.weight)


class Prints(Gained):
    def forward(self, x):
        print("run")
        return self.rms(x) * self.weight


def _noted(x):
    with open("/dev/null", "w") as file:
        KEPT.append(file.name)
    return x


class Writes(Gained):
    """In a function that it calls."""

    def forward(self, x):
        return _noted(self.rms(x) * self.weight)


class Communicates(Gained):
    def forward(self, x):
        KEPT.append(torch.distributed.is_available())
        return self.rms(x) * self.weight


class Imports(Gained):
    def forward(self, x):
        import colorsys

        KEPT.append(colorsys)
        return self.rms(x) * self.weight


class Recorder:
    def __call__(self, x):
        KEPT.append(x)
        return x


class Records(Gained):
    """By what its class has."""

    record = Recorder()

    def forward(self, x):
        return self.record(self.rms(x) * self.weight)


class Hides(Gained):
    """In a method of what it derives from."""

    def rms(self, x, eps=1e-6):
        KEPT.append(x)
        return super().rms(x, eps)

    def forward(self, x):
        return self.rms(x) * self.weight


class Draws(Gained):
    def forward(self, x):
        return functional.dropout(x, 0.1, self.training) * self.weight


OTHER = "computes something that no bundled norm does"
ACTS = "is not probed, since it may have side effects: it uses "
IMAGES = {ByGroups: "groupnorm", ChannelsFirst: "layernorm2d", Frozen: "batchnorm"}
# What the report says of a module of each class: its spec, or why it is left.
FOUND = {
    MyRMS: "rmsnorm_llama",
    LN: "layernorm",
    T5Scale: "rmsnorm_llama",
    GemmaGain: "rmsnorm_zero_centred",
    Helped: "rmsnorm",
    Ungained: "layernorm",
    Activated: "rmsnorm",
    Functional: "layernorm and rmsnorm",
    **IMAGES,
}
LEFT = {
    **dict.fromkeys((Scale, Affine, LearnedPosition, LayerScale, Gate, Projection), OTHER),
    **dict.fromkeys((Squashed, Sharpened, UnitLength), OTHER),
    Bias: "fails on the small CPU inputs by which patch tells norms",
    GatedRMS: "its forward takes several inputs: x, gate",
    Dropped: "is not probed, since it holds other modules: drop",
    Prints: f"{ACTS}print",
    Writes: f"{ACTS}KEPT, open",
    Communicates: f"{ACTS}KEPT, distributed",
    Imports: f"{ACTS}KEPT, colorsys",
    Records: f"{ACTS}record",
    Hides: f"{ACTS}KEPT",
    Draws: "has side effects: it changes random numbers",
}
