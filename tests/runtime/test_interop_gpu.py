"""Arrays and streams of other libraries on a real device, where they are there: a process for each scene.

A process must end as cleanly as it ran: PyCUDA aborts one that leaves a context behind. What a scene computes
is compared with the float64 reference, inside it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from normgen.devices.cuda import executor as cuda
from normgen.errors import MachineError
from tests.fakes.machine import LAUNCHERS

ROOT = Path(__file__).parents[2]
LIMIT = 300  # seconds of one scene; the first one compiles

PRELUDE = """
import numpy as np
import normgen
from tests.threads import at_once

norm = normgen.load("layernorm")
draw = np.random.default_rng(7).standard_normal
X, DY = draw((64, 1000), np.float32), draw((64, 1000), np.float32)
W, B = draw(1000, np.float32), draw(1000, np.float32)
TRUTH = norm.reference.forward(X, W, B)
GRADIENTS = norm.reference.backward(dy=DY, x=X, w=W, mu=TRUTH.mu, rstd=TRUTH.rstd)

def held(made, truth, number):
    for name, got, want in zip(made._fields, made, truth):
        np.testing.assert_allclose(number(got), want, rtol=1e-4, atol=1e-4, err_msg=name)

def both(array, number, kind, synchronize=lambda: None, **options):
    "Forward and backward on arrays made by `array`, read by `number`."
    x, w, b, dy = map(array, (X, W, B, DY))
    made = norm.forward(x, w, b, **options)
    assert all(isinstance(result, kind) for result in made), made
    back = norm.backward(dy=dy, x=x, w=w, mu=made.mu, rstd=made.rstd, **options)
    assert all(isinstance(gradient, kind) for gradient in back), back
    synchronize()
    held(made, TRUTH, number)
    held(back, GRADIENTS, number)
"""
TORCH = """
import torch
torch.zeros(1, device="cuda")
tensor = lambda values: torch.from_numpy(values).cuda()
number = lambda found: found.detach().cpu().numpy()
"""
CUPY = "import cupy\n"
JAX = "import jax, jax.dlpack, jax.numpy\n"
GPUARRAY = "import pycuda.driver as api, pycuda.gpuarray as gpuarray\n"


@dataclass(frozen=True)
class Scene:
    """`needs`: the modules without which it does not run; `setting`: what is imported first."""

    name: str
    needs: tuple[str, ...]
    setting: str
    text: str


SCENES = (
    Scene("own arrays", (), "", """
        from normgen.arrays.device_array import DeviceArray
        both(DeviceArray.of, lambda found: found.get(), DeviceArray)
    """),
    Scene("torch, default stream", ("torch",), TORCH, """
        both(tensor, number, torch.Tensor)
        x = tensor(X)
        y = torch.empty_like(x)
        made = norm.forward(x, out={"y": y})
        assert made.y is y and made.y.data_ptr() == y.data_ptr()
    """),
    Scene("torch, side stream", ("torch",), TORCH, """
        both(tensor, number, torch.Tensor)  # compiled
        side, x, w, b = torch.cuda.Stream(), torch.zeros(64, 1000, device="cuda"), tensor(W), tensor(B)
        ready = tensor(X)
        torch.cuda.synchronize()
        for options in ({}, {"stream": side}, {"stream": side.cuda_stream}):
            x.zero_()
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                torch.cuda._sleep(200_000_000)  # a tenth of a second in which x is not written yet
                x.copy_(ready)
                made = norm.forward(x, w, b) if not options else None
            if options:
                made = norm.forward(x, w, b, **options)
            side.synchronize()
            held(made, TRUTH, number)
    """),
    Scene("torch, another thread", ("torch",), TORCH, """
        def work():
            for _ in range(20):
                both(tensor, number, torch.Tensor)
            with torch.cuda.stream(torch.cuda.Stream()):
                both(tensor, number, torch.Tensor)
        at_once(*[work] * 4)
        both(tensor, number, torch.Tensor)
    """),
    Scene("torch, the cotangent of a sum", ("torch",), TORCH, """
        seen = []
        class Function(torch.autograd.Function):
            @staticmethod
            def forward(context, x, w, b):
                made = norm.forward(x, w, b)
                context.save_for_backward(x, w, made.mu, made.rstd)
                return made.y
            @staticmethod
            def backward(context, dy):
                x, w, mu, rstd = context.saved_tensors
                seen.append(dy.stride())
                back = norm.backward(dy=dy, x=x, w=w, mu=mu, rstd=rstd)
                return back.dx, back.dw, back.db
        x, w, b = (tensor(values).requires_grad_() for values in (X, W, B))
        Function.apply(x, w, b).sum().backward()
        assert seen == [(0, 0)], seen
        ones = np.ones_like(X)
        truth = norm.reference.backward(dy=ones, x=X, w=W, mu=TRUTH.mu, rstd=TRUTH.rstd)
        for leaf, want in zip((x, w, b), truth):
            np.testing.assert_allclose(number(leaf.grad), want, rtol=1e-4, atol=1e-3)
    """),
    Scene("torch, captured plans", ("torch",), TORCH, """
        x, w, b, dy = map(tensor, (X, W, B, DY))
        mu, rstd = (torch.zeros(64, device="cuda") for _ in range(2))
        out = {"y": torch.zeros_like(x), "mu": mu, "rstd": rstd}
        gradients = {name: torch.zeros_like(like) for name, like in (("dx", x), ("dw", w), ("db", b))}
        forward = norm.plan("forward", x, w, b, out=out)
        given = {"dy": dy, "x": x, "w": w, "b": b, "mu": mu, "rstd": rstd}
        backward = norm.plan("backward", **given, out=gradients)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # neither was called before
            made, back = forward(x, w, b), backward(**{name: given[name] for name in backward.args})
        graph.replay()
        torch.cuda.synchronize()
        held(made, TRUTH, number)
        held(back, GRADIENTS, number)
    """),
    Scene("torch, a chain of kernels", ("torch",), TORCH, """
        # Each reads what the one before wrote, and writes over what that one read. A copy comes first, and a
        # weight from another stream on the way.
        given, w, b = tensor(X), [tensor(W + k) for k in range(20)], tensor(B)
        start, late = torch.empty_like(given), torch.empty_like(w[0])
        between = [torch.empty_like(start) for _ in range(2)]
        side = torch.cuda.Stream()
        def chain(each):
            start.copy_(given)
            late.zero_()
            source = start
            for k in range(20):
                if k == 10:
                    side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side):
                        torch.mul(w[k], 1.0, out=late)
                    torch.cuda.current_stream().wait_stream(side)
                each()
                norm.forward(source, late if k == 10 else w[k], b, out={"y": between[k % 2]}, save=False)
                each()
                source = between[k % 2]
            return source
        truth = chain(torch.cuda.synchronize).clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            last = chain(lambda: None)
        for again in [graph.replay, lambda: chain(lambda: None)] * 20:
            between[0].zero_(); between[1].zero_()
            again()
            assert torch.equal(last, truth)
    """),
    Scene("torch, blocks that meet", ("torch",), TORCH, """
        # They leave zero what tells them of one another: in eager calls of two streams, in a graph that is
        # the first to see its stream and in one that is not, in plans, and in a caller's memory.
        import normgen
        last, shape = normgen.load("groupnorm_channels_last", groups=32), (4, 64, 64, 320)
        xs = [torch.randn(shape, device="cuda") + k for k in range(3)]
        def exact(x):
            groups = x.double().view(4, 64 * 64, 32, 10)
            mean, var = groups.mean((1, 3), keepdim=True), groups.var((1, 3), keepdim=True, unbiased=False)
            return ((groups - mean) * (var + 1e-5).rsqrt()).view(shape)
        truths = [exact(x) for x in xs]
        mu, rstd = (torch.empty(4, 32, device="cuda") for _ in range(2))
        out = {"y": torch.empty_like(xs[0]), "mu": mu, "rstd": rstd}
        needed = last.workspace("forward", {"B": 4, "...": (64, 64), "C": 10})
        assert any(name.endswith(".words") for name in needed), needed
        given = {name: torch.full(size, 7.0, device="cuda") for name, (size, _) in needed.items()}
        plan, side = last.plan("forward", xs[0], out=out), torch.cuda.Stream()
        def beside(x):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                last.forward(x, out=out)
            torch.cuda.current_stream().wait_stream(side)
        def captured(run):
            graph, held = torch.cuda.CUDAGraph(), torch.empty_like(xs[0])
            with torch.cuda.graph(graph):
                run(held)
            def replay(x):
                held.copy_(x)
                graph.replay()
            return replay
        eager = lambda x: last.forward(x, out=out)
        ways = [eager, lambda x: last.forward(x, out=out, workspace=given), plan, beside, captured(eager)]
        eager(xs[0])
        ways += [captured(lambda x: (eager(x), eager(x))), captured(plan)]
        for turn in range(60):
            out["y"].zero_()
            ways[turn * 5 % len(ways)](xs[turn % 3])
            torch.testing.assert_close(out["y"].double(), truths[turn % 3], rtol=1e-4, atol=1e-4)
    """),
    Scene("cupy", ("cupy",), CUPY, """
        both(cupy.asarray, cupy.asnumpy, cupy.ndarray)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            both(cupy.asarray, cupy.asnumpy, cupy.ndarray, stream.synchronize)
        def ready(values):
            found = cupy.asarray(values)
            cupy.cuda.Device().synchronize()
            return found
        both(ready, cupy.asnumpy, cupy.ndarray, stream.synchronize, stream=stream)
    """),
    Scene("jax", ("jax",), JAX, """
        if jax.default_backend() != "gpu":
            raise SystemExit(print("SKIP JAX was installed without CUDA"))
        both(jax.numpy.asarray, np.asarray, jax.Array)
        made = norm.forward(jax.numpy.asarray(X), jax.numpy.asarray(W), jax.numpy.asarray(B))
        np.testing.assert_allclose(jax.numpy.sum(made.y, axis=1), TRUTH.y.sum(1), rtol=1e-3, atol=1e-3)
    """),
    Scene("GPUArray, pycuda.autoinit", ("pycuda",), "import pycuda.autoinit\n" + GPUARRAY, """
        both(gpuarray.to_gpu, lambda found: found.get(), gpuarray.GPUArray)
        stream = api.Stream()
        both(gpuarray.to_gpu, lambda found: found.get(), gpuarray.GPUArray, stream.synchronize, stream=stream)
        assert api.Context.get_current() == pycuda.autoinit.context
    """),
    Scene("GPUArray, autoinit after the first call", ("pycuda",), GPUARRAY, """
        from normgen.arrays.device_array import DeviceArray
        both(DeviceArray.of, lambda found: found.get(), DeviceArray)
        import pycuda.autoinit
        both(gpuarray.to_gpu, lambda found: found.get(), gpuarray.GPUArray)
        both(DeviceArray.of, lambda found: found.get(), DeviceArray)
    """),
    Scene("torch and GPUArray in one context", ("torch", "pycuda"), TORCH + GPUARRAY, """
        both(tensor, number, torch.Tensor)
        context = api.Device(0).retain_primary_context()
        context.push()
        try:
            both(gpuarray.to_gpu, lambda found: found.get(), gpuarray.GPUArray)
        finally:
            context.pop()
        both(tensor, number, torch.Tensor)
    """),
    Scene("torch and cupy share memory", ("torch", "cupy"), TORCH + CUPY, """
        x = tensor(X)
        view = cupy.from_dlpack(x)
        made = norm.forward(view, cupy.asarray(W), cupy.asarray(B))
        assert isinstance(made.y, cupy.ndarray)
        held(made, TRUTH, cupy.asnumpy)
    """),
)  # fmt: skip


@pytest.fixture(scope="module")
def device() -> None:
    try:
        cuda.executor_of(("cuda", 0)).driver.compiler.toolchain()
    except MachineError as reason:
        pytest.skip(f"no device to run on: {reason}")


def run(text: str, launcher: str = "pycuda") -> str:
    """What a process of its own says that runs this and ends without a complaint."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NORMGEN_LAUNCHER": launcher}
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    for complaint in ("PyCUDA WARNING", "PyCUDA ERROR", "Exception ignored", "Traceback"):
        assert complaint not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_a_scene_computes_what_is_right_and_ends_cleanly(device: None, scene: Scene, launcher: str) -> None:
    missing = [module for module in scene.needs if importlib.util.find_spec(module) is None]
    missing += [] if any(importlib.metadata.distributions(name=launcher)) else [launcher]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    said = run(scene.setting + PRELUDE + dedent(scene.text), launcher)
    if said.startswith("SKIP "):
        pytest.skip(said[5:].strip())


def test_what_the_scenes_share_runs_on_the_host() -> None:
    """And sees a wrong number: what a scene asserts can fail."""
    wrong = """
    try:
        both(lambda values: values, lambda found: found + 1e-2, np.ndarray)
    except AssertionError:
        print("seen")
    """
    assert run(PRELUDE + "both(lambda values: values, np.asarray, np.ndarray)\n" + dedent(wrong)) == "seen\n"
    for scene in SCENES:
        compile(scene.setting + PRELUDE + dedent(scene.text), scene.name, "exec")
