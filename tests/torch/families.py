"""Small models of eleven families, with norms as the libraries of each write them."""

from __future__ import annotations

from tests.torch.norms import functional, torch

nn = torch.nn
WIDTH, HEADS = 16, 2


class LlamaRMSNorm(nn.Module):
    def __init__(self, hidden_size=WIDTH, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class MyRMS(LlamaRMSNorm):
    """The same, as it is often copied."""


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.input_layernorm, self.post_attention_layernorm = LlamaRMSNorm(), LlamaRMSNorm()

    def forward(self, hidden_states):
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = residual + self.self_attn(hidden_states)
        residual = hidden_states
        return residual + self.mlp(self.post_attention_layernorm(hidden_states))


class GemmaRMSNorm(nn.Module):
    def __init__(self, dim=WIDTH, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size=WIDTH, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states


class T5LayerFF(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.layer_norm, self.dropout = T5LayerNorm(), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.wo(self.wi(self.layer_norm(x)).relu()))


class Qwen3Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.q_norm, self.k_norm = LlamaRMSNorm(WIDTH // HEADS), LlamaRMSNorm(WIDTH // HEADS)


class LayerScale(nn.Module):
    """Of ViT, as in timm."""

    def __init__(self, dim=WIDTH, init_values=1e-5, inplace=False):
        super().__init__()
        self.inplace = inplace
        self.gamma = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        return x.mul_(self.gamma) if self.inplace else x * self.gamma


class ViTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(WIDTH, 1e-6), nn.Linear(WIDTH, WIDTH), LayerScale()
        self.norm2, self.mlp, self.ls2 = nn.LayerNorm(WIDTH, 1e-6), nn.Linear(WIDTH, WIDTH), LayerScale()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))


class ConvNeXtLayerNorm(nn.Module):
    def __init__(self, normalized_shape=WIDTH, eps=1e-6, data_format="channels_last"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(normalized_shape))
        self.bias = nn.Parameter(torch.zeros(normalized_shape))
        self.eps, self.data_format = eps, data_format
        self.normalized_shape = (normalized_shape,)

    def forward(self, x):
        if self.data_format == "channels_last":
            return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNeXtBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH), ConvNeXtLayerNorm()
        self.pwconv1, self.act = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU()
        self.pwconv2, self.gamma = nn.Linear(4 * WIDTH, WIDTH), nn.Parameter(1e-6 * torch.ones(WIDTH))

    def forward(self, x):
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.pwconv2(self.act(self.pwconv1(y)))).permute(0, 3, 1, 2)


class GRN(nn.Module):
    """Global response normalization of ConvNeXt V2."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, 1, 1, WIDTH))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, WIDTH))

    def forward(self, x):
        length = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        return self.gamma * (x * length / (length.mean(-1, keepdim=True) + 1e-6)) + self.beta + x


class FrozenBatchNorm2d(nn.Module):
    """Of ResNets that detect, as in torchvision."""

    def __init__(self, num_features=WIDTH, eps=1e-5):
        super().__init__()
        self.eps = eps
        for name in ("weight", "running_var"):
            self.register_buffer(name, torch.ones(num_features))
        for name in ("bias", "running_mean"):
            self.register_buffer(name, torch.zeros(num_features))

    def forward(self, x):
        w = self.weight.reshape(1, -1, 1, 1)
        scale = w * (self.running_var.reshape(1, -1, 1, 1) + self.eps).rsqrt()
        bias = self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale
        return x * scale + bias


class Bottleneck(nn.Module):
    def __init__(self, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(WIDTH, WIDTH, 1), norm(WIDTH)
        self.conv2, self.bn2, self.relu = nn.Conv2d(WIDTH, WIDTH, 1), norm(WIDTH), nn.ReLU()


class GroupNorm32(nn.GroupNorm):
    """Of U-nets, as in guided diffusion."""

    def forward(self, x):
        return super().forward(x.float()).type(x.dtype)


class HandWrittenGN(nn.Module):
    def __init__(self, channels=WIDTH, groups=4):
        super().__init__()
        self.groups, self.eps = groups, 1e-5
        self.gamma, self.beta = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        n, c, h, w = x.shape
        x = x.view(n, self.groups, -1)
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        x = ((x - mean) / torch.sqrt(var + self.eps)).view(n, c, h, w)
        return x * self.gamma.view(1, -1, 1, 1) + self.beta.view(1, -1, 1, 1)


class UNetBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_layers = nn.Sequential(GroupNorm32(4, WIDTH), nn.SiLU(), nn.Conv2d(WIDTH, WIDTH, 3))
        self.norm, self.attention = nn.GroupNorm(4, WIDTH), nn.Conv2d(WIDTH, WIDTH, 1)


class BertLayerNorm(nn.Module):
    """With its epsilon inside of the square root, as in TensorFlow."""

    def __init__(self, hidden_size=WIDTH, eps=1e-12):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(hidden_size))
        self.beta = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.variance_epsilon)
        return self.gamma * x + self.beta


class BertOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, 1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden_states, input_tensor):
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + input_tensor)


class Conv1D(nn.Module):
    """Of GPT-2: a linear layer."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.empty(nx, nf)), nn.Parameter(torch.zeros(nf))


class LayerNorm(nn.Module):
    """Of GPT-2 too, as in nanoGPT."""

    def __init__(self, ndim=WIDTH, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return functional.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class GPT2Block(nn.Module):
    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.ln_1, self.c_attn = norm(WIDTH), Conv1D(3 * WIDTH, WIDTH)
        self.ln_2, self.c_fc = norm(WIDTH), Conv1D(4 * WIDTH, WIDTH)


class DiTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.attn = nn.Linear(WIDTH, WIDTH)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 2 * WIDTH))

    def forward(self, x, c):
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        return x + self.attn(self.norm1(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1))


class AdaLayerNormContinuous(nn.Module):
    def __init__(self):
        super().__init__()
        self.silu, self.linear = nn.SiLU(), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, c):
        scale, shift = self.linear(self.silu(c)).chunk(2, dim=1)
        return functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale)[:, None] + shift[:, None]


FAMILIES = {
    "Llama": lambda: nn.Sequential(LlamaBlock(), LlamaBlock(), LlamaRMSNorm(), MyRMS()),
    "Gemma": lambda: nn.Sequential(GemmaRMSNorm(), nn.Linear(WIDTH, WIDTH), GemmaRMSNorm()),
    "T5": lambda: nn.Sequential(T5LayerFF(), T5LayerFF(), T5LayerNorm()),
    "Qwen3": lambda: nn.Sequential(Qwen3Attention(), Qwen3Attention(), LlamaRMSNorm()),
    "ViT": lambda: nn.Sequential(ViTBlock(), ViTBlock(), nn.LayerNorm(WIDTH)),
    "ConvNeXt": lambda: nn.Sequential(
        ConvNeXtLayerNorm(data_format="channels_first"), ConvNeXtBlock(), ConvNeXtBlock(), GRN()
    ),
    "ResNet": lambda: nn.Sequential(Bottleneck(), Bottleneck(), Bottleneck(FrozenBatchNorm2d)),
    "U-Net": lambda: nn.Sequential(UNetBlock(), UNetBlock(), HandWrittenGN()),
    "BERT": lambda: nn.Sequential(BertOutput(), BertOutput(), BertLayerNorm()),
    "GPT-2": lambda: nn.Sequential(GPT2Block(), GPT2Block(LayerNorm), nn.LayerNorm(WIDTH)),
    "DiT": lambda: nn.Sequential(DiTBlock(), DiTBlock(), AdaLayerNormContinuous()),
}
