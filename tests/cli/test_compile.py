"""`normgen compile`: which files it writes, and which it does not touch."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from normgen.cli import exits, files
from normgen.devices.cuda.compile import find_nvcc
from normgen.devices.cuda.nvrtc import find_nvrtc
from normgen.errors import ToolchainMissing
from tests.cli.commands import ROOT, SPEC, run


def test_compile_writes_a_module_that_imports() -> None:
    done = run("compile", "rmsnorm.norm", "-o", "made/here")
    assert done.stdout == ""
    path = Path("made/here/rmsnorm.py")
    found = importlib.util.spec_from_file_location("compiled_by_the_command", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    assert callable(module.forward) and callable(module.backward)
    assert "mean[D](x^2)" in path.read_text()


def test_the_same_spec_gives_the_same_bytes_wherever_it_is(tmp_path: Path) -> None:
    run("compile", "rmsnorm.norm", "-o", "one")
    elsewhere = tmp_path / "some" / "where"
    elsewhere.mkdir(parents=True)
    shutil.copy("rmsnorm.norm", elsewhere)
    run("compile", str(elsewhere / "rmsnorm.norm"), "-o", "two")
    # Another process hashes and orders sets differently.
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-m", "normgen", "compile", "rmsnorm.norm", "-o", "three"],
        env=environment,
        check=True,
    )
    texts = {Path(where, "rmsnorm.py").read_bytes() for where in ("one", "two", "three")}
    assert len(texts) == 1
    assert str(tmp_path).encode() not in texts.pop()


def test_check_compares_and_writes_nothing() -> None:
    run("compile", "rmsnorm.norm")
    path = Path("rmsnorm.py")
    before = path.read_text()
    assert run("compile", "rmsnorm.norm", "--check").exit_code == exits.OK
    path.write_text(before + "# changed\n")
    done = run("compile", "rmsnorm.norm", "--check")
    assert done.exit_code == exits.FAULTS and "would change" in done.stderr
    assert path.read_text() == before + "# changed\n"
    assert run("compile", "rmsnorm.norm", "--check", "--attr", "eps=1e-3").exit_code == exits.FAULTS


@pytest.mark.parametrize(("emit", "name"), [("module", "rmsnorm.py"), ("cu", "rmsnorm.cu")])
def test_files_of_others_are_refused(emit: str, name: str) -> None:
    arguments = ["compile", "rmsnorm.norm", "--emit", emit]
    path = Path(name)
    path.write_text("print('a user wrote this')\n")
    done = run(*arguments)
    assert done.exit_code == exits.USAGE and "--force" in done.stderr
    assert path.read_text() == "print('a user wrote this')\n"
    assert run(*arguments, "--force").exit_code == exits.OK
    assert "a user" not in path.read_text()
    # From here on it is normgen's own, and may be replaced.
    path.write_text(path.read_text() + "\n")
    assert run(*arguments).exit_code == exits.OK
    done = run(*arguments)
    assert "up to date" in done.stderr


def test_one_refused_file_leaves_the_others_unwritten() -> None:
    Path("rmsnorm.cu").write_text("mine")
    assert run("compile", "rmsnorm.norm", "--emit", "module", "--emit", "cu").exit_code == exits.USAGE
    assert not Path("rmsnorm.py").exists()


def test_a_directory_in_the_way_is_refused_even_with_force() -> None:
    Path("rmsnorm.py").mkdir()
    assert run("compile", "rmsnorm.norm", "--force").exit_code == exits.USAGE


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target.txt"
    target.write_text("mine")
    Path("out").mkdir()
    Path("out/rmsnorm.py").symlink_to(target)
    assert run("compile", "rmsnorm.norm", "-o", "out").exit_code == exits.USAGE
    assert run("compile", "rmsnorm.norm", "-o", "out", "--force").exit_code == exits.OK
    assert target.read_text() == "mine" and not Path("out/rmsnorm.py").is_symlink()


def test_a_write_that_fails_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    run("compile", "rmsnorm.norm")
    before = Path("rmsnorm.py").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "rmsnorm.py")

    monkeypatch.setattr(Path, "replace", full)
    done = run("compile", "rmsnorm.norm", "--attr", "eps=1e-3", "--no-verify")
    assert done.exit_code == exits.USAGE and "No space left" in done.stderr
    assert Path("rmsnorm.py").read_text() == before
    assert not [path for path in Path().iterdir() if path.name.startswith(".rmsnorm")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_takes_no_files() -> None:
    Path("closed").mkdir(mode=0o500)
    done = run("compile", "rmsnorm.norm", "-o", "closed")
    assert done.exit_code == exits.USAGE and "cannot write" in done.stderr


def test_output_names_stay_in_their_directory() -> None:
    for name in ("../x", "/x", "a/b", "", ".", ".."):
        with pytest.raises(AssertionError):
            files.Output(name, b"").path(Path())


def test_new_files_have_the_usual_permissions() -> None:
    run("compile", "rmsnorm.norm")
    Path("usual").write_text("")
    assert Path("rmsnorm.py").stat().st_mode == Path("usual").stat().st_mode


def test_stdin_and_stdout() -> None:
    done = run("compile", "-", "-o", "-", stdin=SPEC)
    assert done.exit_code == exits.OK and done.stderr == ""
    assert done.stdout.encode() == _compiled("rmsnorm.norm")
    assert run("compile", "-", "-o", "-", stdin=b"\xef\xbb\xbf" + SPEC.encode()).exit_code == exits.OK
    done = run("compile", "-", "-o", "-", stdin="norm")
    assert done.exit_code == exits.FAULTS and "<stdin>:1:" in done.stderr


def test_large_files_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen.cli import options

    done = run("compile", "-", stdin="#" * 10_000_000)
    assert done.exit_code == exits.FAULTS and "error[size]" in done.stderr and len(done.stderr) < 2000
    monkeypatch.setattr(options, "LARGEST_SPEC", 1_000_000)
    done = run("compile", "-", stdin="#" * 1_000_001)
    assert done.exit_code == exits.USAGE and "larger than 1 MB" in done.stderr


def _compiled(spec: str) -> bytes:
    run("compile", spec, "-o", "compiled")
    return Path("compiled", Path(spec).with_suffix(".py").name).read_bytes()


@pytest.mark.parametrize(
    ("compiler", "find"),
    [
        pytest.param("nvcc", find_nvcc, marks=pytest.mark.nvcc, id="nvcc"),
        pytest.param("nvrtc", find_nvrtc, marks=pytest.mark.nvrtc, id="nvrtc"),
    ],
)
def test_kernels_compile_ahead_of_time(
    compiler: str, find: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        find()
    except ToolchainMissing as reason:
        pytest.skip(str(reason))
    monkeypatch.setenv("NORMGEN_COMPILER", compiler)
    arguments = ["compile", "rmsnorm.norm", "--size", "D=512", "--arch", "sm_90"]
    assert run(*arguments, "--emit", "ptx", "-o", "made").exit_code == exits.OK
    made = {path.name: path.read_text() for path in Path("made").iterdir()}
    assert len(made) == 3 and all(name.endswith(".sm_90.ptx") for name in made)
    for name, text in made.items():
        assert f".entry {name.partition('.')[0]}(" in text and ".target sm_90" in text
    assert run(*arguments, "--emit", "ptx", "-o", "made", "--check").exit_code == exits.OK


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--emit", "cubin"], "--size D=4096"),
        (["--size", "D=512"], "--emit ptx and cubin"),
        (["--emit", "ptx", "--size", "D=512", "--arch", "sm90"], "sm_90"),
    ],
)
def test_what_ahead_of_time_needs(arguments: list[str], said: str) -> None:
    done = run("compile", "rmsnorm.norm", *arguments)
    assert done.exit_code == exits.USAGE and said in done.stderr


def test_ahead_of_time_without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen.devices.cuda import compile as nvcc

    def missing() -> str:
        raise ToolchainMissing("compiling a kernel needs nvcc")

    monkeypatch.setattr(nvcc, "find_nvcc", missing)
    monkeypatch.setenv("NORMGEN_COMPILER", "nvcc")
    done = run("compile", "rmsnorm.norm", "--emit", "cubin", "--size", "D=512")
    assert (done.exit_code, done.stderr) == (exits.TOOLCHAIN, "compiling a kernel needs nvcc\n")


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that uses an index which it does not have."""
    from normgen.verify import texts

    sound = texts.texts

    def spoiled(*about: Any) -> dict[str, str]:
        found = dict(sound(*about))
        entry = next(name for name in found if "backward" in name)
        found[entry] = found[entry].rstrip()[:-1] + "    int unused = at_C;\n}\n"
        return found

    monkeypatch.setattr(texts, "texts", spoiled)


@pytest.mark.parametrize("emit", ["module", "cu"])
def test_a_text_that_does_not_compile_is_not_written(emit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    done = run("compile", "rmsnorm.norm", "--emit", emit, "-o", "made")
    assert (done.exit_code, done.stdout) == (exits.INTERNAL, "")
    line, *request = done.stderr.splitlines()
    assert "report it" in " ".join(request)
    assert line.startswith("internal error: generated code does not compile: rmsnorm_backward_")
    assert "at_C" in line and not Path("made").exists()
    assert run("compile", "rmsnorm.norm", "--emit", emit, "-o", "made", "--no-verify").exit_code == exits.OK
    assert list(Path("made").iterdir())


def test_without_a_compiler_texts_are_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spoil(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NORMGEN_CXX", raising=False)
    done = run("compile", "rmsnorm.norm", "-o", "made")
    assert done.exit_code == exits.OK and Path("made/rmsnorm.py").exists()
    assert "not compiled before they were written: running kernels on the host needs" in done.stderr
