"""Finds tests that cannot fail. `python -m tools.weak_tests` prints a line for each; `make lint` runs it.

A test judges by `assert`, by `raise`, by what of pytest fails, and by functions of tests/ that do so.
Faults are:

- A test that may end without judging. A loop is sure to be entered if it goes over a literal or a constant;
  of a condition, both branches must judge.
- An `except` that only goes on, or `suppress`, in a test: nothing looks at what was raised.
- `assert a in x or b in x`: a test knows which one it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
FAILS = frozenset({"raises", "warns", "fail", "skip", "xfail", "check_call", "check_output", "importorskip"})
# Of what has elements they make what has some.
LIKE = frozenset(
    {"enumerate", "sorted", "reversed", "zip", "product", "items", "values", "keys", "range", "map"}
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)):
            yield each.id if isinstance(each, ast.Name) else each.attr


def judging(trees: Sequence[ast.Module]) -> frozenset[str]:
    """The names of what fails, and of all functions and classes that name it."""
    bodies: dict[str, list[ast.AST]] = {}
    for each in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(each, (*FUNCTIONS, ast.ClassDef)):
            bodies.setdefault(each.name, []).append(each)
    named = {name: {n for body in found for n in names(body)} for name, found in bodies.items()}
    known = set(FAILS)
    known |= {
        name
        for name, found in bodies.items()
        if any(isinstance(each, (ast.Assert, ast.Raise)) for body in found for each in ast.walk(body))
    }
    while more := {name for name, those in named.items() if name not in known and known & those}:
        known |= more
    return frozenset(known)


def has_elements(node: ast.expr) -> bool:
    """Whether a loop over this is sure to be entered."""
    match node:
        case ast.Constant(value=int(value)):
            return value > 0
        case ast.Constant(value=value):
            return bool(value)
        case ast.Tuple(elts=found) | ast.List(elts=found) | ast.Set(elts=found) | ast.Dict(keys=found):
            return bool(found)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name.isupper():
            return True
        case ast.Subscript(value=value, slice=ast.Slice()):
            return has_elements(value)
        case ast.Call(func=ast.Name(id=name), args=args) if name in LIKE:
            return any(map(has_elements, args)) if name in ("range", "map") else all(map(has_elements, args))
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in LIKE:
            return has_elements(value)
    return False


class Judge:
    """What is sure to judge, given the names of functions that do."""

    def __init__(self, known: frozenset[str]) -> None:
        self.known = known

    def judges(self, node: ast.AST) -> bool:
        return any(isinstance(each, (ast.Assert, ast.Raise)) for each in ast.walk(node)) or any(
            name in self.known or name.startswith("assert_") for name in names(node)
        )

    def all_ways(self, body: Sequence[ast.stmt]) -> bool:
        """Whether every way through these statements meets one that judges."""
        for each in body:
            if self.surely(each):
                return True
            if self.may_end(each):
                return False
        return False

    def surely(self, each: ast.stmt) -> bool:
        match each:
            case ast.For(iter=over, body=body):
                return self.judges(over) or (has_elements(over) and self.all_ways(body))
            case ast.While(test=test):
                return self.judges(test)
            case ast.If(test=test, body=body, orelse=orelse):
                return self.judges(test) or (self.all_ways(body) and self.all_ways(orelse))
            case ast.With(items=items, body=body):
                return any(map(self.judges, items)) or self.all_ways(body)
            case ast.Try(body=body, orelse=orelse, finalbody=last):
                return self.all_ways([*body, *orelse]) or self.all_ways(last)
            case ast.FunctionDef(body=body):
                return self.all_ways(body)
        return self.judges(each)

    def may_end(self, each: ast.stmt) -> bool:
        """Whether a statement may return from the test before anything has judged."""
        if isinstance(each, FUNCTIONS):
            return False
        blocks = [getattr(each, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(each, "handlers", [])]
        returns = [
            block for block in blocks if any(isinstance(n, ast.Return) for b in block for n in ast.walk(b))
        ]
        return isinstance(each, ast.Return) or not all(map(self.all_ways, returns))


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether `except` looks at nothing: it goes on, ends the test, or has hypothesis draw anew."""
    for each in handler.body:
        match each:
            case ast.Pass() | ast.Continue() | ast.Break() | ast.Return(value=None):
                pass
            case ast.Expr(value=ast.Constant() | ast.Call(func=ast.Name(id="assume"))):
                pass
            case _:
                return False
    return True


def takes_either(test: ast.expr) -> bool:
    """Whether each side of an `or` looks for something else in one place."""
    if not (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)):
        return False
    places = set()
    for each in test.values:
        match each:
            case ast.Compare(ops=[ast.In()], comparators=[place]):
                places.add(ast.dump(place))
            case _:
                return False
    return len(places) == 1


def faults(tree: ast.Module, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """The lines of a module's weak tests, and what is wrong with each."""
    judge = Judge(known)
    for each in ast.walk(tree):
        if isinstance(each, ast.Assert) and takes_either(each.test):
            yield each.lineno, "either of two answers will do: assert the one that is right"
        if isinstance(each, FUNCTIONS) and each.name.startswith("test_"):
            if not judge.all_ways(each.body):
                yield each.lineno, f"{each.name} may end without an assertion"
            for inner in ast.walk(each):
                if isinstance(inner, ast.ExceptHandler) and swallows(inner):
                    yield inner.lineno, "nothing looks at what was raised: assert what it is"
                if isinstance(inner, ast.withitem) and "suppress" in names(inner.context_expr):
                    yield inner.context_expr.lineno, "nothing looks at what is suppressed: use pytest.raises"


def main() -> int:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(TESTS.rglob("*.py"))}
    known = judging(list(trees.values()))
    found = [
        f"{path.relative_to(TESTS.parent)}:{line}: {said}"
        for path, tree in trees.items()
        for line, said in sorted(faults(tree, known))
    ]
    print(*found, sep="\n", end="\n" * bool(found))
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
