"""Specs under names that kernel texts have for other things compute what they do under their own."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import normgen
from normgen.codegen.package import package
from normgen.devices.cuda.compile import find_nvcc
from normgen.devices.host.compile import SHIM
from normgen.diagnostics import Source
from normgen.kernel.names import PREFIXES, RESERVED
from normgen.package.device_functions import functions_of
from tests.codegen.norms import source_of
from tests.codegen.renaming import defined, renamed, spec_of
from tests.verify.subjects import F32, PLAIN, case_of, prove, subject_of

# By spec, names for what it names: of lengths, positions and strides, of locals, of what operands are called.
NAMINGS: list[tuple[str, dict[str, str]]] = [
    ("rmsnorm", {"eps": "x_ptr", "w": "wA", "x": "wa", "rstd": "exchange", "y": "size"}),
    ("layernorm", {"eps": "at_rest", "w": "int", "b": "b_ptr", "mu": "moments", "rstd": "column"}),
    ("layernorm", {"eps": "w_stride_rest", "x": "dy_sum", "mu": "each", "rstd": "value_1", "D": "LENGTH"}),
    ("softmax", {"x": "k", "e": "i", "y": "at", "D": "VEC"}),
    ("groupnorm", {"eps": "size_G", "w": "at_G", "b": "x_stride_B", "mu": "segment", "C": "THREADS"}),
    ("batchnorm_channels_last", {"eps": "size_C", "w": "lane", "b": "team", "momentum": "at_C"}),
    ("local_response_norm", {"alpha": "size_C", "beta": "at_C", "k": "from_C", "x": "slot", "d": "element"}),
    ("rmsnorm2d", {"eps": "size_C", "x": "chunk", "w": "column", "rstd": "member", "y": "tile"}),
    ("qk_norm", {"q": "q_t", "k": "q", "eps": "size_K", "wq": "rows", "rq": "rk", "rk": "lines"}),
]


@pytest.mark.parametrize(("name", "names"), NAMINGS)
def test_results_under_other_names(name: str, names: dict[str, str]) -> None:
    text, attrs = spec_of(name)
    assert names.keys() <= set(re.findall(r"\w+", text))
    given = {names.get(key, key): value for key, value in attrs.items()}
    subject = subject_of(Source("spec.norm", renamed(text, names)), given)
    prove(subject, case_of(subject, 6, 40, F32), PLAIN)


@pytest.mark.parametrize(
    ("name", "word"), [("x", "result"), ("w", "forward"), ("eps", "object"), ("rstd", "d")]
)
def test_generated_modules_pass_arguments_on_under_their_names(name: str, word: str) -> None:
    module: dict[str, Any] = {"__name__": "generated"}
    exec(normgen.compile_spec(renamed(spec_of("rmsnorm")[0], {name: word})), module)

    def passed(*arrays: object, **named: object) -> tuple[tuple[object, ...], dict[str, object]]:
        return arrays, named

    module["NORM"] = SimpleNamespace(forward=passed, backward=passed)
    for direction in ("forward", "backward"):
        given = {parameter: object() for parameter in inspect.signature(module[direction]).parameters}
        arrays, named = module[direction](**given)
        assert dict(zip(module[f"{direction}_args"], arrays, strict=True)) | named == given


# ------------------------------------------------------------------------------------------------ compilers


def output_of(command: list[str], source: Path) -> str:
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


def check_library(
    source: Path, header: str, preprocess: list[str], macros: list[str], compiler: list[str]
) -> None:
    """What the compiler and a header define is reserved, as far as a user's name may become a macro's, or an
    operand's alias be that of a type."""
    source.write_text(header)
    found = set(re.findall(r"^#define ([a-z]\w*)", output_of(macros, source), re.MULTILINE))
    assert found
    lacking = {name for name in found if not name.startswith(PREFIXES)} - RESERVED
    assert not lacking, sorted(lacking)
    types = set(re.findall(r"\b[a-z]\w*_t\b", output_of(preprocess, source)))
    assert {"size_t", "int8_t"} <= types
    free = sorted(name for name in types - RESERVED if not name.startswith(PREFIXES))
    source.write_text(header + "".join(f"using {name} = float;\n" for name in free))
    output_of(compiler, source)


HEADERS = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cuda_fp8.h>\n"
# Of their packages the device functions are all there are.
PACKAGES = (
    "layernorm",
    "groupnorm",
    "batchnorm_channels_last",
    "local_response_norm",
    "rmsnorm2d",
    "rmsnorm_fp8",
)


@pytest.mark.nvcc
def test_what_nvcc_defines_is_reserved(tmp_path: Path) -> None:
    command = [find_nvcc(), "-std=c++17", "-arch", "sm_90"]
    compiler = [*command, "--ptx", "-o", str(tmp_path / "headers.ptx")]
    preprocess = [*command, "-E"]
    check_library(tmp_path / "headers.cu", HEADERS, preprocess, [*preprocess, "-Xcompiler", "-dM"], compiler)


def test_what_the_host_compiler_and_device_functions_define_is_reserved(tmp_path: Path) -> None:
    path = shutil.which("g++") or shutil.which("clang++")
    if path is None:
        pytest.skip("what a C++ compiler defines was not looked at: there is none")
    shim = ["-I", str(SHIM), "-I", str(SHIM / "include"), "-include", str(SHIM / "simt.h")]
    command = [path, "-std=c++17", "-w", *shim]
    preprocess, check = [*command, "-E"], [*command, "-fsyntax-only"]
    made = [package(defined(*spec_of(name), {})) for name in PACKAGES]
    passes = [each for one in made for each in (one.forward, one.backward) if each is not None]
    functions = functions_of(source_of(f) for one in passes for kernel in one.kernels for f in kernel.forms)
    check_library(tmp_path / "kernel.cpp", functions, preprocess, [*preprocess, "-dM"], check)
