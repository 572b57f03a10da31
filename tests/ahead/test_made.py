"""Modules of one shape: what they hold, that they compute what the spec says, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.cli import exits
from normgen.launching.machine import HOST_MACHINE
from normgen.package.records import Package
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning import tuned
from normgen.runtime.planning.made import plan_made
from tests.ahead.shapes import direction
from tests.cli.commands import run
from tests.covering import AMPERE

BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPE = ("--size", "D=4096", "--dtype", "bf16", "--arch", "sm_90")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where modules are written once."""
    return tmp_path_factory.mktemp("made")


def compiled(folder: Path, spec: str, *options: str) -> ModuleType:
    """The module of a command that verifies what it writes."""
    done = run("compile", spec, *options, "-o", str(folder))
    assert done.exit_code == exits.OK, done.output
    (path,) = (
        Path(line.removeprefix("wrote ").removesuffix(" is up to date")) for line in done.stderr.splitlines()
    )
    module = ModuleType(path.stem)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def rmsnorm(folder: Path) -> ModuleType:
    """The module of rmsnorm."""
    return compiled(folder, "rmsnorm", *SHAPE)


def drawn(*shape: int, dtype: Any = BF16) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.kernels
@pytest.mark.parametrize("rows", [2, 140])
def test_it_computes_what_the_spec_says(rows: int, rmsnorm: ModuleType) -> None:
    """With few rows and with many, which are launched in different ways."""
    module, reference = rmsnorm, normgen.load("rmsnorm").reference
    x, w, dy = drawn(rows, 4096), drawn(4096), drawn(rows, 4096)
    found = module.forward(x, w)
    wide = [each.astype(np.float64) for each in (x, w)]
    expected = reference.forward(*wide)
    np.testing.assert_allclose(found.y.astype(np.float64), expected.y, rtol=2**-7, atol=1e-6)
    gradients = module.backward(dy, x, w, found.rstd)
    wanted = reference.backward(dy.astype(np.float64), *wide, expected.rstd)
    np.testing.assert_allclose(gradients.dx.astype(np.float64), wanted.dx, rtol=2**-7, atol=2**-7)
    np.testing.assert_allclose(gradients.dw.astype(np.float64), wanted.dw, rtol=2**-7, atol=2**-6)


def test_it_is_short_and_the_same_again(folder: Path, rmsnorm: ModuleType) -> None:
    path = folder / "rmsnorm_bf16_D4096_sm_90.py"
    text = path.read_text()
    assert len(text.splitlines()) <= 950
    assert "if constexpr" not in text and "multipass" not in text and "cooperative(" not in text
    assert run("compile", "rmsnorm", *SHAPE, "-o", str(folder), "--check").exit_code == exits.OK
    path.write_text(text.replace("THREADS = 128", "THREADS = 96"))
    assert run("compile", "rmsnorm", *SHAPE, "-o", str(folder), "--check").exit_code == exits.FAULTS


MADE = r"rmsnorm\.forward was made for D = 4096 in bf16 on sm_90, and "
REFUSED = [
    (
        (drawn(2, 64), drawn(64)),
        {},
        "D is 64 here; generate it again: normgen compile rmsnorm --size D=64 --dtype bf16 --arch sm_90",
    ),
    (
        (drawn(2, 4096, dtype=np.float32), drawn(4096, dtype=np.float32)),
        {},
        "x is f32 here: normgen compile rmsnorm --size D=4096 --dtype f32 --arch sm_90",
    ),
    (
        (drawn(2, 4096), drawn(4096, dtype=np.float32)),
        {},
        "w is f32 here: for a module for any call: normgen compile rmsnorm",
    ),
    ((drawn(2, 4096),), {}, "this call differs in w; for a module for any call: normgen compile rmsnorm"),
    (
        (drawn(2, 4096), drawn(4096)),
        {"save": False},
        "this call differs in rstd; for a module for any call: normgen compile rmsnorm",
    ),
    (
        (drawn(4, 4096)[::2], drawn(4096)),
        {},
        "x is not contiguous; for a module for any call: normgen compile rmsnorm",
    ),
]


@pytest.mark.parametrize(("arrays", "options", "said"), REFUSED)
def test_other_calls_are_refused_in_one_line(
    arrays: tuple[Any, ...], options: dict[str, Any], said: str, rmsnorm: ModuleType
) -> None:
    with pytest.raises(ValueError, match=f"^{MADE}{said}$"):
        rmsnorm.forward(*arrays, **options)


def test_other_devices_are_refused(rmsnorm: ModuleType) -> None:
    package: Package = rmsnorm.NORM.package
    forward = direction(package, "forward")
    binding = bind_sizes(forward, {"...": 8, "D": 4096}, "bf16").binding
    made = package.forward.made
    assert made is not None
    with pytest.raises(ValueError, match=r"this GPU is sm_80; .* --dtype bf16 --arch sm_80$"):
        plan_made(package.forward, made, binding, AMPERE)
    assert plan_made(package.forward, made, binding, HOST_MACHINE).launches
    far = bind_sizes(forward, {"...": 2**32, "D": 4096}, "bf16").binding
    with pytest.raises(ValueError, match=r"it has no launches for rows = 4294967296; .* compile rmsnorm$"):
        plan_made(package.forward, made, far, HOST_MACHINE)


@pytest.mark.kernels
def test_a_module_without_saves_has_a_forward_alone(folder: Path) -> None:
    module = compiled(folder, "rmsnorm", "--size", "D=256", "--no-save")
    assert module.forward(drawn(3, 256), drawn(256))._fields == ("y",)
    assert module.__all__ == ["forward", "forward_args"]


def test_what_the_command_asks_for() -> None:
    done = run("compile", "rmsnorm", "--size", "D=256", "--direction", "backward")
    assert done.exit_code == exits.USAGE and "a module of one shape always has the forward" in done.stderr
    done = run("compile", "groupnorm", "--attr", "groups=4", "--size", "C=8", "-o", "-")
    assert done.exit_code == exits.USAGE and "give --size ...=4096" in done.stderr


@pytest.mark.kernels
def test_a_further_number_of_rows_plans_nothing(rmsnorm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in (200, 210):
        rmsnorm.forward(drawn(rows, 4096), drawn(4096))
    monkeypatch.setattr(tuned, "plan_made", None)
    x, w = drawn(220, 4096), drawn(4096)
    expected = normgen.load("rmsnorm").reference.forward(x.astype(np.float64), w.astype(np.float64))
    found = rmsnorm.forward(x, w).y.astype(np.float64)
    np.testing.assert_allclose(found, expected.y, rtol=2**-7, atol=1e-6)
