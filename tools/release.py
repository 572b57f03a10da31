"""Build what is uploaded to a package index: `python -m tools.release https://forge.example/owner/normgen`.

An index shows README.md and links to the project, and neither may lead nowhere there. So the address of the
repository is given, where it is published: links of the README become absolute, at the tag of this version,
and the metadata name the repository, its issues and its changelog. The tree is not touched.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.docs.links import linked

ROOT = Path(__file__).parent.parent
NOT_SOURCES = (".git", ".venv", ".carry", "__pycache__", "build", "dist", "site", "*.egg-info", ".*_cache")
COLAB = "https://colab.research.google.com/github/"
URLS = """
[project.urls]
Repository = "{url}"
Documentation = "{url}/blob/{tag}/docs/language.md"
Issues = "{url}/issues"
Changelog = "{url}/blob/{tag}/CHANGELOG.md"
"""


def absolute(text: str, url: str, tag: str) -> str:
    """The text with each relative link at the tag: pictures as they are, notebooks of GitHub in Colab, other
    files as a forge shows it."""

    def link(path: str, picture: bool) -> str:
        home = url.replace("https://github.com/", COLAB, 1) if path.endswith(".ipynb") else url
        return f"{home}/{'raw' if picture else 'blob'}/{tag}/{path}"

    return linked(text, link)


def version() -> str:
    """That of the package."""
    found = re.search(r'__version__ = "(.+)"', (ROOT / "normgen" / "__init__.py").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def release(url: str, out: Path) -> None:
    """Build the source distribution, and the wheel from it, and let twine check both."""
    url, tag = url.rstrip("/"), f"v{version()}"
    with tempfile.TemporaryDirectory(prefix="normgen-release-") as folder:
        tree = Path(folder) / "normgen"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_SOURCES))
        readme, project = tree / "README.md", tree / "pyproject.toml"
        readme.write_text(absolute(readme.read_text(encoding="utf-8"), url, tag), encoding="utf-8")
        project.write_text(
            project.read_text(encoding="utf-8") + URLS.format(url=url, tag=tag), encoding="utf-8"
        )
        _run("build", "--no-isolation", "--outdir", str(out), str(tree))
    _run("twine", "check", "--strict", *(str(path) for path in sorted(out.glob(f"normgen-{version()}*"))))


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="where the repository is published")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder of the files")
    given = parser.parse_args()
    if not given.url.startswith("https://"):
        parser.error(f"{given.url!r} is no address: https://forge.example/owner/normgen")
    release(given.url, given.out)


if __name__ == "__main__":
    main()
