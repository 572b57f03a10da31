"""Device functions: texts have the declarations of what they call, and no others."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from normgen.cache import Cache
from normgen.devices.cuda.executor import CudaExecutor
from normgen.devices.host.compile import SHIM, find_compiler
from normgen.errors import ToolchainMissing
from normgen.package import device_functions
from normgen.package.device_functions import HEAD, declarations, functions_of, inlined
from tests.codegen.device_files import read_anew
from tests.codegen.norms import packaged, source_of
from tests.fakes.driver import FakeDriver

INCLUDES = re.compile(r"#include .*\n")
FILES = {
    "a.cuh": """#pragma once
#include "normgen/b.cuh"

// ---- Pairs ----
// Of numbers.

struct Pair {
    int first;
    float second;
};

// Both parts,
// added up.
template <class T = Pair,
          bool WHOLE = (1 > 0)>
__device__ __forceinline__ float added(const Pair& pair) { return sum(pair.first, pair.second); }
__device__ __forceinline__ float unused(Pair pair) { return pair.second; }
""",
    "b.cuh": """#pragma once

constexpr int FIRST = 1, SECOND = 2;

template <class T> struct Size { static constexpr int VALUE = 4; };
template <> struct Size<__half> { static constexpr int VALUE = 2; };
template <> struct Size<__nv_bfloat16> { static constexpr int VALUE = 2; };

#if defined(NORMGEN_HOST)
__device__ float sum(float a, float b) { return a + b; }  // } not a brace
#else
__device__ float sum(float a, float b) { return a + b + Size<float>::VALUE; }
#endif
""",
}
KERNEL = """float f(Own* own) {  // not unused
    return added(Pair{1, 2.f}) + own->unused + own[0].unused + Own::unused + Own<1>::unused;
}
"""


def test_every_declaration_compiles_with_what_it_names() -> None:
    """In a namespace each, in one text."""
    try:
        compiler = find_compiler()
    except ToolchainMissing as missing:
        pytest.skip(str(missing))
    lines = dict[str, None]()
    for number, each in enumerate(declarations()):
        text = functions_of([" ".join((*each.names, *each.needs))])
        lines[f"namespace of_{number} {{\n{INCLUDES.sub('', text)}}}\n"] = None
    whole = "".join(("#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n", *lines))
    shim = ["-I", str(SHIM), "-I", str(SHIM / "include"), "-include", str(SHIM / "simt.h")]
    command = [compiler.path, "-std=c++17", "-w", "-fsyntax-only", *shim, "-x", "c++", "-"]
    done = subprocess.run(command, input=whole.replace(" ::", " "), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[:2000]


def test_a_text_has_the_declarations_of_what_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    read_anew(monkeypatch, FILES.__getitem__)
    monkeypatch.setattr(device_functions, "files", lambda: tuple(FILES))
    whole = functions_of([KERNEL])
    assert "unused" not in whole and "FIRST" not in whole and "half" not in whole
    order = ("struct Size", "float sum", "// Of numbers.", "struct Pair", "// Both parts,\n// added up.")
    assert sorted(map(whole.index, order)) == [*map(whole.index, order)]
    assert whole.count("#else") == 1 and "normgen/" not in whole and "once" not in whole
    other = functions_of([KERNEL, "int g() { return SECOND + Size<__half>::VALUE; }\n"])
    assert "FIRST = 1" in other and "Size<__half>" in other and "bfloat16" not in other
    assert other.startswith(f"{HEAD}#include <cuda_fp16.h>\n")
    assert inlined(KERNEL) == inlined(inlined(KERNEL)) == f"{whole}\n{KERNEL}"


def test_a_text_has_what_it_calls_and_no_more() -> None:
    (kernel,) = packaged("rmsnorm").forward.strategies[0].kernels
    whole = {form.form: inlined(source_of(form)) for form in kernel.forms}
    for form, name in (("row_tile", "struct RowTile "), ("cooperative", "struct CooperativeRow ")):
        assert name in whole[form] and name not in whole["multipass"]


def test_the_key_of_a_binary_covers_what_its_text_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver, cache = FakeDriver(), Cache(tmp_path)
    for version in (1, 2):
        read_anew(monkeypatch, lambda name, v=version: f"int called() {{ return {v}; }}\nint other() {{}}\n")
        CudaExecutor(0, driver, cache=cache).binary('extern "C" __global__ void f() { called(); }\n')
    compiled = [source for source, *_ in driver.compiled]
    assert ["return 1" in each for each in compiled] == [True, False] and "other" not in compiled[0]
