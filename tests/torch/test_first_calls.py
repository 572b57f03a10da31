"""A first call, which has kernels made, keeps nothing alive: not even until Python next looks for cycles.

A pool of CUDA graphs counts what lives in it: an array that only a cycle holds is one too many there.
"""

from __future__ import annotations

import json
import subprocess
import sys

# In a process that has made no call.
PROGRAM = """
import gc, json
import torch
from torch.multiprocessing.reductions import StorageWeakRef
import normgen.torch as nt

MODULES = {
    "batch": lambda: nt.nn.BatchNorm2d(16),
    "instance": lambda: nt.nn.InstanceNorm2d(16, affine=True, track_running_stats=True),
    "group": lambda: nt.nn.GroupNorm(4, 16),
    "channels": lambda: nt.nn.Softmax2d(),
    "windows": lambda: nt.nn.LocalResponseNorm(5),
}


def step(module, layout):
    x = torch.randn(2, 16, 4, 4).to(memory_format=layout).requires_grad_()
    between = torch.tanh(x)
    y = module(between)
    cotangent = torch.randn_like(y).requires_grad_()
    (dx,) = torch.autograd.grad(y, between, cotangent, create_graph=True)
    (again,) = torch.autograd.grad(dx.square().sum(), cotangent)
    made = {"between": between, "y": y, "cotangent": cotangent, "dx": dx, "again": again}
    return {name: StorageWeakRef(tensor.untyped_storage()) for name, tensor in made.items()}


alive = {}
for name, make in MODULES.items():
    for layout in torch.contiguous_format, torch.channels_last:
        module = make()
        gc.collect()
        gc.disable()
        held = step(module, layout)
        alive[f"{name}, {layout}"] = [what for what, storage in held.items() if not storage.expired()]
        gc.enable()
print(json.dumps(alive))
"""


def test_first_calls_leave_nothing_alive() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    alive = json.loads(done.stdout.splitlines()[-1])
    assert len(alive) == 10
    assert not any(alive.values()), alive
