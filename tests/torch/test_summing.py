"""Sums and norms of them in one call: in the texts that people write, and what the report says of others."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from tests.torch.norms import nt, torch
from tests.torch.other_norms import EarlyNorm
from tests.torch.summed_blocks import APART, FUSED, block
from tests.torch.test_fusing import agree, slopes

nn = torch.nn
fusing = pytest.importorskip("normgen.torch.patching.fusing")

NORMS = {
    "rmsnorm_llama": EarlyNorm,
    "rmsnorm": lambda: nn.RMSNorm(32, eps=1e-6),
    "layernorm": lambda: nn.LayerNorm(32),
}
every_norm = pytest.mark.parametrize(("spec", "norm"), NORMS.items(), ids=NORMS)
every_text = pytest.mark.parametrize(("text", "names", "count"), FUSED.values(), ids=FUSED)


@pytest.mark.parametrize("own", ("self", "module"))
@every_norm
@every_text
def test_what_people_write_is_fused(text, names, count, spec, norm, own, sums):
    model, x = block(text, own)(norm), torch.randn(3, 5, 32)
    want = slopes(model, x)
    report = nt.patch(model, fuse=True)
    assert [each.spec for each in report.fused] == [f"sum and {spec} ({names})"]
    agree(slopes(model, x), want)
    assert len(sums) == count
    made = copy.deepcopy(model)
    assert type(made) is type(model) and torch.equal(made(x), model(x))


PAGE = (Path(__file__).parents[2] / "docs/pytorch.md").read_text()
ROWS = re.findall(r"^\| (.*) \| the (?:first )?sum and (?:the norm|`n2`) \|$", PAGE, re.MULTILINE)


def test_the_page_shows_what_is_fused():
    assert len(ROWS) == 4


@every_norm
@pytest.mark.parametrize("row", ROWS)
def test_what_the_page_shows_is_fused(row, spec, norm, sums):
    written = [each for each in re.findall("`(.*?)`", row) if "=" in each]
    text = re.sub(r"\b(n1|n2|attn|mlp)\(", r"self.\1(", "; ".join(written).replace("norm(", "n1("))
    model, x = block(f"residual = 2 * x; {text}; return {written[-1].split()[0]}")(norm), torch.randn(3, 32)
    want = slopes(model, x)
    assert len(nt.patch(model, fuse=True).fused) == 1
    agree(slopes(model, x), want)
    assert len(sums) == 1


def fused_steps(graphs):
    targets = (str(node.target) for graph in graphs for node in graph.graph.nodes)
    return [each for each in targets if each.startswith("normgen.added_")]


@every_norm
@every_text
def test_compilers_see_one_graph_of_what_is_fused(text, names, count, spec, norm):
    model, x, graphs = block(text)(norm), torch.randn(3, 5, 32), []
    want = model(x)
    nt.patch(model, fuse=True)
    compiled = torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
    agree(compiled(x), want)
    assert len(fused_steps(graphs)) == count


@every_norm
@pytest.mark.parametrize("text", ("sum that is used", "sum that is not", "twice a block", "llama"))
def test_compiled_blocks_train(text, spec, norm):
    model, x = block(FUSED[text][0], "this")(norm), torch.randn(3, 5, 32)
    want = slopes(model, x)
    assert nt.patch(model, fuse=True).fused
    agree(slopes(torch.compile(model, backend="aot_eager", fullgraph=True), x), want)


@pytest.mark.parametrize(("text", "reason"), APART.values(), ids=APART)
def test_others_stay_apart_and_the_report_says_why(text, reason, sums):
    model, x = block(text)(NORMS["layernorm"]), torch.randn(3, 5, 32)
    want, cls = model(x), type(model)
    report = nt.patch(model, fuse=True)
    told = [] if reason is None else [f"n1: {reason}"]
    assert [each.reason for each in report.unfused if each.reason.startswith("n1")] == told
    assert all(each in str(report) for each in told)
    assert type(model) is cls and not report.fused
    agree(model(x), want)
    assert not sums


def test_reports_say_which_norms_no_kernel_adds_before():
    class UnlikeNorm(EarlyNorm):
        def forward(self, x):
            return super().forward(x).abs()

    text = "x = self.n1(x + self.attn(x)); return self.n2(x + self.mlp(x))"
    model = block(text)(lambda: nn.GroupNorm(4, 32))
    model.n2 = UnlikeNorm()
    report = nt.patch(nn.Sequential(model), fuse=True)
    assert [(each.name, each.type, each.reason) for each in report.unfused] == [
        ("0", "Summed", "n1: no kernel adds before such a norm"),
        ("0", "Summed", "n2: it is left unchanged"),
    ]
    assert "2 norms not fused with a sum before it" in str(report)


@pytest.mark.parametrize("spoiled", ("forward of an instance", "no source"))
def test_reports_say_which_forwards_cannot_be_read(spoiled):
    model = block("return self.n1(x + x)")(NORMS["rmsnorm"])
    if spoiled == "no source":
        scope = {}
        exec("def forward(self, x): return self.n1(x + x)", scope)
        type(model).forward = scope["forward"]
    else:
        model.forward = lambda x: x
    report = nt.patch(model, fuse=True)
    said = "the source of the block's forward is not available, or does not say all that it does"
    assert [each.reason for each in report.unfused] == [f"n1: {said}", f"n2: {said}"] and not report.fused


def test_a_forward_that_raises_where_it_is_looked_at_is_no_error():
    class Raising:
        def __get__(self, instance, owner):
            raise RuntimeError("not here")

    model = block("return self.n1(x + x)")(NORMS["rmsnorm"])
    type(model).forward = Raising()
    report = nt.patch(model, fuse=True)
    assert len(report.replaced) == 2 and not report.fused and not report.unfused


@every_norm
def test_sums_have_the_bits_that_they_had_and_norms_round_where_they_did(spec, norm):
    model = block("h = x + self.attn(x); return h, self.n1(h)")(norm).bfloat16()
    x = torch.randn(64, 32).bfloat16()
    h, y = model(x)
    assert nt.patch(model, fuse=True).fused
    got = model(x)
    assert torch.equal(got[0], h) and got[1].dtype is y.dtype
    assert (got[1] != y).float().mean() < 0.05


@every_norm
def test_only_chooses_norms_of_sums(spec, norm):
    model = block("x = self.n1(x + self.attn(x)); return self.n2(x + self.mlp(x))")(norm)
    assert [each.spec for each in nt.patch(model, fuse=True, only="n2").fused] == [f"sum and {spec} (n2)"]


SETTINGS = {
    "two dimensions": (lambda: nn.LayerNorm((4, 8)), 1),
    "two dimensions of an RMSNorm": (lambda: nn.RMSNorm((4, 8)), 1),
    "no bias": (lambda: nn.LayerNorm(8, bias=False), 1),
    "no parameters": (lambda: nn.RMSNorm(8, elementwise_affine=False), 1),
    "eps": (lambda: nn.LayerNorm(8, eps=0.5), 1),
    "eps of None": (lambda: nn.RMSNorm(8), 1),
}


class Alone(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        h = x * 2 + x
        return self.norm(h) * h


@pytest.mark.parametrize("shape", ((3, 4, 8), (4, 8), (0, 4, 8)))
@pytest.mark.parametrize(("norm", "count"), SETTINGS.values(), ids=SETTINGS)
def test_modules_keep_their_settings(norm, count, shape, sums):
    model, x = Alone(norm()), torch.randn(shape)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    want = slopes(model, x)
    nt.patch(model, fuse=True)
    agree(slopes(model, x), want)
    assert len(sums) == count


def _own_forward(model):
    model.norm.forward = lambda x: x + 1


def _longer(model):
    model.norm.normalized_shape = (4, 8)


def _other(model):
    model.norm = nn.Identity()


@pytest.mark.parametrize("change", (_own_forward, _longer, _other))
def test_what_changes_later_is_seen_at_the_call(change, sums):
    theirs = Alone(nn.LayerNorm(8, elementwise_affine=False))
    ours, x = copy.deepcopy(theirs), torch.randn(4, 8)
    assert nt.patch(ours, fuse=True).fused
    for each in (theirs, ours):
        change(each)
    agree(ours(x), theirs(x))
    assert len(sums) == (change is _longer)


def test_a_length_that_no_parameter_has_is_refused_as_before():
    ours = Alone(nn.LayerNorm(8))
    nt.patch(ours, fuse=True)
    with pytest.raises(RuntimeError, match=r"normalized_shape=\[8\]"):
        ours(torch.randn(4, 7))


def test_without_kernels_the_statements_run_as_they_are_written(monkeypatch, sums):
    model, x = block(FUSED["twice a block"][0])(NORMS["layernorm"]), torch.randn(3, 32)
    want = slopes(model, x)
    nt.patch(model, fuse=True)
    monkeypatch.setattr(fusing, "has_kernels", lambda _: False)
    agree(slopes(model, x), want)
    assert not sums


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@every_norm
def test_autocast_on_a_gpu_gives_the_types_of_pytorch(spec, norm, dtype, on_gpu):
    with torch.device(on_gpu):
        theirs, ours = (block("h = x + x; return self.n1(h), h")(norm) for _ in range(2))
    nt.patch(ours, fuse=True)
    x = torch.empty(3, 32, device=on_gpu, dtype=dtype)
    assert [each.dtype for each in ours(x)] == [each.dtype for each in theirs(x)]
