"""Takes operands out of the conditions before a diagnostic, one at a time: which does no example need?

`python -m tests.refusals FIRST STEP` prints as JSON those of every STEP-th operand, each as its file and its
text. Modules are loaded with a switch at each operand; what is said of an example of diagnostics.md, or of a
spec that is sound, must then differ.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "normgen"
ROOMS = ("dsl", "codegen")
_SAYS = {"Diagnostic", "Fault"}
# Values that are no mistake, though most of what makes one holds.
SOUND = """x * sqrt(0)
x * rsqrt(4)
x * sqrt(4)
x * abs(-3)
x + 0
x * 0
x - 0
x * 2 ^ -1
x + 0 ^ 2
x + (-2) ^ 2
x + (-2) ^ 3
""".splitlines()
HEADS = [
    "param w[D]\noutput a[D]: f32 = w\ninput x[D]\noutput y[D] = x * w\n",
    "input x[D]\nstate s[D]: f32 = 0\noutput y[D] = 2 * x\nupdate s = (s + x) / 2\n",
]


class Switches(ast.NodeTransformer):
    """Puts a switch at each operand of `and` and `or` in conditions whose body makes a diagnostic."""

    def __init__(self, name: str, found: list[tuple[str, str]]) -> None:
        self.name, self.found = name, found

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        if any(_says(each) for statement in node.body for each in ast.walk(statement)):
            for test in (each for each in ast.walk(node.test) if isinstance(each, ast.BoolOp)):
                test.values = [self._switch(value, isinstance(test.op, ast.And)) for value in test.values]
        return node

    def _switch(self, value: ast.expr, both: bool) -> ast.expr:
        self.found.append((self.name, ast.unparse(value)))
        name, arguments = ast.Name("operand", ast.Load()), [ast.Constant(len(self.found)), ast.Constant(both)]
        return ast.Call(name, [*arguments, value], [])


def _says(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SAYS


def every_operand() -> list[tuple[str, str]]:
    """The file and the text of each operand, in the order of their numbers."""
    return _switched()[1]


def _switched() -> tuple[dict[str, ast.Module], list[tuple[str, str]]]:
    found: list[tuple[str, str]] = []
    modules = {}
    for path in sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        modules[str(path)] = Switches(name, found).visit(ast.parse(path.read_text(encoding="utf-8")))
    return modules, found


def main(first: int, step: int) -> list[tuple[str, str]]:
    modules, found = _switched()
    usual = SourceFileLoader.get_code

    def code(loader: SourceFileLoader, name: str) -> object:
        made = modules.get(str(loader.path))
        return compile(ast.fix_missing_locations(made), loader.path, "exec") if made else usual(loader, name)

    SourceFileLoader.get_code = code  # type: ignore[assignment, method-assign]
    dropped, matters = 0, set[int]()

    def operand(number: int, neutral: bool, value: object) -> object:
        if bool(value) != neutral:
            matters.add(number)
        return neutral if number == dropped else value

    builtins.operand = operand  # type: ignore[attr-defined]
    from normgen import bundled
    from tests import test_diagnostics as index

    specs = [(each["spec"], each["attrs"]) for _, each in index._examples()]
    specs += [(bundled.read(name).text, "") for name in bundled.names()]  # type: ignore[union-attr]

    specs += [(f"norm sound\ninput x[D]\noutput y[D] = {each}\n", "") for each in SOUND]
    specs += [(f"norm sound\n{each}", "") for each in HEADS]

    def said(spec: str, attrs: str) -> str:
        try:
            return index._message(spec, index._attrs(attrs))
        except Exception as fault:
            return repr(fault)

    told: dict[int, list[tuple[tuple[str, str], str]]] = {}  # examples in which an operand has a say
    for each in specs:
        matters.clear()
        message = said(*each)
        for number in matters:
            told.setdefault(number, []).append((each, message))
    missed = []
    for dropped in range(1 + first, len(found) + 1, step):
        if all(said(*each) == message for each, message in told.get(dropped, [])):
            missed.append(found[dropped - 1])
    return missed


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
