"""The functions of the prelude beside PyTorch's over all of float32, and all functions where they have kinks:
values and slopes, of kernels and of the reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import normgen
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.dsl.functions import prelude
from normgen.ir.grad import backward
from normgen.ir.reference import evaluate
from tests.sampling import sampled

pytestmark = pytest.mark.kernels

Array = np.ndarray
inf, nan = np.inf, np.nan
LARGEST = float(np.finfo(np.float32).max)
EPS = float(np.finfo(np.float32).eps)
# Kinks, both zeros, subnormal, small and large numbers, infinities, NaN.
EDGES = (0, 0.25, 0.5, 1e-45, 1e-40, 2.0**-126, 1e-30, 1e-10, 1e4, 1e10, 1e19, 1e30, LARGEST, inf, nan)


def numbers(most: float = nan) -> tuple[Array, ...]:
    x = np.concatenate([EDGES, np.linspace(0.0625, 128, 200), np.geomspace(1e-6, 60, 99)]).astype(np.float32)
    near = [np.nextafter(x[:3], np.float32(to)) for to in (-inf, inf)]
    x = np.concatenate([x, *near, -x, *(-each for each in near)])
    return (x[~(abs(x) > most)][None],)


def up_to_1e12() -> tuple[Array, ...]:
    return numbers(1e12)


def rows() -> tuple[Array, ...]:
    """Usual rows, small and large ones, constant ones, and such with infinities and NaN."""
    x = np.random.default_rng(3).standard_normal((14, 40)).astype(np.float32)
    x[1], x[2], x[3, 7], x[4, ::2], x[5, 3], x[6, :-1], x[7] = 0, -inf, inf, -inf, nan, -inf, 3
    x[8:11] *= np.float32([[100], [1e10], [1e-15]])
    x[11, 1:3], x[12], x[13, :2] = (inf, -inf), inf, (inf, nan)
    return (x,)


FEW = np.float32([0, -0.0, 1, -1, 2, -3, 0.5, -0.5, 1e-40, 1e10])


def plain() -> tuple[Array, ...]:
    """Numbers, with ties in each row."""
    return (np.stack([FEW, FEW.clip(-1, 1)]),)


def pairs() -> tuple[Array, ...]:
    """Each number beside each."""
    a, b = np.meshgrid(FEW, FEW)
    return a, b


def triples() -> tuple[Array, ...]:
    given = list(
        product((-2.0, 0.0, 1.0, 3.0, 1e30, inf, nan), (0.0, -1.0, 5.0, -1e30), (0, 0.25, 0.5, 0.75, 1))
    )
    return tuple(np.float32([each[k] for each in given])[None] for k in range(3))


def clamped(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's clamp as of release 2.14: earlier ones have slope 1 at the bounds."""
    inside = torch.where(x.isnan(), x.detach(), x)
    return torch.where(x <= -0.5, -0.5, torch.where(x >= 0.25, 0.25, inside))


Torch = Callable[..., torch.Tensor]
# By call: PyTorch's function, and what both are called with.
TABLE: dict[str, tuple[Torch, Callable[[], tuple[Array, ...]]]] = {
    "relu(x)": (F.relu, numbers),
    "silu(x)": (F.silu, numbers),
    "gelu(x)": (F.gelu, numbers),
    # (PyTorch's own has 1 + tanh(v), of which nothing is left where it is small)
    "gelu_tanh(x)": (lambda x: x * torch.sigmoid((8 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)), up_to_1e12),
    # (which takes the number itself from a threshold on)
    "softplus(x)": (lambda x: F.softplus(x, threshold=40), numbers),
    "x * tanh(softplus(x))": (F.mish, numbers),
    "log1p(x)": (torch.log1p, numbers),
    "clamp(x, -0.5, 0.25)": (clamped, numbers),
    "lerp(x, b, c)": (torch.lerp, triples),
    "mean[D](x)": (lambda x: x.mean(-1), rows),
    "var[D](x)": (lambda x: x.var(-1, correction=0), rows),
    "rms[D](x)": (lambda x: (x**2).mean(-1).sqrt(), rows),
    "softmax[D](x)": (lambda x: x.softmax(-1), rows),
    "log_softmax[D](x)": (lambda x: x.log_softmax(-1), rows),
    "logsumexp[D](x)": (lambda x: x.logsumexp(-1), rows),
    # Of the language, where they have kinks.
    "abs(x)": (torch.abs, plain),
    "max[D](x)": (lambda x: x.amax(-1), plain),
    "min[D](x)": (lambda x: x.amin(-1), plain),
    "x^b": (torch.pow, pairs),
    # (PyTorch halves a tie)
    "max(x, b)": (lambda x, b: torch.where(x > b, x, b), pairs),
    "min(x, b)": (lambda x, b: torch.where(x < b, x, b), pairs),
}


def spec(call: str) -> str:
    operands = sorted({*"xbc"} & set(re.findall(r"\w+", call)), key="xbc".index)
    axes = "..." if "[D]" in call and "softmax" not in call else "..., D"
    return "\n".join(
        ["norm t", *(f"input {name}[..., D]" for name in operands), f"output y[{axes}] = {call}"]
    )


Tensors = Sequence[torch.Tensor]


def theirs(function: Torch, given: Tensors, dy: torch.Tensor, dtype: torch.dtype) -> Tensors:
    """PyTorch's values and slopes on the CPU."""
    given = [each.cpu().to(dtype).requires_grad_() for each in given]
    y = function(*given)
    return [y, *torch.autograd.grad(y, given, dy.cpu().to(dtype))]


def check(
    found: Tensors, want: Tensors, other: Tensors, eps: float, least: float, means: Array | float = 0
) -> None:
    """Results are as near as rounding allows, or not much farther off than those of float32 in PyTorch.
    `means`: what the mean of each row, which values are subtracted from, may be off."""
    for name, *results in zip(("y", "dx", "db", "dc"), found, want, other, strict=False):
        mine, exact, rounded = (each.detach().cpu().double().numpy() for each in results)
        with np.errstate(invalid="ignore"):
            off, most = (
                np.abs(mine - exact),
                np.maximum(eps * np.abs(exact) + least + (name != "y") * means, 4 * np.abs(rounded - exact)),
            )
        right = (mine == exact) | (mine == rounded) | (off <= most)
        right |= np.isnan(mine) & (np.isnan(exact) | np.isnan(rounded))
        at = tuple(np.argwhere(~right).T)
        assert right.all(), f"{name} at {at}: {mine[at]} in place of {exact[at]}; of float32 {rounded[at]}"


def test_every_function_of_the_prelude_is_here() -> None:
    assert {call.partition("[")[0].partition("(")[0] for call in TABLE} >= set(prelude())


@pytest.mark.parametrize("call", TABLE)
def test_the_reference(call: str) -> None:
    function, given = TABLE[call]
    arrays = [each.astype(np.float64) for each in given()]
    definition = load_definition(Source("t.norm", spec(call)), {})
    operands = dict(zip("xbc", arrays, strict=False))
    extents = dict(zip(("...", "D"), arrays[0].shape, strict=True))
    y = evaluate(definition.program, operands, extents)["y"]
    dy = np.random.default_rng(1).standard_normal(y.shape)
    slopes = evaluate(backward(definition), {**operands, "dy": dy}, extents)
    want = theirs(function, [*map(torch.from_numpy, arrays)], torch.from_numpy(dy), torch.float64)
    check([*map(torch.from_numpy, (y, *slopes.values()))], want, want, 1e-12, 1e-14)


GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("dtype", sampled([torch.float32, torch.bfloat16, torch.float16], 0))
@pytest.mark.parametrize("call", TABLE)
def test_kernels(call: str, dtype: torch.dtype, place: str) -> None:
    function, given = TABLE[call]
    norm = normgen.load(spec(call))
    arrays = [torch.from_numpy(each).to(place, dtype) for each in given()]
    y = norm.forward(*arrays).y
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(place, dtype)
    operands = {"y": y, "dy": dy, **dict(zip("xbc", arrays, strict=False))}
    found = [y, *norm.backward(*(operands[name] for name in norm.backward_args))]
    want, other = (theirs(function, arrays, dy, each) for each in (torch.float64, torch.float32))
    info = torch.finfo(dtype)
    eps = (16 if dtype is torch.float32 else 1) * info.eps
    means: Array | float = 0
    if call.startswith("var"):
        means = EPS**2 * np.nan_to_num(np.abs(given()[0]), posinf=0).max(-1, keepdims=True)
    narrow = ([each.to(dtype) for each in results] for results in (want, other))
    check(found, *narrow, eps, info.smallest_normal, means)
