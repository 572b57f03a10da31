"""`normgen compile`: which files it writes, and which it does not touch."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import Result

from normgen.cli import exits, options
from normgen.cli.compile import SHAPE_OPTIONS, compile_command
from normgen.devices import executors
from normgen.devices.cuda import compile as nvcc
from normgen.devices.cuda.toolchains import COMPILERS
from normgen.errors import ToolchainMissing
from normgen.verify import texts
from tests.cli.commands import SPEC, run
from tests.counting import entered


def compiled(*arguments: str, code: int = exits.OK) -> Result:
    """A compilation whose texts no compiler looks at: it ends with this code."""
    done = run("compile", *arguments, "--no-verify")
    assert done.exit_code == code, done.output
    return done


def test_the_same_spec_gives_the_same_module_wherever_it_is(tmp_path: Path) -> None:
    assert compiled("rmsnorm.norm", "-o", "made/here").stdout == ""
    text = Path("made/here/rmsnorm.py").read_text()
    module = ModuleType("compiled_by_the_command")
    exec(text, module.__dict__)
    assert callable(module.forward) and callable(module.backward)
    assert "mean[D](x^2)" in text and str(tmp_path) not in text
    elsewhere = tmp_path / "some" / "where"
    elsewhere.mkdir(parents=True)
    shutil.copy("rmsnorm.norm", elsewhere)
    compiled(str(elsewhere / "rmsnorm.norm"), "-o", "two")
    assert Path("two/rmsnorm.py").read_text() == text
    done = run("compile", "-", "-o", "-", stdin=SPEC)
    assert (done.exit_code, done.stdout, done.stderr) == (exits.OK, text, "")
    marked = run("compile", "-", "-o", "-", "--no-verify", stdin=b"\xef\xbb\xbf" + SPEC.encode())
    assert marked.exit_code == exits.OK
    done = run("compile", "-", "-o", "-", stdin="norm")
    assert done.exit_code == exits.FAULTS and "<stdin>:1:" in done.stderr


def test_check_compares_and_writes_nothing() -> None:
    compiled("rmsnorm.norm")
    path = Path("rmsnorm.py")
    assert path.stat().st_mode == Path("rmsnorm.norm").stat().st_mode, "the usual permissions"
    changed = path.read_text() + "# changed\n"
    compiled("rmsnorm.norm", "--check")
    compiled("rmsnorm.norm", "--check", "--attr", "eps=1e-3", code=exits.FAULTS)
    path.write_text(changed)
    assert "would change" in compiled("rmsnorm.norm", "--check", code=exits.FAULTS).stderr
    assert path.read_text() == changed


@pytest.mark.parametrize(("emit", "name"), [("module", "rmsnorm.py"), ("cu", "rmsnorm.cu")])
def test_files_of_others_are_refused(emit: str, name: str) -> None:
    path = Path(name)
    path.write_text("print('a user wrote this')\n")
    done = compiled("rmsnorm.norm", "--emit", "module", "--emit", "cu", code=exits.USAGE)
    assert "--force" in done.stderr and path.read_text() == "print('a user wrote this')\n"
    assert len(list(Path().glob("rmsnorm.[pc]*"))) == 1, "nor is the other file written"
    arguments = ["rmsnorm.norm", "--emit", emit]
    compiled(*arguments, "--force")
    assert "a user" not in path.read_text()
    # From here on it is normgen's own, and may be replaced.
    path.write_text(path.read_text() + "\n")
    compiled(*arguments)
    assert "up to date" in compiled(*arguments).stderr


def test_what_is_no_file_is_not_written_to(tmp_path: Path) -> None:
    target = tmp_path / "target.txt"
    target.write_text("mine")
    link = Path("rmsnorm.py")
    link.symlink_to(target)
    compiled("rmsnorm.norm", code=exits.USAGE)
    compiled("rmsnorm.norm", "--force")
    assert target.read_text() == "mine" and not link.is_symlink()
    Path("out/rmsnorm.py").mkdir(parents=True)
    compiled("rmsnorm.norm", "-o", "out", "--force", code=exits.USAGE)


def test_a_write_that_fails_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled("rmsnorm.norm")
    before = Path("rmsnorm.py").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "rmsnorm.py")

    monkeypatch.setattr(Path, "replace", full)
    done = compiled("rmsnorm.norm", "--attr", "eps=1e-3", code=exits.USAGE)
    assert "No space left" in done.stderr and Path("rmsnorm.py").read_text() == before
    assert not [path for path in Path().iterdir() if path.name.startswith(".rmsnorm")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_takes_no_files() -> None:
    Path("closed").mkdir(mode=0o500)
    assert "cannot write" in compiled("rmsnorm.norm", "-o", "closed", code=exits.USAGE).stderr


def test_a_compilation_takes_few_calls_of_functions_and_what_is_up_to_date_next_to_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    first = entered(lambda: run("compile", "rmsnorm.norm", "-o", "made"))
    assert Path("made/rmsnorm.py").exists() and first <= 290_000
    again = entered(lambda: run("compile", "rmsnorm.norm", "-o", "made"))
    checks = entered(lambda: run("compile", "rmsnorm.norm", "-o", "made", "--check"))
    assert again <= 120 and checks <= 120


def test_warnings_are_shown_of_what_is_up_to_date_too() -> None:
    Path("warns.norm").write_text(SPEC.replace("norm rmsnorm", "norm warns") + "let unused = x\n")
    first, again = (compiled("warns.norm", "-o", "made").stderr for _ in range(2))
    warning, _, _ = first.partition("wrote")
    assert "warning[unused]" in warning and again == f"{warning}made/warns.py is up to date\n"


def test_large_files_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("compile", "-", stdin="#" * 10_000_000)
    assert done.exit_code == exits.FAULTS and "error[size]" in done.stderr and len(done.stderr) < 2000
    monkeypatch.setattr(options, "LARGEST_SPEC", 1_000_000)
    done = run("compile", "-", stdin="#" * 1_000_001)
    assert done.exit_code == exits.USAGE and "larger than 1 MB" in done.stderr


@pytest.mark.parametrize(
    "compiler", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in COMPILERS]
)
def test_kernels_compile_ahead_of_time(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_COMPILER", compiler)
    arguments = ["compile", "softmax", "--size", "D=512", "--arch", "sm_90"]
    assert run(*arguments, "--emit", "ptx", "-o", "made").exit_code == exits.OK
    made = {path.name: path.read_text() for path in Path("made").iterdir()}
    told = {name: json.loads(text) for name, text in made.items() if name.endswith(".json")}
    texts = {name: text for name, text in made.items() if name.endswith(".bf16.D512.sm_90.ptx")}
    assert len(texts) == len(told) == len(made) // 2
    assert {each["binary"]["file"] for each in told.values()} == texts.keys()
    for name, text in texts.items():
        assert f".entry {name.partition('.')[0]}(" in text and ".target sm_90" in text
    assert run(*arguments, "--emit", "ptx", "-o", "made", "--check").exit_code == exits.OK


def test_what_ahead_of_time_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise ToolchainMissing("compiling a kernel needs nvcc")

    monkeypatch.setattr(nvcc, "find_nvcc", missing)
    monkeypatch.setenv("NORMGEN_COMPILER", "nvcc")
    done = run("compile", "rmsnorm.norm", "--emit", "cubin", "--size", "D=512")
    assert (done.exit_code, done.stderr) == (exits.TOOLCHAIN, "compiling a kernel needs nvcc\n")


def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that uses an index which it does not have."""
    sound = texts.texts

    def spoiled(*about: Any) -> dict[str, str]:
        found = dict(sound(*about))
        entry = next(name for name in found if "backward" in name)
        found[entry] = found[entry].rstrip()[:-1] + "    int unused = at_C;\n}\n"
        return found

    monkeypatch.setattr(texts, "texts", spoiled)


def test_a_text_that_does_not_compile_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    for emit in ("module", "cu"):
        done = run("compile", "rmsnorm.norm", "--emit", emit, "-o", "made")
        assert (done.exit_code, done.stdout) == (exits.INTERNAL, "")
        line, *request = done.stderr.splitlines()
        assert line.startswith("internal error: generated code does not compile: rmsnorm_backward_")
        assert "at_C" in line and "report it" in " ".join(request) and not Path("made").exists()
    compiled("rmsnorm.norm", "-o", "made")
    assert list(Path("made").iterdir())


def test_without_a_compiler_texts_are_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spoil(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NORMGEN_CXX", raising=False)
    done = run("compile", "rmsnorm.norm", "-o", "made")
    assert done.exit_code == exits.OK and Path("made/rmsnorm.py").exists()
    assert "without being compiled first: running kernels on the host needs" in done.stderr


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The architectures that something was compiled for, by a compiler that makes a digest of it."""
    found: list[str] = []

    def compile_ahead(source: str, arch: str, target: str) -> bytes:
        found.append(arch)
        return f"{target} for {arch}: {sha256(source.encode()).hexdigest()}".encode()

    monkeypatch.setattr(executors, "compile_ahead", compile_ahead)
    return found


def test_binaries_of_several_shapes_go_into_one_folder(assembled: list[str]) -> None:
    for size, dtype, arch in (("512", "bf16", "sm_90"), ("1024", "bf16", "sm_90"), ("512", "f32", "sm_80")):
        compiled("rmsnorm.norm", *f"--emit cubin --size D={size} --dtype {dtype} --arch {arch} -o k".split())
    names = {path.name for path in Path("k").iterdir()}
    assert {
        "rmsnorm_forward_registers.bf16.D512.sm_90.cubin",
        "rmsnorm_forward_registers.f32.D512.sm_80.json",
    } <= names
    assert {name.rpartition(".")[0] for name in names if name.endswith("cubin")} == {
        name.rpartition(".")[0] for name in names if name.endswith("json")
    }
    assert {*assembled} == {"sm_80", "sm_90"}
    # Its own are replaced, those of others are not.
    again = ["rmsnorm.norm", "--emit", "cubin", "--size", "D=512", "-o", "k"]
    compiled(*again, "--check")
    compiled(*again, "--attr", "eps=1e-3", "--direction", "forward")
    mine = Path("k/rmsnorm_forward_registers.bf16.D512.sm_90.cubin")
    mine.write_bytes(b"\x7fELF of a user")
    assert "was not written by normgen" in compiled(*again, code=exits.USAGE).stderr
    compiled(*again, "--force")


def test_a_description_says_all_that_a_launch_takes(assembled: list[str]) -> None:
    compiled("rmsnorm.norm", *["--emit", "cubin", "--size", "D=4096", "-o", "k"])
    told = {
        path.name.partition(".")[0]: json.loads(path.read_text())
        for path in Path("k").glob("*.D4096.sm_90.json")
    }
    forward = told["rmsnorm_forward_registers"]
    assert (forward["schema"], forward["dtype"], forward["sizes"]) == (1, "bf16", {"D": 4096})
    assert (
        forward["run_time_sizes"] == ["rows"] and forward["spec_sha256"] == sha256(SPEC.encode()).hexdigest()
    )
    assert forward["launch_attributes"] == {"programmatic_stream_serialization": True}
    binary = Path("k", forward["binary"]["file"]).read_bytes()
    assert forward["binary"]["sha256"] == sha256(binary).hexdigest()
    assert {each["name"]: each["shape"] for each in forward["tensors"]} == {
        "x": ["rows", "4096"], "w": ["4096"], "y": ["rows", "4096"], "rstd": ["rows"],
    }  # fmt: skip
    assert ["y", "x"] in forward["in_place"]
    types = [each["type"] for each in forward["arguments"]]
    for launch in forward["launches"]:
        assert len(launch["values"]) == len(types) and launch["scratch"] == []
        arrays = [value for value, t in zip(launch["values"], types, strict=True) if t == "pointer"]
        assert sorted(arrays) == ["rstd", "w", "x", "y"]
        assert [eval(each, {"rows": 1000}) for each in launch["grid"]] == [1000, 1, 1]
    last = told["rmsnorm_backward_second_stage"]["launches"]
    assert {(each["step"], each["steps"]) for each in last} == {(2, 2)}
    assert [each["name"] for each in last[0]["scratch"]] == ["rmsnorm_backward.dw_sum"]


def test_what_is_compiled_is_chosen(assembled: list[str]) -> None:
    for emit, least in (("cubin", 2), ("header", 1)):
        asked = ["rmsnorm.norm", "--emit", emit, "--size", "D=512", "-o", emit]
        compiled(*asked, "--direction", "forward", "--no-save")
        names = [path.name for path in Path(emit).iterdir()]
        assert len(names) >= least and all("no_saves" in n and "backward" not in n for n in names)
    text = Path("header/rmsnorm.bf16.D512.no_saves.sm_90.h").read_text()
    assert "CUdeviceptr rstd" not in text and "address of rstd, which is not there" in text
    assert "_backward" not in text and "Generated by normgen" in text
    done = compiled("softmax2d", *["--emit", "header", "--size", "W=8", "--size", "H=4"], code=exits.USAGE)
    assert "give --size" in done.stderr
    Path("one_way.norm").write_text("norm n\ninput x[..., D]: f8e4m3\noutput y[..., D]: f8e4m3 = x\n")
    done = compiled(
        "one_way.norm", *["--emit", "cubin", "--size", "D=64", "--direction", "backward"], code=exits.USAGE
    )
    assert "no backward" in done.stderr


def given(option: click.Parameter) -> list[str]:
    """An option as the command line has it, with its default where that is a value."""
    assert isinstance(option, click.Option)
    return option.opts[:1] if option.is_flag else [option.opts[0], str(option.default)]


def test_options_of_one_shape_are_refused_without_a_size() -> None:
    """Each of them, also with its default: none is ignored."""
    every = [each for each in compile_command.params if each.name in SHAPE_OPTIONS and each.name != "sizes"]
    assert len(every) == len(SHAPE_OPTIONS) - 1
    for option in map(given, every):
        for emit in ("module", "cu"):
            done = compiled("rmsnorm", *option, "--emit", emit, code=exits.USAGE)
            assert f"{option[0]} is for code of one shape: give it with --size" in done.stderr
        done = compiled("rmsnorm", *option, "--size", "D=512", "--emit", "cu", code=exits.USAGE)
        assert "--size is for code of one shape: give it with --emit" in done.stderr
    assert not [*Path().glob("rmsnorm*.*y")]
    compiled("rmsnorm", "--size", "D=512", *(word for option in map(given, every) for word in option))


def test_a_spec_is_found_without_its_suffix() -> None:
    Path("folder").mkdir()
    for name in ("mine", "folder/mine"):
        Path(f"{name}.norm").write_text(SPEC.replace("norm rmsnorm", "norm mine"))
        assert compiled(name, "-o", "-").stdout == compiled(f"{name}.norm", "-o", "-").stdout
    Path("softmax.norm").write_text("no spec")
    assert compiled("softmax", "-o", "-").stdout, "the bundled one"
    compiled("softmax.norm", code=exits.FAULTS)
