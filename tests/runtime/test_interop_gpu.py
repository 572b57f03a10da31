"""Arrays and streams of other libraries on a real device, where they are there: a process for each scene.

A process must end as cleanly as it ran: PyCUDA aborts one that leaves a context behind. What a scene computes
is compared with the float64 reference, inside it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
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
# What is imported for a library that a scene needs.
SETTINGS = {
    "torch": """
import torch
torch.zeros(1, device="cuda")
tensor = lambda values: torch.from_numpy(values).cuda()
number = lambda found: found.detach().cpu().numpy()
""",
    "cupy": "import cupy\n",
    "jax": "import jax, jax.dlpack, jax.numpy\n",
    "pycuda": "import pycuda.driver as api, pycuda.gpuarray as gpuarray\n",
}
SCENE = re.compile(r"^## (.*)\n\nNeeds (.*)\.\n\n```python\n((?:.*\n)*?)```$", re.MULTILINE)


TEXT = Path(__file__).with_name("scenes.md").read_text()
# The modules without which a scene does not run, and its program, by its name.
SCENES: dict[str, tuple[tuple[str, ...], str]] = {
    name: (needs, "".join(SETTINGS[module] for module in needs) + PRELUDE + text)
    for name, told, text in SCENE.findall(TEXT)
    for needs in [() if told == "no library" else tuple(told.split(" and "))]
}


@pytest.fixture(scope="module")
def device() -> None:
    try:
        cuda.executor_of(("cuda", 0)).driver.compiler.toolchain()
    except MachineError as reason:
        pytest.skip(f"no device to run on: {reason}")


def run(text: str, launcher: str = "pycuda") -> str:
    """What a process of its own says that runs this and ends without a complaint."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NORMGEN_LAUNCHER": launcher}
    command = [sys.executable, "-X", "faulthandler", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    for complaint in ("PyCUDA WARNING", "PyCUDA ERROR", "Exception ignored", "Traceback"):
        assert complaint not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_computes_what_is_right_and_ends_cleanly(device: None, scene: str, launcher: str) -> None:
    needs, program = SCENES[scene]
    missing = [module for module in needs if importlib.util.find_spec(module) is None]
    missing += [] if any(importlib.metadata.distributions(name=launcher)) else [launcher]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    said = run(program, launcher)
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
    assert len(SCENES) == TEXT.count("\n## ")
    for name, (_, program) in SCENES.items():
        compile(program, name, "exec")
