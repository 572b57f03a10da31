"""A Llama, a ResNet-50 and a U-net in plain PyTorch, with the blocks that their libraries have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class LlamaSize:
    batch: int = 8
    tokens: int = 1024
    vocabulary: int = 32768
    hidden: int = 2048
    inner: int = 8192
    layers: int = 4
    heads: int = 32
    groups: int = 8


class LlamaRMSNorm(nn.Module):
    """As transformers has it."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class LlamaDecoderLayer(nn.Module):
    """Attention with rotary positions, and a gated inner layer, both behind a norm."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        head = size.hidden // size.heads
        self.heads, self.groups, self.head = size.heads, size.groups, head
        self.input_layernorm = LlamaRMSNorm(size.hidden)
        self.post_attention_layernorm = LlamaRMSNorm(size.hidden)
        self.q = nn.Linear(size.hidden, size.heads * head, bias=False)
        self.k = nn.Linear(size.hidden, size.groups * head, bias=False)
        self.v = nn.Linear(size.hidden, size.groups * head, bias=False)
        self.o = nn.Linear(size.heads * head, size.hidden, bias=False)
        self.gate = nn.Linear(size.hidden, size.inner, bias=False)
        self.up = nn.Linear(size.hidden, size.inner, bias=False)
        self.down = nn.Linear(size.inner, size.hidden, bias=False)

    def attend(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (f(x).view(batch, tokens, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = (
            t * cos + torch.cat((-t[..., self.head // 2 :], t[..., : self.head // 2]), -1) * sin
            for t in (q, k)
        )
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(made.transpose(1, 2).reshape(batch, tokens, -1))

    def forward(self, hidden_states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.attend(hidden_states, cos, sin)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.down(functional.silu(self.gate(hidden_states)) * self.up(hidden_states))
        return residual + hidden_states


class Llama(nn.Module):
    """The language model, with tied embeddings."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.hidden)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList(LlamaDecoderLayer(size) for _ in range(size.layers))
        self.norm = LlamaRMSNorm(size.hidden)
        head = size.hidden // size.heads
        angles = torch.outer(
            torch.arange(size.tokens).float(), 10000.0 ** -(torch.arange(0, head, 2).float() / head)
        ).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return functional.linear(self.norm(x), self.embed.weight)


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * planes
        self.conv1, self.bn1 = nn.Conv2d(inputs, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = functional.relu(self.bn2(self.conv2(y)), inplace=True)
        return functional.relu(self.bn3(self.conv3(y)) + self.shortcut(x), inplace=True)


class ResNet(nn.Sequential):
    def __init__(self, blocks: tuple[int, ...]) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        inputs = 64
        for stage, count in enumerate(blocks):
            planes = 64 << stage
            for k in range(count):
                layers.append(Bottleneck(inputs, planes, 2 if stage and not k else 1))
                inputs = 4 * planes
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class ResBlock(nn.Module):
    """Two norms, each before SiLU and a convolution, with the embedding of the time between them."""

    def __init__(self, inputs: int, outputs: int, embedding: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, inputs), nn.GroupNorm(groups, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(embedding, outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(functional.silu(self.norm2(y)))


class Attention(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.heads = max(channels // 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, *space = x.shape
        rows = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(rows).view(batch, -1, 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
        made = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows.shape)
        return x + self.out(made).transpose(1, 2).reshape(batch, channels, *space)


class UNet(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        wide, embedding = 2 * channels, 4 * channels
        self.embed = nn.Sequential(nn.Linear(channels, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.enter, self.leave = nn.Conv2d(4, channels, 3, padding=1), nn.Conv2d(channels, 4, 3, padding=1)
        sizes = [(channels, channels), (channels, channels), (channels, wide), (wide, wide), (wide, wide)]
        sizes += [(wide, wide), (2 * wide, wide), (wide + channels, wide), (wide + channels, channels)]
        self.blocks = nn.ModuleList(ResBlock(a, b, embedding, groups) for a, b in sizes)
        self.attentions = nn.ModuleList(Attention(wide, groups) for _ in range(5))
        self.down = nn.Conv2d(channels, channels, 3, 2, 1)
        self.up = nn.Conv2d(wide, wide, 3, padding=1)
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        half = self.enter.out_channels // 2
        angles = times[:, None] * 10000.0 ** -(torch.arange(half, device=x.device) / half)
        time = self.embed(torch.cat((angles.sin(), angles.cos()), 1).to(x.dtype))
        block, attend = iter(self.blocks), iter(self.attentions)
        first = next(block)(self.enter(x), time)
        second = next(block)(first, time)
        lower = next(attend)(next(block)(self.down(second), time))
        last = next(attend)(next(block)(lower, time))
        middle = next(block)(next(attend)(next(block)(last, time)), time)
        y = next(attend)(next(block)(torch.cat((middle, last), 1), time))
        y = self.up(functional.interpolate(next(attend)(y), scale_factor=2.0))
        y = next(block)(torch.cat((y, second), 1), time)
        y = next(block)(torch.cat((y, first), 1), time)
        return self.leave(functional.silu(self.norm(y)))
