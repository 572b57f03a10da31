"""The public functions: what counts as a path, a name or a text; one package behind both; imports stay
lean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import normgen
from normgen import bundled
from tests.cli.commands import run
from tests.sampling import sampled

SPEC = """norm scaled "Divides rows by their root mean square."
attr   eps >= 0 = 1e-6
attr   power: int = 2
input  x[..., D]
param  w[D] = 1
save   rstd[...] = rsqrt(mean[D](x^power) + eps)
output y[..., D] = x * rstd * w
"""


def test_a_path_a_name_and_a_text_all_load(tmp_path: Path) -> None:
    path = tmp_path / "with space.norm"
    path.write_text(SPEC, encoding="utf-8")
    for source in (path, str(path), SPEC):
        assert normgen.load(source).name == "scaled"
    assert normgen.load("rmsnorm").backward_args == ("dy", "x", "w", "rstd")
    path = tmp_path / "rmsnorm"
    path.write_text(SPEC, encoding="utf-8")
    assert normgen.load(path).name == "scaled", "a path object is a path whatever its name"


def test_what_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.norm").write_text(SPEC, encoding="utf-8")
    with pytest.raises(ValueError, match=r"no bundled spec is called 'mine': for the file write mine\.norm$"):
        normgen.load("mine")
    with pytest.raises(ValueError, match=r"no bundled spec is called 'RMSNorm': did you mean rmsnorm\?$"):
        normgen.load("RMSNorm")
    with pytest.raises(FileNotFoundError, match="the bundled spec is called softmax"):
        normgen.load("softmax.norm")
    with pytest.raises(ValueError, match="no bundled spec is called 'rmsnrom': did you mean rmsnorm"):
        normgen.load("rmsnrom")
    with pytest.raises(ValueError, match="`normgen list`"):
        normgen.load("zzz")
    with pytest.raises(FileNotFoundError, match=r"missing\.norm"):
        normgen.load(str(tmp_path / "missing.norm"))
    with pytest.raises(TypeError, match="expected a path, a bundled name or a spec's text, got int"):
        normgen.load(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "norm a b", "norm a\noutput y = .norm"])
def test_faults_of_a_spec_are_spec_errors(text: str) -> None:
    for function in (normgen.load, normgen.compile_spec):
        with pytest.raises(normgen.SpecError):
            function(text)


def test_attrs_given_at_load_are_folded_and_stay_so() -> None:
    norm = normgen.load(SPEC, eps=0.25, power=4)
    assert dict(norm.package.folded) == {"eps": 0.25, "power": 4} and norm.package.attrs == ()
    x = np.zeros((0, 8), np.float32)
    norm.forward(x, eps=0.25)
    with pytest.raises(TypeError, match=r"eps was fixed to 0\.25"):
        norm.forward(x, eps=0.5)
    with pytest.raises(TypeError, match="power is an int attr"):
        norm.forward(x, power=4)
    for attrs in ({"eps": -1.0}, {"power": 2.5}, {"epsilon": 1.0}, {"eps": float("nan")}):
        with pytest.raises(normgen.SpecError):
            normgen.load(SPEC, **attrs)
    with pytest.raises(ValueError, match="eps must be >= 0"):
        normgen.load(SPEC).forward(x, eps=-1)


@pytest.mark.parametrize("attrs", [{"eps": 0.25}, {"power": 4}])
def test_a_generated_module_holds_the_package_that_load_uses(attrs: dict[str, Any]) -> None:
    text = normgen.compile_spec(SPEC, attrs)
    module = ModuleType("generated")
    exec(text, module.__dict__)
    assert repr(normgen.load(SPEC, **attrs).package) == repr(module.NORM.package)
    assert text == normgen.compile_spec(SPEC, attrs)
    assert module.SPEC == SPEC and module.__doc__ == "Divides rows by their root mean square."


# One of each family of kernels, one with states, and one of 8 bits; `make test-thorough` has the others.
FEW = ("layernorm", "dyt", "softmax2d", "batchnorm", "local_response_norm", "rmsnorm_fp8")


@pytest.mark.parametrize("name", sampled(bundled.names(), *map(bundled.names().index, FEW)))
def test_bundled_specs_compile_to_the_package_that_load_uses(name: str) -> None:
    source = bundled.read(name)
    assert source is not None
    attrs = {attr: 2 for attr in ("groups", "head_dim") if f"{attr}: int" in source.text}
    text = normgen.compile_spec(source.text, attrs)
    assert [line for line in text.splitlines() if len(line) > 110] == []
    python, kernels, _ = text.partition("constexpr ")
    assert "# What follows is what was derived" in python and kernels
    code = [line for line in python.splitlines() if not line.startswith("#")]
    assert len(code) <= 180, "the Python half is to be read"
    module = ModuleType("generated")
    exec(text, module.__dict__)
    norm = normgen.load(name, **attrs)
    assert module.NORM.backward_args == module.backward_args == norm.backward_args
    assert repr(norm.package) == repr(module.NORM.package)  # whose texts are made in other ways


def test_the_reference_is_called_like_the_norm() -> None:
    norm = normgen.load("layernorm")
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(shape) for shape in ((2, 3, 8), 8, 8))
    result = norm.reference.forward(x, w, b, eps=1e-3)
    assert result._fields == ("y", "mu", "rstd") and result.mu.shape == (2, 3)
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(result.y, centred * rstd * w + b, rtol=1e-13)
    ones = np.ones_like(x)
    gradients = norm.reference.backward(ones, x, w, mu=result.mu, rstd=result.rstd, b=b)
    np.testing.assert_allclose(gradients.db, np.full(8, 6.0))
    zero = norm.reference.backward(None, x, w, result.mu, result.rstd)
    assert not zero.dx.any() and zero.dx.shape == x.shape
    with pytest.raises(TypeError, match="needs rstd"):
        norm.reference.backward(ones, x, w, result.mu)
    with pytest.raises(TypeError, match="unexpected 'z'"):
        norm.reference.forward(x, z=1)
    with pytest.raises(ValueError, match=r"D is 8 in x\[\.\.\., D\] but 7 in w\[D\]"):
        norm.reference.forward(x, w[:7])


HEAVY = ("numpy", "lark", "jinja2", "pycuda", "torch", "normgen.api", "normgen.runtime")


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_what_needs_no_compiler_imports_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert not set(HEAVY) & modules_after("import normgen\nnormgen.__version__\ndir(normgen)")
    compiler = {"lark", "jinja2", "normgen.dsl", "normgen.ir", "normgen.codegen", "normgen.kernel", "pycuda"}
    (tmp_path / "generated.py").write_text(normgen.compile_spec(SPEC), encoding="utf-8")
    done = run("compile", "rmsnorm", "--size", "D=64", "--no-verify", "-o", str(tmp_path))
    (made,) = tmp_path.glob("rmsnorm_*.py")
    assert done.exit_code == 0
    path = f"sys.path.insert(0, {str(tmp_path)!r})"
    one_shape = modules_after(f"{path}\nimport {made.stem}")
    assert not {*compiler, "normgen.api"} & one_shape and "normgen.runtime.norm" in one_shape
    # A norm, or a module, that was compiled before is in the cache.
    for code in (f"{path}\nimport generated", f"import normgen\nprint(normgen.load({SPEC!r}).package)"):
        first, second = modules_after(code), modules_after(code)
        assert {"lark", "normgen.kernel"} <= first and not compiler & second


def test_a_norm_out_of_the_cache_has_its_reference_still() -> None:
    x = np.arange(8.0).reshape(2, 4)
    first, second = normgen.load(SPEC, power=4), normgen.load(SPEC, power=4)
    assert first.package == second.package and first.package != normgen.load(SPEC).package
    for made, again in zip(first.reference.forward(x), second.reference.forward(x), strict=True):
        np.testing.assert_array_equal(made, again)


def test_values_of_attrs_tell_packages_apart() -> None:
    for changed in ({"eps": 1}, {"eps": np.float32(1)}, {"eps": 1.0}, {"power": np.int64(4)}):
        assert dict(normgen.load(SPEC, **changed).package.folded) == {"power": 2} | changed


def test_the_public_names() -> None:
    names = [
        "CheckFailed",
        "Simulated",
        "SpecError",
        "__version__",
        "check",
        "compile_spec",
        "load",
        "use_driver",
    ]
    assert normgen.__all__ == names
    assert set(normgen.__all__) <= set(dir(normgen))
    assert normgen.SpecError.__module__ == "normgen.diagnostics"
    with pytest.raises(AttributeError, match="module 'normgen' has no attribute 'lod'"):
        _ = normgen.lod


@pytest.mark.parametrize("name", ["load", "nn"])
def test_without_pytorch_its_functions_say_what_to_install(name: str) -> None:
    script = f"import sys\nsys.modules['torch'] = None\nimport normgen.torch\nnormgen.torch.{name}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("normgen.torch needs PyTorch: pip install torch")
