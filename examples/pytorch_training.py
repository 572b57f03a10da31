"""Train a small transformer, each of whose residual adds is one kernel with the next norm.

    python examples/pytorch_training.py
    python examples/pytorch_training.py --steps 500 --width 256 --compile    # on a GPU

Without a GPU it runs on the CPU: a few steps take some seconds.
"""

from __future__ import annotations

import argparse

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as missing:
    raise SystemExit(f"this example needs PyTorch: pip install torch ({missing})") from None

import normgen.torch as nt

SYMBOLS = 16


class Block(nn.Module):
    """Attention and an MLP. Takes and returns what the last layer adds, and the residual stream."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        # Adds the residual and normalizes the sum, in one kernel per direction.
        self.before_attention = nt.nn.AddRMSNorm(width)
        self.before_mlp = nt.nn.AddRMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        residual, y = self.before_attention(x, residual)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(y).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        residual, y = self.before_mlp(self.out(mixed.transpose(1, 2).flatten(2)), residual)
        return self.mlp(y), residual


class Model(nn.Module):
    def __init__(self, width: int, blocks: int = 2, length: int = 32) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.last = nt.nn.AddRMSNorm(width)
        self.head = nn.Linear(width, SYMBOLS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.symbols(tokens)
        residual = self.positions.weight[: tokens.shape[1]].expand_as(x)
        for block in self.blocks:
            x, residual = block(x, residual)
        return self.head(self.last(x, residual)[1])


def batch(rows: int, length: int, device: str) -> Tensor:
    """Sequences that count in steps of 1, 2 or 3, from anywhere."""
    start, step = torch.randint(SYMBOLS, (rows, 1)), torch.randint(1, 4, (rows, 1))
    return ((start + step * torch.arange(length)) % SYMBOLS).to(device)


def train(steps: int, width: int, compiled: bool = False) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model(width).to(device)
    run = torch.compile(model, fullgraph=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        tokens = batch(8, 12, device)
        logits = run(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--compile", action="store_true", help="run the model through torch.compile")
    given = parser.parse_args()
    losses = train(given.steps, given.width, given.compile)
    for step in range(0, len(losses), max(1, len(losses) // 10)):
        print(f"step {step}: {losses[step]:.3f}")
    print(f"last: {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
