"""The wheel as it installs: what it carries, what importing it costs, and that the command works from it."""

from __future__ import annotations

import email
import json
import os
import re
import resource
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import normgen
from tools import release

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
URL = "https://forge.example/owner/normgen"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a release uploads: a source distribution of this tree, and the wheel that was built
    from it, as an installer without a wheel does it. Twine has checked both."""
    dist = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "tools.release", URL, "--out", str(dist)], ROOT)
    return dist


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (found,) = distributions.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheel and the libraries of this one."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    (site,) = (home / "lib").glob("python*/site-packages")
    # What a .pth file names is searched; the .pth files in there, such as an editable normgen's, are not.
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "libraries.pth").write_text("\n".join(sorted(libraries)) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    _run([*pip, "install", "--no-deps", "--no-index", str(wheel)])
    return home / "bin"


def _run(command: list[str], cwd: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_source_distribution_can_be_read_and_tested(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        carried = {name.partition("/")[2] for name in files.getnames()}
    folders = ("docs", "normgen", "specs", "examples", "tests", "tools", "bench")
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    wanted = {str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}
    files_at_the_top = {path.name for path in ROOT.iterdir() if path.is_file() and path.name[0] != "."}
    assert len(wanted) > 500
    assert not (wanted | files_at_the_top) - carried


def test_the_wheel_carries_every_file(wheel: Path) -> None:
    carried = set(zipfile.ZipFile(wheel).namelist())
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "normgen").rglob("*") if path.is_file()}
    specs = {f"normgen/specs/{path.name}" for path in (ROOT / "specs").glob("*.norm")}
    wanted = {name for name in package if "__pycache__" not in name} | specs
    assert len(specs) > 1
    assert {"normgen/py.typed", "normgen/dsl/norm.lark", "normgen/dsl/prelude.norm"} <= wanted
    metadata = {name for name in carried if ".dist-info/" in name}
    assert carried - metadata == wanted
    assert any(name.endswith("licenses/LICENSE") for name in metadata)


def test_an_index_shows_no_link_that_leads_nowhere(wheel: Path) -> None:
    """Links of the README are absolute, at the tag of the version, to files that are there: to pictures as
    they are, to pages as a forge shows them. The metadata name the repository."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    about = email.message_from_bytes(archive.read(name))
    urls = dict(each.split(", ") for each in about.get_all("Project-URL", []))
    assert set(urls) == {"Repository", "Documentation", "Issues", "Changelog"}
    assert all(each.startswith(URL) for each in urls.values())
    shown = about.get_payload()
    assert about["Description-Content-Type"] == "text/markdown" and isinstance(shown, str)
    text = re.sub(CODE, "", shown)
    pictures = re.findall(r'(?:src|srcset)="([^"]+)', text)
    pages = [*re.findall(r"\]\(([^)]+)\)", text), urls["Documentation"], urls["Changelog"]]
    assert len(pictures) >= 2 and len(pages) > 15 and "![" not in text
    for way, targets in (("raw", pictures), ("blob", pages)):
        for target in targets:
            assert target.startswith("https://")
            if target.startswith(URL):
                own = target.partition(f"{URL}/{way}/v{normgen.__version__}/")[2].partition("#")[0]
                assert own and (ROOT / own).is_file(), target
    supported = [each for each in about.get_all("Classifier", []) if "Python :: 3." in each]
    assert supported and about["Requires-Python"] == ">=3.10"


def test_pictures_are_linked_as_they_are_and_pages_as_a_forge_shows_them() -> None:
    text = (
        '[a](a.md#b) ![b](b.png) [![c](c.png)](d) <img src="e.svg"> <source srcset="f.svg"> <a href="g.md">'
    )
    wanted = (
        "[a](U/blob/v1/a.md#b) ![b](U/raw/v1/b.png) [![c](U/raw/v1/c.png)](U/blob/v1/d) "
        '<img src="U/raw/v1/e.svg"> <source srcset="U/raw/v1/f.svg"> <a href="U/blob/v1/g.md">'
    )
    assert release.absolute(text, "U", "v1") == wanted
    github = release.absolute("[a](a.ipynb) [b](b.md)", "https://github.com/o/n", "v1")
    assert github == (
        "[a](https://colab.research.google.com/github/o/n/blob/v1/a.ipynb) "
        "[b](https://github.com/o/n/blob/v1/b.md)"
    )
    for own in ("`[a](a.md)`", "[a](#b)", "[a](https://a.example/b.png)"):
        assert release.absolute(own, "U", "v1") == own


def test_the_release_that_is_built_is_written_down() -> None:
    """The version stands in the changelog, and the citation has it too."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(normgen.__version__)}\]", changes, re.MULTILINE)
    assert f"version: {normgen.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.kernels
def test_the_wheel_has_the_specs_and_runs_what_it_compiles(installed: Path, tmp_path: Path) -> None:
    command = str(installed / "normgen")
    assert _run([command, "--version"], tmp_path) == f"normgen {normgen.__version__}\n"
    listed = json.loads(_run([command, "list", "--json"], tmp_path))
    assert {row["name"] for row in listed["specs"]} == {path.stem for path in (ROOT / "specs").glob("*.norm")}
    _run([command, "compile", "rmsnorm"], tmp_path)
    code = (
        "import numpy, rmsnorm, normgen.runtime; x = 7 * numpy.ones((2, 8), 'f4'); "
        "print(rmsnorm.forward(x).y.round(4).tolist(), normgen.runtime.__file__)"
    )
    printed = _run([str(installed / "python"), "-c", code], tmp_path)
    assert printed.startswith(f"{[[1.0] * 8] * 2} {installed.parent}")


def test_it_starts_at_once(installed: Path, tmp_path: Path) -> None:
    """Neither the package nor the command line imports what some machines lack or what takes long."""
    for code, more in (
        ("import normgen.cli", {"numpy", "lark", "jinja2", "ml_dtypes"}),
        ("import normgen; normgen.load", set()),
    ):
        code = f"import sys; {code}; print(*sys.modules)"
        loaded = _run([str(installed / "python"), "-c", code], tmp_path).split()
        roots = {name.partition(".")[0] for name in loaded}
        assert not roots & ({"pycuda", "torch", "matplotlib", "cupy", "jax"} | more)
    # Help takes under 0.2 s: of processor time, which is all of the time where nothing else runs.
    took = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        printed = _run([str(installed / "normgen"), "check", "--help"], tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if took[-1] < 0.2:
            break
    assert "Usage: normgen" in printed
    assert min(took) < 0.2
