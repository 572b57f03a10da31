"""The house rules that a machine can check: which way imports go, what names appear, how long a file is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from normgen.families import NAMES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "normgen"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Every layer, top first, and the layers that it may import from. A layer is a package with all that is in it,
# but for the packages listed on their own. Every layer may import the base modules (GROUND).
GROUND = (
    "counting",
    "errors",
    "locks",
    "cache",
    "cache_files",
    "cache_limit",
    "cache_results",
    "dtypes",
    "diagnostics",
)
FAMILIES = NAMES
LAUNCH = ("launching", "package")
COMPILE = ("kernel", "ir", "package")
CALLS = ("runtime.calls", "runtime.planning", "arrays", "devices", "launching", "package")
AT_API = ("runtime", "runtime.ranks")
AT_CLI = (*CALLS, "ahead", "torch.extension")
ARROWS: dict[str, tuple[str, ...]] = {
    "__main__": ("cli",),
    "cli": ("", "api", "bundled", "verify", "codegen", "dsl", "ir", "measure", *AT_API, *AT_CLI),
    # Calls reach whatever device their arrays are on; who checks, measures or installs works with one kind.
    "verify": ("codegen", "dsl", "ir", "runtime", "runtime.ranks", "devices.host", *CALLS),
    "": ("api", "devices", "runtime.ranks", "verify"),
    "api": ("", "ahead", "bundled", "reference", "verify", "codegen", "dsl", "ir", "package", *AT_API),
    "reference": ("ir", "launching", "package"),
    "bundled": (),
    "dsl": ("ir",),
    "codegen": ("codegen.strategies", "codegen.module", "families.*.compile", *COMPILE),
    "codegen.module": ("bundled", "kernel", "package"),
    "codegen.strategies": ("families", *COMPILE),
    "measure": ("runtime", "devices.cuda", *CALLS),
    # Launches of calls to come, for programs without normgen.
    "ahead": ("kernel", "runtime.calls", "runtime.planning", *LAUNCH),
    # Tensors of PyTorch: norms as its functions and modules.
    "torch": ("", "api", "bundled", "codegen", "dsl", "ir", *AT_API, *CALLS, "torch.extension"),
    "torch.extension": (),
    "runtime": CALLS,
    "runtime.ranks": CALLS,
    "runtime.calls": ("runtime.planning", "arrays", "devices", *LAUNCH),
    "runtime.planning": ("families", *LAUNCH),
    **{f"families.{name}.launch": LAUNCH for name in FAMILIES},
    **{f"families.{name}.compile": COMPILE for name in FAMILIES},
    # A resident kernel has rows or columns that a split would have had: it reads their plans.
    "families.resident.compile": (*COMPILE, "families.rows.compile", "families.columns.compile"),
    "families": (),
    "kernel": ("ir", "package"),
    "ir": (),
    "arrays": ("devices", "launching"),
    "devices": ("devices.cuda", "devices.host", *LAUNCH),
    "devices.cuda": ("devices", *LAUNCH),
    "devices.host": ("devices", *LAUNCH),
    "launching": ("package",),
    "package": (),
    **{layer: tuple(other for other in GROUND if other != layer) for layer in GROUND},
}
# Foreign packages that a layer must do without. What generated modules import stands without the compiler.
COMPILERS = ("lark", "jinja2", "click", "rich")
FORBIDDEN = {
    **dict.fromkeys(("package", "launching", "devices", "arrays", "runtime", "measure", "ir"), COMPILERS),
    **{f"families.{name}.launch": COMPILERS for name in FAMILIES},
    "dsl": ("jinja2", "click", "rich"),
    **dict.fromkeys(("codegen", "kernel", "families"), ("lark", "click", "rich")),
    "verify": ("click", "rich"),
    "api": ("click", "rich"),
}
# Packages that must not be imported when a module is: some machines lack them, and they take long.
OPTIONAL = ("pycuda", "cuda", "torch", "matplotlib", "cupy", "jax")

LONGEST = 300  # lines of code in a file
LONGER = {"normgen/templates/rows/multipass.cu.jinja": 375}  # what was longer when the limit came


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _layer(module: str) -> str:
    """The layer that a module is in: the longest listed name that it is, or is below of."""
    _, _, name = module.partition("normgen.")
    fitting = [layer for layer in ARROWS if name == layer or (layer and name.startswith(layer + "."))]
    assert fitting, f"{module} is in no layer: give it one in ARROWS"
    return max(fitting, key=len)


def _allowed(layer: str, target: str) -> bool:
    """Whether a layer may import from another."""
    names = (layer, *ARROWS[layer], *GROUND)
    return any(fnmatch(target, name) for name in names)


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


def _arrows(module: str, imports: list[tuple[int, str]]) -> Iterator[tuple[int, str, str, str]]:
    """(line, target, layer, layer of the target) of each import that an arrow forbids."""
    layer = _layer(module)
    for line, target in imports:
        if target.partition(".")[0] == "normgen" and not _allowed(layer, _layer(target)):
            yield line, target, layer, _layer(target)


def _foreign(module: str, imports: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """(line, package) of each foreign package that a module's layer must do without."""
    _, _, name = module.partition("normgen.")
    for layer, forbidden in FORBIDDEN.items():
        if name == layer or name.startswith(layer + "."):
            yield from ((line, each) for line, each in imports if each.partition(".")[0] in forbidden)


def test_imports_follow_the_arrows() -> None:
    wrong = []
    for path in SOURCES:
        module, imports = _module(path), _imports(path)
        wrong += [
            f"line {line}: {module} imports {target}: {layer} may not import {other}"
            for line, target, layer, other in _arrows(module, imports)
        ]
        wrong += [f"line {line}: {module} imports {each}" for line, each in _foreign(module, imports)]
    assert not wrong, "\n".join(wrong)


# Words that are the name of a form, and mean something else here: CUDA's streams, the span of a text, the
# registers of a thread, the strategy that splits a program, the columns of a row that a block takes, and the
# axes that number matrices.
OTHER_MEANINGS = {
    "stream": ("arrays", "dsl", "package", "runtime"),
    "span": ("dsl",),
    "registers": ("cli", "families"),
    "split": ("codegen", "kernel", "package"),
    "batch": ("families",),
}
RECORD = re.compile(r"\w+Record\b")


@cache
def forms_of(family: str) -> set[str]:
    """The names of a family's forms: those of its templates."""
    folder = PACKAGE / "templates" / family
    return {path.name.partition(".")[0] for path in folder.glob("*.cu.jinja")} - {family}


def _foreign_forms(name: str, tree: ast.AST) -> list[str]:
    """Forms of other families that a file names as strings. `name`: its path below the package."""
    layer, *rest = name.split("/")
    families = [family for family in FAMILIES if (layer, *rest[:1]) != ("families", family)]
    own = forms_of(rest[0]) if layer == "families" and rest[0] in FAMILIES else set()
    forms = {form for family in families for form in forms_of(family)} - own
    forms -= {form for form, layers in OTHER_MEANINGS.items() if layer in layers}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in forms]
    return [f"{name}:{node.lineno}: {node.value}" for node in strings]


def _record_switches(name: str, tree: ast.AST) -> list[str]:
    """Where a file asks for the type of a record."""
    asked = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("isinstance"), args=[_, types]):
                asked.append((node.lineno, ast.unparse(types)))
            case ast.MatchClass(cls=types):
                asked.append((types.lineno, ast.unparse(types)))
    return [f"{name}:{line}: {types}" for line, types in asked if RECORD.search(types)]


def test_no_form_and_no_record_is_known_outside_its_family() -> None:
    wrong = []
    for path in SOURCES:
        name, tree = path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))
        wrong += [*_foreign_forms(name, tree), *_record_switches(name, tree)]
    assert not wrong, "\n".join(wrong)


def _cycles(graph: dict[str, set[str]]) -> list[str]:
    """The modules that import themselves by way of others, as soon as they are imported."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        left = [start]
        while left:
            fresh = graph.get(left.pop(), set()) - found
            found |= fresh
            left += fresh
        return found

    return sorted(module for module in graph if module in reached(module))


def test_no_modules_import_each_other() -> None:
    imports = {path: _imports(path, at_import_only=True) for path in SOURCES}
    assert not _cycles({_module(path): {name for _, name in found} for path, found in imports.items()})


def test_optional_packages_are_imported_when_needed() -> None:
    """But for the layer of which whoever imports it has PyTorch."""
    wrong = [
        f"line {line}: {module} imports {target} as soon as it is imported itself"
        for path in SOURCES
        if _layer(module := _module(path)) != "torch"
        for line, target in _imports(path, at_import_only=True)
        if target.partition(".")[0] in OPTIONAL
    ]
    assert not wrong, "\n".join(wrong)


def test_the_checks_would_notice() -> None:
    upward = [(1, "normgen.runtime.norm"), (2, "normgen.ir.grad"), (3, "normgen.kernel.names")]
    found = {layer for _, _, _, layer in _arrows("normgen.families.rows.launch.family", upward)}
    assert found == {"runtime", "ir", "kernel"}
    assert list(_foreign("normgen.families.rows.launch.family", [(1, "jinja2"), (2, "numpy")]))
    assert "word_aligned" in forms_of("rows") and "march" in forms_of("windows")
    tree = ast.parse('if form == "word_aligned" and isinstance(kernel, WindowsRecord):\n    pass')
    assert _foreign_forms("launching/call.py", tree) == ["launching/call.py:1: word_aligned"]
    assert not _foreign_forms("families/rows/launch/family.py", tree)
    assert _record_switches("launching/call.py", tree) == ["launching/call.py:1: WindowsRecord"]
    assert _cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]


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
    # Drop-ins for the modules of PyTorch are there to say which spec each of these is.
    texts = [path for path in texts if not path.is_relative_to(PACKAGE / "torch")]
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
            lines = enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
            wrong += [f"{path.relative_to(ROOT)}:{number}" for number, line in lines if pattern.search(line)]
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is() -> None:
    texts = {_module(path): path.read_text() for path in SOURCES}
    missing = [name for name, text in texts.items() if text and not ast.get_docstring(ast.parse(text))]
    assert not missing, f"no docstring: {missing}"


def test_no_message_makes_a_plural_by_itself() -> None:
    """`counting` does."""
    plurals = re.compile(r"""\{['"]e?s['"] if """)
    assert not [path for path in SOURCES if plurals.search(path.read_text())]


def test_files_are_short_enough_to_read() -> None:
    """Blank lines, comments and docstrings do not count."""
    long = {}
    for path in [*PACKAGE.rglob("*"), *(ROOT / "tests").rglob("*.py")]:
        if path.suffix in (".py", ".jinja", ".cuh", ".h", ".cu"):
            name, count = str(path.relative_to(ROOT)), _lines_of_code(path)
            if count > LONGER.get(name, LONGEST):
                long[name] = count
    assert not long


def _lines_of_code(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    mark, described = ("#", _docstrings(text)) if path.suffix == ".py" else ("//", set())
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith(mark) and number not in described for number, line in lines)


def _docstrings(text: str) -> set[int]:
    """The numbers of lines of docstrings."""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, described))
    first = [node.body[0] for node in found if ast.get_docstring(node) is not None]
    return {number for each in first for number in range(each.lineno, (each.end_lineno or 0) + 1)}


def test_packages_are_listed() -> None:
    """pyproject.toml lists packages by hand, because `specs` is mapped into one."""
    # Read without a TOML parser: Python 3.10 has none.
    toml = (ROOT / "pyproject.toml").read_text()
    found = re.search(r"^packages = (\[.*?\])$", toml, re.MULTILINE | re.DOTALL)
    assert found
    listed = ast.literal_eval(found[1])
    present = {_module(path) for path in PACKAGE.rglob("__init__.py")}
    assert set(listed) == present | {"normgen.specs"}
