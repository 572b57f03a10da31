"""Every spec that PyTorch has an operator for, held against it on the GPU, results and gradients.

Both are compared with the operator in float64. normgen's error may be twice PyTorch's, or what one rounding
of the result and a few of float32 make, whichever is more.

NORMGEN_TORCH_DEVICE=cpu runs the same on the host executor, against PyTorch on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import normgen
from normgen import SpecError, bundled

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional

DEVICE = os.environ.get("NORMGEN_TORCH_DEVICE", "cuda")
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("PyTorch sees no CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Half the distance between neighbouring values, as a share of them.
ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
ROUNDINGS = 16  # of float32, between the operands and a result: statistics, products, sums
IMAGES = ((2, 32, 7, 9), (3, 64, 16, 16), (4, 96, 28, 28))
ROWS = ((5, 3, 129), (64, 1000), (33, 4096))
EPS = {"eps": 1e-5}

Tensor = Any


@dataclass(frozen=True, slots=True)
class Peer:
    """An operator of PyTorch and the spec of the same.

    `function`: x, then the params, to y. `params`: name to what it is drawn around; each has the length of
    dimension `channels` of x. `wide`: params stay f32. `move`: how the spec's dimensions of x lie in
    PyTorch's, channels last.
    """

    spec: str
    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    attrs: Mapping[str, object] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, float] = field(default_factory=lambda: {"w": 1.0, "b": 0.0})
    channels: int = 1
    wide: bool = False
    move: tuple[int, ...] = ()


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, w.shape, w, b, 1e-5)


def _group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 8, w, b, 1e-5)


def _batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, w, b, True, 0.1, 1e-5)


def _response(size: int) -> Callable[[Tensor], Tensor]:
    return lambda x: F.local_response_norm(x, size, 0.5, 0.75, 1.0)


NONE: dict[str, float] = {}
RESPONSE = {"alpha": 0.5, "beta": 0.75, "k": 1.0}
LAST = (0, 2, 3, 1)
PEERS = {
    "layer_norm": Peer("layernorm", _layer_norm, ROWS, numbers=EPS, channels=-1),
    "rms_norm": Peer(
        "rmsnorm", lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), ROWS, params={"w": 1.0}, channels=-1
    ),
    "normalize": Peer("l2norm", lambda x: F.normalize(x, dim=-1), ROWS, params=NONE),
    "softmax": Peer("softmax", lambda x: torch.softmax(x, -1), ROWS, params=NONE),
    "log_softmax": Peer("log_softmax", lambda x: torch.log_softmax(x, -1), ROWS, params=NONE),
    "softmax2d": Peer("softmax2d", lambda x: torch.softmax(x, 1), IMAGES, params=NONE),
    "group_norm": Peer("groupnorm", _group_norm, IMAGES, {"groups": 8}, EPS),
    "group_norm_last": Peer("groupnorm_channels_last", _group_norm, IMAGES, {"groups": 8}, EPS, move=LAST),
    "batch_norm": Peer("batchnorm", _batch_norm, IMAGES, {"training": True}, EPS, wide=True),
    "batch_norm_last": Peer(
        "batchnorm_channels_last", _batch_norm, IMAGES, {"training": True}, EPS, wide=True, move=LAST
    ),
    "instance_norm": Peer(
        "instancenorm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), IMAGES, {}, EPS, wide=True
    ),
    "layer_norm_2d": Peer(
        "layernorm2d",
        lambda x, w, b: F.layer_norm(x.permute(LAST), w.shape, w, b, 1e-6).permute(0, 3, 1, 2),
        IMAGES,
    ),
    "response_norm": Peer("local_response_norm", _response(5), IMAGES, {"n": 5}, RESPONSE, NONE),
    "response_norm_even": Peer("local_response_norm", _response(4), IMAGES, {"n": 4}, RESPONSE, NONE),
    "weight_norm": Peer(
        "weight_norm",
        lambda x, w: torch._weight_norm(x, w.reshape(-1, 1, 1, 1), 0),
        IMAGES,
        params={"w": 1.0},
        channels=0,
    ),
}


def cases() -> list[object]:
    """Every peer at every shape, element type and memory format."""
    found = []
    for name, peer in PEERS.items():
        for shape in peer.shapes:
            for dtype in DTYPES:
                for memory in ("contiguous", "channels_last")[: 1 + (len(shape) == 4 and not peer.move)]:
                    size = "x".join(map(str, shape))
                    found.append(
                        pytest.param(name, shape, dtype, memory, id=f"{name}-{size}-{dtype}-{memory}")
                    )
    return found


@pytest.mark.parametrize(("name", "shape", "dtype", "memory"), cases())
def test_results_and_gradients(name: str, shape: tuple[int, ...], dtype: str, memory: str) -> None:
    peer = PEERS[name]
    norm = loaded(peer.spec, **peer.attrs)
    x, dy = (images(shape, DTYPES[dtype], memory, seed) for seed in (1, 2))
    params = drawn(peer, shape, DTYPES[dtype])
    wanted = differentiated(peer.function, x.double(), [p.double() for p in params], dy.double())
    try:
        theirs = differentiated(peer.function, x, params, dy)
    except NotImplementedError as lack:  # half types on the CPU
        pytest.skip(f"PyTorch: {lack}")

    numbers = {k: v for k, v in peer.numbers.items() if k in {a.name for a in norm.package.attrs}}
    there = {"x": moved(x, peer), **dict(zip(peer.params, params, strict=True))}
    made = norm.forward(**there, **numbers)
    values = {**there, **made._asdict(), "dy": moved(dy, peer)}
    gradients = norm.backward(**{k: values[k] for k in {*norm.backward_args, *peer.params}}, **numbers)
    ours = [returned(made.y, peer), returned(gradients.dx, peer)]
    ours += [getattr(gradients, f"d{parameter}") for parameter in peer.params]

    assert all(isinstance(t, torch.Tensor) and t.device.type == DEVICE for t in ours)
    assert [t.dtype for t in ours] == [x.dtype, x.dtype, *(p.dtype for p in params)]
    for result, got, their, want in zip(
        ("y", "dx", *(f"d{p}" for p in peer.params)), ours, theirs, wanted, strict=True
    ):
        hold(result, got, their, want)


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", ["batchnorm", "batchnorm_channels_last"])
def test_running_statistics(spec: str, dtype: str, memory: str) -> None:
    """Three steps of training move the running statistics as PyTorch does; then they are what is used."""
    peer, shape = PEERS["batch_norm" if spec == "batchnorm" else "batch_norm_last"], (5, 32, 6, 7)
    train, evaluate = loaded(spec, training=True), loaded(spec, training=False)
    kinds = {"ours": torch.float32, "theirs": torch.float32, "wanted": torch.float64}
    states = {
        k: [torch.zeros(32, dtype=d, device=DEVICE), torch.ones(32, dtype=d, device=DEVICE)]
        for k, d in kinds.items()
    }
    w, b = drawn(peer, shape, DTYPES[dtype])
    for step in range(3):
        x = images(shape, DTYPES[dtype], memory, 10 + step) * (1 + step) + step
        F.batch_norm(x, *states["theirs"], w, b, True, 0.1, 1e-5)
        F.batch_norm(x.double(), *states["wanted"], w.double(), b.double(), True, 0.1, 1e-5)
        mean, var = states["ours"]
        train.forward(moved(x, peer), w, b, running_mean=mean, running_var=var, momentum=0.1, eps=1e-5)
        for result, i in (("running_mean", 0), ("running_var", 1)):
            hold(f"{result} after step {step}", *(states[k][i] for k in kinds))

    def by_statistics(kind: str) -> Callable[..., Tensor]:
        return lambda x, w, b: F.batch_norm(x, *states[kind], w, b, False, 0.1, 1e-5)

    x, dy = (images(shape, DTYPES[dtype], memory, seed) for seed in (1, 2))
    wanted = differentiated(by_statistics("wanted"), x.double(), [w.double(), b.double()], dy.double())
    theirs = differentiated(by_statistics("theirs"), x, [w, b], dy)
    mean, var = states["ours"]
    there = {"x": moved(x, peer), "w": w, "b": b, "running_mean": mean, "running_var": var}
    kept = [t.clone() for t in (mean, var)]
    made = evaluate.forward(**there, eps=1e-5)
    values = {**there, **made._asdict(), "dy": moved(dy, peer)}
    gradients = evaluate.backward(**{k: values[k] for k in {*evaluate.backward_args, "w", "b"}}, eps=1e-5)
    assert torch.equal(kept[0], mean) and torch.equal(kept[1], var), "evaluation changes no statistics"
    ours = [returned(made.y, peer), returned(gradients.dx, peer), gradients.dw, gradients.db]
    for result, got, their, want in zip(("y", "dx", "dw", "db"), ours, theirs, wanted, strict=True):
        hold(result, got, their, want)


def test_the_measure_can_fail() -> None:
    want = torch.linspace(-1, 1, 64, dtype=torch.float64, device=DEVICE)
    hold("y", want.bfloat16(), want.bfloat16(), want)
    with pytest.raises(AssertionError, match="y is off"):
        hold("y", want.bfloat16() * 1.02, want.bfloat16(), want)
    with pytest.raises(AssertionError, match="y is off"):
        hold("y", want.float() * float("nan"), want.float(), want)


# -------------------------------------------------------------------------------------------------- pieces


def loaded(spec: str, **attrs: object) -> normgen.Norm:
    """The bundled spec, or a skipped test where it has no kernels yet."""
    if spec not in bundled.names():
        pytest.skip(f"no spec is called {spec}")
    try:
        return normgen.load(spec, **attrs)
    except SpecError as error:
        if not all(d.code == "unsupported" for d in error.diagnostics):
            raise
        pytest.skip(error.diagnostics[0].message)


def images(shape: tuple[int, ...], dtype: Any, memory: str, seed: int) -> Tensor:
    """Normal values around 0.5."""
    random = torch.Generator(DEVICE).manual_seed(seed)
    x = (torch.randn(shape, generator=random, device=DEVICE) + 0.5).to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if memory == "channels_last" else x


def drawn(peer: Peer, shape: tuple[int, ...], dtype: Any) -> list[Tensor]:
    """The params, near to where they start."""
    random = torch.Generator(DEVICE).manual_seed(3)
    length = shape[peer.channels]
    noise = [torch.randn(length, generator=random, device=DEVICE) for _ in peer.params]
    kind = torch.float32 if peer.wide else dtype
    return [(near + 0.2 * n).to(kind) for near, n in zip(peer.params.values(), noise, strict=True)]


def moved(t: Tensor, peer: Peer) -> Tensor:
    """A tensor of PyTorch's shape as the spec declares it."""
    return t.permute(peer.move) if peer.move else t


def returned(t: Tensor, peer: Peer) -> Tensor:
    """The way back."""
    return t.permute([peer.move.index(i) for i in range(len(peer.move))]) if peer.move else t


def differentiated(
    function: Callable[..., Tensor], x: Tensor, params: list[Tensor], dy: Tensor
) -> list[Tensor]:
    """y, then the gradients of x and of the params."""
    leaves = [t.detach().requires_grad_() for t in (x, *params)]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))]


def hold(result: str, got: Tensor, their: Tensor, want: Tensor) -> None:
    """The error of `got`, in the l2 norm and at its worst, against PyTorch's and against rounding."""
    assert got.shape == want.shape, (result, got.shape, want.shape)
    few = ROUNDOFF[got.dtype] + ROUNDINGS * ROUNDOFF[torch.float32]
    for name, norm in (("l2", torch.linalg.vector_norm), ("largest", lambda t: t.abs().max())):
        scale = norm(want)
        mine, peers = (float(norm(t.double() - want) / scale) for t in (got, their))
        assert mine <= max(2 * peers, few), f"{result} is off by {mine:.3g} ({name}); PyTorch by {peers:.3g}"
