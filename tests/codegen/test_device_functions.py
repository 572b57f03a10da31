"""Device functions: files that include what they call, and texts that include only what they need."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from normgen.cache import Cache
from normgen.devices.cuda.executor import CudaExecutor
from normgen.devices.host.compile import SHIM, find_compiler
from normgen.errors import ToolchainMissing
from normgen.kernel.headers import declared, files, needed, outermost
from normgen.package import device_functions
from normgen.package.device_functions import file_text, included, includes, inlined
from tests.codegen.norms import packaged, source_of
from tests.fakes.driver import FakeDriver

# Words of a file that are names of its own, within functions or templates, and of another file outside.
LOCAL = {
    "async.cuh": {"word_t"},
    "math.cuh": {"smaller"},
    "vector.cuh": {"L2Hints", "word_t"},
    "realigned.cuh": {"L2Hints"},
    "resident/resident.cuh": {"part_of"},
    "windows/windows.cuh": {"turn"},
    "windows/pixels.cuh": {"turn"},
}


def words(text: str, local: set[str]) -> str:
    """A file without what it includes and declares, and without names of its own."""
    mine = declared(text) | local
    return re.sub(r"\b(\w+)\b", lambda found: "" if found[1] in mine else found[1], text)


@pytest.mark.parametrize("name", files())
def test_a_file_includes_the_files_that_it_calls(name: str) -> None:
    text = file_text(name)
    # A second one would stay where files are inlined, and nvcc warns of it.
    assert text.startswith("#pragma once\n") and text.count("#pragma once") == 1
    assert included(text) == tuple(n for n in needed(words(text, LOCAL.get(name, set()))) if n != name)


def test_every_file_compiles_alone() -> None:
    try:
        compiler = find_compiler()
    except ToolchainMissing as missing:
        pytest.skip(str(missing))
    shim = ["-I", str(SHIM), "-I", str(SHIM / "include"), "-include", str(SHIM / "simt.h")]
    command = [compiler.path, "-std=c++17", "-w", "-fsyntax-only", *shim, "-x", "c++", "-"]
    for name in files():
        done = subprocess.run(command, input=inlined(includes([name])), text=True, capture_output=True)
        assert done.returncode == 0, (name, done.stderr)


def test_each_file_is_there_once_and_after_what_it_includes(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "a.cuh": '#pragma once\n#include "normgen/b.cuh"\n#include "normgen/c.cuh"\n\nint a;\n',
        "b.cuh": '#pragma once\n#include "normgen/c.cuh"\n\nint b;\n',
        "c.cuh": "#pragma once\n#include <cuda_fp16.h>\n\nint c;\n",
    }
    monkeypatch.setattr(device_functions, "file_text", texts.__getitem__)
    whole = inlined('// a kernel\n#include "normgen/b.cuh"\n#include "normgen/a.cuh"\nint d;\n')
    assert re.findall(r"int (\w);", whole) == ["c", "b", "a", "d"]
    assert "#include <cuda_fp16.h>\n" in whole and "normgen/" not in whole and "once" not in whole
    assert inlined(whole) == whole


def test_a_text_includes_what_it_calls_and_no_more() -> None:
    (kernel,) = packaged("rmsnorm").forward.strategies[0].kernels
    forms = {form.form: included(source_of(form)) for form in kernel.forms}
    for form, file in (("row_tile", "rows/row_tile.cuh"), ("cooperative", "cooperative.cuh")):
        assert file in forms[form] and file not in forms["multipass"]
    for form in packaged("rmsnorm").forward.strategies[0].kernels[0].forms:
        assert forms[form.form] == outermost(needed(source_of(form)))


def test_the_key_of_a_binary_covers_what_its_text_includes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = '#include "normgen/math.cuh"\nextern "C" __global__ void f() {}\n'
    driver, cache = FakeDriver(), Cache(tmp_path)
    CudaExecutor(0, driver, cache=cache).binary(text)
    monkeypatch.setattr(device_functions, "file_text", lambda name: "// of another version\n")
    CudaExecutor(0, driver, cache=cache).binary(text)
    compiled = [source for source, *_ in driver.compiled]
    assert (
        len(compiled) == 2 and "of another version" in compiled[1] and "of another version" not in compiled[0]
    )
