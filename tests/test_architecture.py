"""The house rules that a machine can check: which way imports go, what names appear, how long a file is."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "normgen"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# The stair, top first. A module may import from its own step and below; FORBIDDEN says more.
STAIR = (
    ("normgen.cli", "normgen.__main__"),
    ("normgen.proof",),
    ("normgen.build_pycuda",),
    ("normgen", "normgen.api", "normgen.bundled", "normgen.reference"),
    ("normgen.codegen",),
    ("normgen.dsl",),
    ("normgen.ir",),
    ("normgen.autograd",),
    ("normgen.measure",),
    ("normgen.runtime",),
    ("normgen.dtypes", "normgen.diagnostics"),
)
# The runtime is what generated modules import: it must stand without the compiler and its packages.
FORBIDDEN = {
    "normgen.runtime": ("lark", "jinja2", "click", "rich"),
    "normgen.measure": ("lark", "jinja2", "click", "rich"),
    "normgen.ir": ("normgen.runtime", "lark", "jinja2", "click", "rich"),
    "normgen.dsl": ("normgen.runtime", "jinja2", "click", "rich"),
    "normgen.codegen": ("lark", "click", "rich"),
    "normgen.proof": ("click", "rich"),
    "normgen.api": ("click", "rich"),
}
# Packages that must not be imported when a module is: some machines lack them, and they take long.
OPTIONAL = ("pycuda", "cuda", "torch", "matplotlib", "cupy", "jax")

LONGEST = 450
LONGEST_TEST = 500


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _step(module: str) -> int:
    """The step of the stair that a module stands on: that of its longest listed prefix."""
    fitting = [
        (len(prefix), number)
        for number, step in enumerate(STAIR)
        for prefix in step
        if module == prefix or (prefix != "normgen" and module.startswith(prefix + "."))
    ]
    assert fitting, f"{module} has no place on the stair: give it one in STAIR"
    return max(fitting)[1]


def _imports(path: Path, *, at_import_only: bool = False) -> list[tuple[int, str]]:
    """(line, module) of every import in a file; `from a import b` counts as a.b where that is a module."""
    found = []
    for node in _nodes(ast.parse(path.read_text(encoding="utf-8")), at_import_only):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = _module(path).split(".")
                package = package if path.name == "__init__.py" else package[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            for alias in node.names:
                deeper = f"{base}.{alias.name}"
                found.append((node.lineno, deeper if _is_module(deeper) else base))
    return found


def _nodes(tree: ast.AST, at_import_only: bool) -> list[ast.AST]:
    """Every node, or only what runs when the module is imported: not functions, nothing for type checkers."""
    if not at_import_only:
        return list(ast.walk(tree))
    found, stack = [], [tree]
    while stack:
        node = stack.pop()
        found.append(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            stack.extend(node.orelse)
            continue
        stack.extend(ast.iter_child_nodes(node))
    return found


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@pytest.mark.parametrize("path", SOURCES, ids=_module)
def test_imports_go_down_the_stair(path: Path) -> None:
    module = _module(path)
    wrong = [
        f"line {line}: {module} imports {target}"
        for line, target in _imports(path)
        if target.partition(".")[0] == "normgen" and _step(target) < _step(module)
    ]
    for prefix, forbidden in FORBIDDEN.items():
        if module == prefix or module.startswith(prefix + "."):
            wrong += [
                f"line {line}: {module} imports {target}"
                for line, target in _imports(path)
                if any(target == name or target.startswith(name + ".") for name in forbidden)
            ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", SOURCES, ids=_module)
def test_optional_packages_are_imported_when_needed(path: Path) -> None:
    module = _module(path)
    wrong = [
        f"line {line}: {module} imports {target} as soon as it is imported itself"
        for line, target in _imports(path, at_import_only=True)
        if target.partition(".")[0] in OPTIONAL
    ]
    # The one module behind the driver seam that is PyCUDA's own; nothing imports it unless PyCUDA is there.
    if module == "normgen.runtime.pycuda_driver":
        return
    assert not wrong, "\n".join(wrong)


def test_the_stair_would_notice() -> None:
    """The checks above fail on what they are there to find."""
    assert _step("normgen.runtime.norm") > _step("normgen.ir.grad") > _step("normgen.codegen.plan")
    assert _step("normgen.codegen.plan") > _step("normgen.api") > _step("normgen.proof")
    assert _step("normgen.proof") > _step("normgen.cli.check")
    tree = ast.parse("def f():\n    import torch\nif TYPE_CHECKING:\n    import jax\nimport cupy\n")
    names = [a.name for n in _nodes(tree, True) if isinstance(n, ast.Import) for a in n.names]
    assert names == ["cupy"]


def test_no_spec_is_known_by_name() -> None:
    """A new norm is a new spec and nothing else: neither code nor templates may treat one by name."""
    names = sorted(path.stem for path in (ROOT / "specs").glob("*.norm"))
    assert names
    # A name that is also a function of the language stands in the prelude.
    functions = re.findall(r"^fn\s+(\w+)", (PACKAGE / "dsl" / "prelude.norm").read_text(), re.MULTILINE)
    alternatives = "|".join(name for name in names if name not in functions)
    pattern = re.compile(rf"(?<![A-Za-z0-9])({alternatives})(?![A-Za-z0-9])")
    suffixes = (".py", ".jinja", ".cu", ".cuh", ".h", ".norm", ".lark")
    texts = [path for path in sorted(PACKAGE.rglob("*")) if path.suffix in suffixes]
    wrong = []
    for path in texts:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := pattern.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {match[1]}")
    assert not wrong, "\n".join(wrong)


def test_no_machine_paths() -> None:
    """Nothing in the tree depends on where it was written."""
    pattern = re.compile(r"(?<![\w./])/(home|root|work|Users)/")
    wrong = []
    for folder in ("normgen", "tests", "docs", "specs", "bench", "tools"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path == Path(__file__) or not path.is_file() or "__pycache__" in path.parts:
                continue
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            lines = enumerate(text.splitlines(), 1)
            wrong += [f"{path.relative_to(ROOT)}:{number}" for number, line in lines if pattern.search(line)]
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is() -> None:
    texts = {_module(path): path.read_text() for path in SOURCES}
    missing = [name for name, text in texts.items() if text and not ast.get_docstring(ast.parse(text))]
    assert not missing, f"no docstring: {missing}"


def test_files_are_short_enough_to_read() -> None:
    """About 300 lines a file; half as long again is a fault, in between a warning names the file."""
    lengths = {}
    for path in [*PACKAGE.rglob("*"), *(ROOT / "tests").rglob("*.py")]:
        if path.suffix in (".py", ".jinja", ".cuh", ".h", ".cu"):
            lengths[str(path.relative_to(ROOT))] = len(path.read_text().splitlines())
    long = {name: lines for name, lines in lengths.items() if lines > 300}
    if long:
        warnings.warn(f"longer than 300 lines: {long}", stacklevel=1)
    limits = {name: LONGEST_TEST if name.startswith("tests") else LONGEST for name in long}
    assert not {name: lines for name, lines in long.items() if lines > limits[name]}


def test_packages_are_listed() -> None:
    """pyproject.toml lists packages by hand, because `specs` is mapped into one."""
    # Read without a TOML parser: Python 3.10 has none.
    toml = (ROOT / "pyproject.toml").read_text()
    found = re.search(r"^packages = (\[.*?\])$", toml, re.MULTILINE | re.DOTALL)
    assert found
    listed = ast.literal_eval(found[1])
    present = {_module(path) for path in PACKAGE.rglob("__init__.py")}
    assert set(listed) == present | {"normgen.specs"}
