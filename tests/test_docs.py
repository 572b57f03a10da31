"""The documents hold what they say: commands run, Python blocks run, and generated parts are up to date.

Blocks of a document run in order and share a folder, a shell and a Python session. The folder is empty,
but documents at the top have what `make` needs. In a `console` block, the lines after a command are its
output, compared where there are any.
A block that starts with `norm` is a spec, and goes into a file, as does a Python block whose first line names
one. A comment, `<!-- specs -->` or `<!-- explain: rmsnorm --emit ir -->`, stands before each generated part,
which `--update-golden` writes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from normgen.cli import commands
from normgen.cli.listing import describe
from normgen.diagnostics import Source
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.ir.grad import backward
from normgen.package.records import dims_text
from normgen.verify.draw import attr_choices
from tests.cli.commands import run
from tests.conftest import HAS_TORCH

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
# What `make` needs of a checkout: no specs, which whoever installed normgen has by their names only.
FOR_MAKE = ("Makefile", "pyproject.toml", "tools")
ANSWER = "answer:"
# A Python session that is given snippets, one JSON string per line.
SESSION = f"""
import json, os, sys, traceback
sys.path.insert(0, "")
names = {{"__name__": "__main__"}}
for line in sys.stdin:
    try:
        exec(json.loads(line), names)
        print("{ANSWER} ok", flush=True)
    except BaseException:
        traceback.print_exc()
        print("{ANSWER} failed", flush=True)
os._exit(0)  # PyTorch takes seconds to clean up
"""
# Snippets that only `make test-torch` runs.
_OF_TORCH = re.compile(r"\b(torch|nt)\b")
# What `make test-torch` leaves to `make test`, which is run without PyTorch.
without_torch = pytest.mark.without_torch
# What a shell block may hold: it installs, builds, runs the suite itself, needs nvcc or a GPU; not run here.
ELSEWHERE = ("make", "pip", "normgen", "python", "ncu")


def blocks(document: Path, *languages: str) -> list[str]:
    found = BLOCK.findall(document.read_text(encoding="utf-8"))
    return [text for language, text in found if language in languages]


def each_document() -> Iterator[object]:
    """Every document as a parameter."""
    for path in DOCUMENTS:
        of_torch = any(map(_OF_TORCH.search, blocks(path, "python")))
        yield pytest.param(path, id=str(path.relative_to(ROOT)), marks=() if of_torch else without_torch)


@pytest.fixture(params=each_document())
def document(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def page(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A reader of a document, in a folder of their own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in FOR_MAKE if document.parent == ROOT else ():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NORMGEN_TUNED", "0")
    with Page(folder) as page:
        yield page


@pytest.mark.kernels
def test_commands_and_snippets_run_in_order(document: Path, page: Page) -> None:
    for language, text in BLOCK.findall(document.read_text(encoding="utf-8")):
        match language:
            case "console":
                for line, wanted in commands_of(text):
                    page.command(line, wanted)
            case "python" if HAS_TORCH or not _OF_TORCH.search(text):
                page.python(text)
            case "":
                page.spec(text)


class Page:
    """What a reader has who follows a document: a folder, a shell and a Python session.

    The environment of the tests stands in for the `.venv` that `make` would install, and this process for the
    command.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        binaries = folder / ".venv" / "bin"
        binaries.mkdir(parents=True)
        (binaries / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (binaries / "python").chmod(0o755)
        for name in ("bin/activate", ".installed", ".installed-dev"):
            (binaries.parent / name).touch()

    def __enter__(self) -> Page:
        self._session = subprocess.Popen(
            [sys.executable, "-c", SESSION], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._session.communicate()

    def command(self, line: str, wanted: str) -> None:
        """Run a line of a shell; its output must be as the document shows it, where it does."""
        words = shlex.split(line, comments=True)
        if words[0] == "normgen":
            with pytest.MonkeyPatch.context() as patch:
                if words[1] == "cache":  # what it removes is not that of whoever runs the tests
                    patch.setenv("NORMGEN_CACHE_DIR", str(self.folder / "cache"))
                made = run(*words[1:])
            code, printed = made.exit_code, made.stderr + made.stdout
        else:
            line = re.sub(r"^make test\b", "make --dry-run test", line)  # this is one of its tests
            done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
            code, printed = done.returncode, done.stderr + done.stdout
        assert code == (1 if "error[" in wanted else 0), f"$ {line}\n{printed}"
        if wanted:
            assert printed.strip() == wanted.strip(), f"$ {line}\n{printed}"

    def python(self, text: str) -> None:
        """Run a snippet in the session, after those before it; or save it, where it is a file."""
        if found := FILE.match(text):
            (self.folder / found[1]).write_text(text)
            return
        assert self._session.stdin is not None and self._session.stdout is not None
        self._session.stdin.write(json.dumps(text) + "\n")
        self._session.stdin.flush()
        printed = []
        for line in self._session.stdout:
            if line.startswith(ANSWER):
                assert line.strip() == f"{ANSWER} ok", "".join(printed)
                return
            printed.append(line)
        raise AssertionError("".join(printed))

    def spec(self, text: str) -> None:
        """Save a spec that the document shows under its own name, unless it is there."""
        if found := re.match(r"norm (\w+)", text):
            path = self.folder / f"{found[1]}.norm"
            if not path.exists():
                path.write_text(text)


def commands_of(block: str) -> list[tuple[str, str]]:
    """(command, its output as the document shows it) of a console block."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


@without_torch
def test_what_is_not_run_is_right(document: Path) -> None:
    """Shell blocks hold what is not for a test to run: then it is a target of the Makefile, or installs.
    Links lead somewhere, and specs parse.
    """
    text = document.read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in "\n".join(blocks(document, "sh", "bash", "shell")).splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] in ELSEWHERE, line
            if words[0] == "normgen":
                elsewhere = {"cubin", "header"} & {*words} or words[1] in ("bench", "tune", "doctor")
                assert elsewhere, f"{line}: put what can be run into a console block"
                commands.commands[words[1]].make_context(words[1], words[2:])
            assert words[0] != "make" or words[1] in targets, line
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", re.sub(r"`[^`]*`", "", BLOCK.sub("", text))):
        assert "://" in target or (document.parent / target).exists(), target
    for text in blocks(document, "", "norm"):
        if text.startswith("norm ") and "^^^" not in text:
            parse(Source(document.name, text))


@without_torch
def test_every_spec_is_described() -> None:
    """By name, in one of the tables of its page, and none that is not there."""
    text = (ROOT / "docs" / "specs.md").read_text(encoding="utf-8").partition("## What is saved")[0]
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == {path.stem for path in (ROOT / "specs").glob("*.norm")}


# ------------------------------------------------------------------------------------- what is generated


def spec_table(_: str) -> str:
    """The bundled specs as a table."""
    lines = ["| spec | what it is | needs |", "|---|---|---|"]
    for path in sorted((ROOT / "specs").glob("*.norm")):
        row = describe(path.stem)
        needs = ", ".join(f"`{attr}`" for attr in row.required)
        lines.append(f"| [{row.name}](../specs/{path.name}) | {row.doc} | {needs} |")
    return "\n".join(lines)


def saves_table(_: str) -> str:
    """What each bundled spec saves, and what its backward reads."""
    lines = ["| spec | saves | the backward reads |", "|---|---|---|"]
    for path in sorted((ROOT / "specs").glob("*.norm")):
        source = Source(path.name, path.read_text(encoding="utf-8"))
        definition = load_definition(source, attr_choices(parse(source), {})[0])
        kept = [r.tensor for r in definition.program.results if r.kept]
        saves = ", ".join(f"`{tensor.name}[{dims_text(tensor.dims)}]`" for tensor in kept)
        reads = ", ".join(f"`{tensor.name}`" for tensor in backward(definition).operands)
        lines.append(f"| `{path.stem}` | {saves or 'nothing'} | {reads} |")
    return "\n".join(lines)


def spec_text(name: str) -> str:
    """A bundled spec, whole."""
    return "```\n" + (ROOT / "specs" / f"{name.strip()}.norm").read_text() + "```"


def explained(command: str) -> str:
    """What `normgen explain` prints: `SPEC OPTIONS`, or with ` ... START` up to a line that starts so."""
    options, _, end = command.partition(" ... ")
    lines = _printed(options)
    last = next((n for n, line in enumerate(lines) if end and line.startswith(end)), len(lines))
    return "\n".join(["```text", *lines[:last]]).rstrip() + "\n```"


def kernel_lines(command: str) -> str:
    """`SPEC OPTIONS | TEXT`: the lines of a page that have the text, without their indentation."""
    options, _, wanted = command.partition(" | ")
    lines = [line.strip() for line in _printed(f"{options} --emit cuda") if wanted in line]
    return "\n".join(["```cpp", *lines, "```"])


def kernel_text(options: str) -> str:
    """The kernel of a page, from the comment above it to its end."""
    lines = _printed(f"{options} --emit cuda")
    head = next(n for n, line in enumerate(lines) if "__global__" in line)
    first = max(n for n in range(head) if not lines[n].startswith("//")) + 1
    last = lines.index("}", head)
    return "\n".join(["```cpp", *lines[first : last + 1], "```"])


def _printed(options: str) -> list[str]:
    done = run("explain", *options.split())
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


PARTS: dict[str, tuple[Callable[[str], str], str]] = {
    # comment -> (what makes the part, a pattern of what is there now)
    "specs": (spec_table, r"(?:\|.*\n)*"),
    "saves": (saves_table, r"(?:\|.*\n)*"),
    "spec": (spec_text, r"```\n(?:(?!```).*\n)*```\n"),
    "explain": (explained, r"```text\n(?:(?!```).*\n)*```\n"),
    "lines": (kernel_lines, r"```cpp\n(?:(?!```).*\n)*```\n"),
    "kernel": (kernel_text, r"```cpp\n(?:(?!```).*\n)*```\n"),
}


def generated(text: str) -> str:
    """A document with its generated parts made anew."""
    for kind, (make, pattern) in PARTS.items():
        comment = rf"(<!-- {kind}(?:: (.+?))? -->\n)\n?(?:{pattern})?"  # it may be there for the first time
        text = re.sub(comment, lambda found, make=make: f"{found[1]}\n{make(found[2] or '')}\n", text)
    return text


@without_torch
def test_generated_parts_are_up_to_date(document: Path, request: pytest.FixtureRequest) -> None:
    before = document.read_text(encoding="utf-8")
    after = generated(before)
    if request.config.getoption("--update-golden"):
        document.write_text(after, encoding="utf-8")
    else:
        assert before == after, f"python -m pytest {request.node.nodeid} --update-golden writes it"
