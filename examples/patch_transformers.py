"""Replace the norms of a Hugging Face Llama by one line, and restore them by another.

    pip install torch transformers
    python examples/patch_transformers.py

The model is tiny and has random weights, so nothing is downloaded. A model of `from_pretrained` works the
same way: its modules stay the same objects, with their weights.
"""

from __future__ import annotations

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as missing:
    raise SystemExit(
        f"this example needs PyTorch and transformers: pip install torch transformers ({missing})"
    ) from None

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

    # Replaces the norms in place, and reports what it changed and what it left alone.
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
