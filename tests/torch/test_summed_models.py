"""Models of libraries with their sums and norms in one call."""

from __future__ import annotations

import pytest

from tests.torch.norms import nt, torch
from tests.torch.test_fusing import agree, slopes

nn = torch.nn
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _encoder(first):
    layer = nn.TransformerEncoderLayer(32, 2, 48, dropout=0.0, norm_first=first, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _bert():
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel(transformers.BertConfig(**SIZES, **NO_DROPOUT))
    return model.encoder


def _vit():
    transformers = pytest.importorskip("transformers")
    model = transformers.ViTModel(transformers.ViTConfig(**SIZES, **NO_DROPOUT, image_size=32, patch_size=16))
    return nn.Sequential(*model.layers)


def _torchvision():
    blocks = pytest.importorskip("torchvision.models.vision_transformer")
    return blocks.EncoderBlock(2, 32, 48, 0.0, 0.0)


# Each with what the report says of its blocks, and how many calls a call of the model makes.
MODELS = {
    "encoder of PyTorch": (lambda: _encoder(False), {"sum and layernorm (norm2, norm1)"}, 4),
    "the same with norms first": (lambda: _encoder(True), {"sum and layernorm (norm2, norm1)"}, 2),
    "BERT": (_bert, {"sum and layernorm (LayerNorm)"}, 4),
    "ViT": (_vit, {"sum and layernorm (layernorm_after)"}, 2),
    "ViT of torchvision": (_torchvision, {"sum and layernorm (ln_2)"}, 1),
}


class Tensor(nn.Module):
    """What a model returns, as a tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        y = self.model(x)
        return y if isinstance(y, torch.Tensor) else y[0]


@pytest.mark.parametrize(("make", "shown", "count"), MODELS.values(), ids=MODELS)
def test_models_of_libraries_are_fused(make, shown, count, sums):
    model, x = Tensor(make()), torch.randn(2, 5, 32)
    want = slopes(model, x)
    report = nt.patch(model, fuse=True)
    assert {each.spec for each in report.fused} == shown
    agree(slopes(model, x), want)
    assert len(sums) == count


def test_a_branch_between_keeps_gpt2_apart(sums):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=8, n_embd=32, n_layer=2, n_head=2)
    report = nt.patch(nn.Sequential(*transformers.GPT2Model(config).h), fuse=True)
    said = "ln_2: a branch, a loop or a `with` stands between it and the sum"
    assert [each.reason for each in report.unfused] == [said] * 2 and not report.fused
