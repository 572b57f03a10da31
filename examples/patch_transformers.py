"""The norms of a Hugging Face Llama replaced by one line, and taken back by another.

    pip install transformers
    python examples/patch_transformers.py

The model is a tiny one with random weights, so nothing is downloaded. One from `from_pretrained` works the
same: the modules stay the objects that they are, with their weights.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import normgen.torch as nt


def small_llama() -> LlamaForCausalLM:
    """Two layers, random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = small_llama().to(device)
    tokens = torch.arange(8, device=device)[None]
    before = model(tokens, labels=tokens)

    # Replaces the norms in place, and says which, by what, and what it left alone.
    print(nt.patch(model))

    after = model(tokens, labels=tokens)
    after.loss.backward()
    print(f"loss {before.loss.item():.6f} before, {after.loss.item():.6f} after")
    torch.testing.assert_close(after.logits, before.logits)
    gain = model.model.layers[0].input_layernorm.weight
    print("gradient of a gain:", gain.grad.norm().item())

    nt.unpatch(model)


if __name__ == "__main__":
    main()
