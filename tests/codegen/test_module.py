"""The generated module: it says what it is, does what the package does, and nothing a user wrote acts
in it."""

from __future__ import annotations

import ast
import hashlib
import pickle
import shutil
import subprocess
import sys
from dataclasses import make_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import normgen
from normgen import api, bundled
from normgen.ahead import forms
from normgen.codegen.module.literal import WIDTH, literal
from normgen.codegen.module.text import module_text, one_shape_text
from normgen.launching.machine import usual_machine
from normgen.package import plain as plain_data
from normgen.package import records
from normgen.package.direction import directions
from normgen.package.made import LaunchRecord, MadeRecord
from normgen.package.plain import schema
from normgen.package.records import Package
from normgen.runtime import norm
from normgen.runtime.calls.sizes import bind_sizes
from normgen.runtime.planning.choose import plan_launches
from tests.runtime import stubs

ROOT = Path(__file__).parent.parent.parent
MATHEMATICS = [("forward", "norm rows_norm\noutput y = x\n"), ("backward", "gradient dx = dy\n")]
TEXTS = {"rows_norm_forward_registers": ("0" * 16, "void f();\n"), "clear": ("1" * 16, "void g();\n")}


def bare(record: records.PassRecord | None) -> records.PassRecord:
    """A direction whose kernels have no forms, as in modules of one shape."""
    assert record is not None
    kernels = (replace(kernel, forms=()) for kernel in record.kernels)
    return replace(record, strategies=(records.Strategy("fused", tuple(kernels)),))


def short(text: str = stubs.ROWS) -> Package:
    """The package of a spec, without forms."""
    package = stubs.package(text)
    return replace(package, forward=bare(package.forward), backward=bare(package.backward))


ROWS = short()
FULL = replace(ROWS, folded=(("groups", 4), ("training", True), ("alpha", 0.1)))


def text_of(package: Package) -> str:
    return module_text(package, MATHEMATICS, "0.1.0", ("which form runs when",), TEXTS, "rows.norm")


def executed(text: str, name: str = "generated") -> ModuleType:
    module = ModuleType(name)
    exec(compile(text, "<generated>", "exec"), module.__dict__)
    return module


def nasty(text: str) -> Package:
    """A package with this text wherever a user's words go."""
    package = replace(ROWS, doc=text, spec=f"norm rows_norm {text}\n")
    attrs = tuple(replace(attr, doc=text) for attr in package.attrs)

    def worded(record: records.PassRecord | None) -> records.PassRecord:
        assert record is not None
        return replace(
            record,
            reads=tuple(replace(tensor, doc=text) for tensor in record.reads),
            writes=tuple(replace(tensor, doc=text) for tensor in record.writes),
        )

    forward, backward = worded(package.forward), worded(package.backward)
    return replace(package, attrs=attrs, forward=forward, backward=backward)


def given_to(text: str, name: str) -> tuple[Any, ...]:
    """What a module gives the function that makes its norm."""
    found: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api if name == "load_module" else norm, name, lambda *given, **_: found.append(given))
        tree = ast.parse(text)
        end = next(k for k, node in enumerate(tree.body) if ast.unparse(node).startswith("NORM = "))
        exec(compile(ast.Module(tree.body[: end + 1], []), "<generated>", "exec"), {"__name__": "generated"})
    return found[0]


def test_the_module_calls_the_norm_under_the_same_names() -> None:
    module, recorder = executed(normgen.compile_spec(stubs.ROWS)), stubs.Recorder()
    module.NORM = stubs.norm(module.NORM.package, recorder)
    x, w, rstd = np.zeros((4, 8), np.float32), np.zeros(8, np.float32), np.zeros(4, np.float32)
    y = np.zeros((4, 8), np.float32)
    assert module.forward(x, w, eps=0.5, out={"y": y}).y is y
    assert recorder.launches[-1][1][-1] == 0.5
    result = module.backward(dy=x, x=x, rstd=rstd, b=w, wrt=("x", "b"))
    assert [g is None for g in result] == [False, True, False]
    with pytest.raises(TypeError, match="needs rstd"):
        module.backward(x, x)
    with pytest.raises(TypeError, match="unexpected keyword argument 'groups'"):
        module.forward(x, groups=4)
    assert module.forward_args == ("x", "w", "b") and module.backward_args == ("dy", "x", "w", "rstd")
    assert module.__all__ == ["backward", "backward_args", "forward", "forward_args"]
    module = executed(normgen.compile_spec(stubs.ROWS))
    result = module.NORM.forward(np.zeros((0, 8), np.float32))
    assert type(result) is module.RowsNormForward and result._fields == ("y", "rstd")
    fixed = executed(normgen.compile_spec(stubs.ROWS, {"eps": 0.1}))
    with pytest.raises(TypeError, match=r"eps was fixed to 0\.1"):
        fixed.forward(x, eps=0.2)


def test_the_module_launches_the_texts_that_it_has() -> None:
    """Of the calls that they are for; other texts are printed."""
    text = normgen.compile_spec(stubs.ROWS)
    module = executed(text.replace("// exchange 1: ", "// by hand: "))
    changed = []
    for direction in filter(None, directions(module.NORM.package)):
        for length in forms.LENGTHS:
            binding = bind_sizes(direction, {"...": forms.ROWS, "D": length}, forms.DTYPE).binding
            launches = plan_launches(direction.record, binding, usual_machine(forms.ARCH)).launches
            changed += [launch.entry for launch in launches if "// by hand: " in launch.source]
    assert len({*changed}) == len(changed) == text.count("// exchange 1: ") > 1
    copied = pickle.loads(pickle.dumps(module.NORM.package))
    assert copied == module.NORM.package and copied != normgen.load(stubs.ROWS).package


def test_the_head_says_where_it_comes_from_and_nothing_of_when_or_where() -> None:
    text = text_of(FULL)
    head = text.splitlines()[:6]
    assert head[0].startswith("# Generated by normgen 0.1.0 from the norm `rows_norm`")
    assert "normgen compile rows_norm.norm --attr groups=4 --attr training=true --attr alpha=0.1" in head[2]
    assert f"sha256 is {hashlib.sha256(stubs.ROWS.encode()).hexdigest()}" in head[4]
    assert text == text_of(FULL)
    assert str(ROOT) not in text and "20" + "26" not in text


def test_modules_import_one_name_of_normgen_and_hold_plain_data() -> None:
    """Numbers, text, tuples and dicts: nothing that a class of normgen's has to be there for."""

    def kinds(value: Any) -> set[type]:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
        return {type(value)}.union(*map(kinds, inside))

    texts = {
        ("normgen.api", "load_module"): text_of(FULL),
        ("normgen.runtime.norm", "load_norm"): one_shape_text(FULL, "0.1.0", "--size D=8"),
    }
    for (file, name), text in texts.items():
        tree = list(ast.walk(ast.parse(text)))
        assert not any(isinstance(node, ast.Import) for node in tree)
        imported = {node.module: node.names for node in tree if isinstance(node, ast.ImportFrom)}
        assert imported.keys() <= {"__future__", "collections.abc", "typing", file}
        assert [alias.name for alias in imported[file]] == [name]
        for passed in given_to(text, name):
            assert kinds(passed) <= {dict, tuple, str, int, float, bool, type(None)}


REFUSED = [
    # what modules of early ABIs do first, and of later ones up to 10
    "from normgen.runtime.norm import Norm, check_abi\ncheck_abi({abi}, {command!r})\n",
    "from normgen.runtime.norm import load_norm\n"
    "data = {{'abi': {abi}, 'schema': '', 'command': {command!r}, 'of_another_time': 1}}\n"
    "load_norm(data, results=(tuple, None))\n",
    "from normgen.api import load_module\n"
    "about = {{'abi': {abi}, 'command': {command!r}, 'of_another_time': 1}}\n"
    "load_module('norm of_another_time', about, results=(tuple, None))\n",
]


@pytest.mark.parametrize(("head", "abi"), [*zip(REFUSED, (5, 10, 99), strict=True), (REFUSED[1], 99)])
def test_a_module_of_another_abi_is_refused_in_one_line(head: str, abi: int) -> None:
    """Before anything of it is looked at that this version does not have."""
    text = head.format(abi=abi, command="normgen compile rmsnorm.norm")
    with pytest.raises(ImportError) as caught:
        executed(text + "from normgen.runtime.records import Package\n")
    assert str(caught.value) == (
        f"this module was generated for ABI {abi}, but the installed normgen has ABI {records.ABI}; "
        "generate it again: normgen compile rmsnorm.norm"
    )


def test_data_of_another_version_is_refused_though_the_abi_is_the_same() -> None:
    """By a line, and before a field is read that is not there."""
    text = one_shape_text(ROWS, "0.1.0", "--size D=8")
    assert schema() in text
    other = text.replace(schema(), "0" * 16)
    for broken in (other, other.replace("PACKAGE = {", 'PACKAGE = {"of_another_time": 1,')):
        with pytest.raises(ImportError) as caught:
            executed(broken)
        assert str(caught.value) == (
            f"this module has other fields than the installed normgen, although both have ABI {records.ABI}; "
            "generate it again: normgen compile rows_norm.norm --size D=8"
        )


# The schema of each ABI that was released or merged: an entry is never changed.
SCHEMAS = {
    **dict.fromkeys((6, 7, 8), "c2e38b921b1493cf"),
    9: "f9186b62ecdd5ab5",
    10: "a50cf5a4250bf49b",
    11: "654227b04911a49a",
    12: "4bb27e29c24a626e",
    13: "2a3356e020fa4d17",
    14: "17b5803765eda76d",
    15: "74fbaa5ad6418fbb",
    **dict.fromkeys((16, 17), "2cf6f31258a949d6"),
    18: "6ee4045a2fa41cd6",
    19: "78c5d784b18c8710",
}


def test_no_record_changes_without_another_abi() -> None:
    assert records.ABI in SCHEMAS and SCHEMAS[records.ABI] == schema(), (
        "the fields of records changed: raise ABI in normgen/package/records.py, so that modules generated "
        f"before are refused, and add its schema here: {schema()!r}"
    )


def test_the_schema_tells_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field more, less, renamed, moved, of another type or with another default: another schema. The name
    of the class is no matter."""

    def made(*declared: Any, name: str = "Package") -> str:
        monkeypatch.setattr(plain_data, "Package", make_dataclass(name, declared, frozen=True))
        schema.cache_clear()
        return schema()

    a, b, c = ("name", "str"), ("role", "str"), ("doc", "str", "")
    variants = [
        (a, b, c), (a, b), (a, b, c, ("more", "int", 0)), (b, a, c), (("label", "str"), b, c),
        (("name", "int"), b, c), (a, b, ("doc", "str", "none")),
    ]  # fmt: skip
    try:
        found = [made(*declared) for declared in variants]
        assert len(set(found)) == len(variants) and made(a, b, c, name="Renamed") == found[0]
    finally:
        monkeypatch.undo()
        schema.cache_clear()


FORWARD = ROWS.forward
X, KERNEL = FORWARD.reads[0], FORWARD.kernels[0]
TEXT = '#define A "\\n" \\\n  "x"\n// {{ }} """ */\n\tvoid f();  \n'
KERNELS = (records.Strategy("fused", (KERNEL, replace(KERNEL, name="rows_norm_forward_statistics"))),)
LAUNCHED = LaunchRecord("rows < 8", TEXT, "rows_norm_forward_registers", "rows", 32, "in x, out y", "PP")
MADE = MadeRecord(
    call="rows_norm.forward",
    command="normgen compile rows_norm",
    sizes=(("D", 8),),
    open=(("...", "rows"),),
    dtype="f32",
    arch="sm_90",
    operands=(("x", "f32"),),
    launches=(LAUNCHED, replace(LAUNCHED, when="", text="void g();\n"), replace(LAUNCHED, when="rows > 9")),
)
PACKAGES = [
    FULL,
    short(stubs.GROUPS),
    short(stubs.RUNNING),
    replace(ROWS, doc="x y", axes=()),
    replace(ROWS, attrs=()),
    replace(ROWS, forward=replace(FORWARD, notes=("one word", "word", ""))),
    replace(ROWS, forward=replace(FORWARD, reads=(replace(X, dims=()),))),
    replace(ROWS, forward=replace(FORWARD, reads=(replace(X, dims=((),)),))),
    replace(ROWS, forward=replace(FORWARD, strategies=KERNELS)),
    replace(ROWS, forward=replace(FORWARD, made=MADE)),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_in_the_text_is_the_package(package: Package) -> None:
    """Of one shape. A text that several launches have is there once."""
    module = executed(one_shape_text(package, "0.1.0", "--size D=8"))
    assert package == module.NORM.package and package.spec == module.SPEC
    texts = [name for name in vars(module) if name.startswith("FORWARD")]
    assert texts == (["FORWARD_REGISTERS", "FORWARD_REGISTERS_2"] if package.forward.made else [])


def test_docs_and_mathematics_are_there_to_be_read() -> None:
    text = text_of(nasty("what this is"))
    assert "eps: float >= 0: what this is" in text and text.count("# which form runs when\n") == 1
    assert ast.get_docstring(ast.parse(text)) == "what this is"
    line = "output [..., D], of the type of x: what this is"
    assert f"y: {line}\n" in text
    assert "#     output y = x\n" in text and f"y: Array  # {line}\n" in text


@example('quotes " and "" and """')
@example("ends in a backslash \\")
@example('backslash quote \\" \\"\\"\\"')
@example("\\x41 \\n \\u0041 \\N{BULLET} {{ 7 * 7 }} {% for x in y %} {# gone #} {braces} %s */ /* // # ??/")
@example('a\nimport os; raise SystemExit\n"""\nraise SystemExit\n"""')
@example("carriage\rreturn \x00 null \x0c feed \x1b[31m \u2028 \u202e bidi \x85 \t tab, trailing space \n\n")
@example("é ε 数 😀 " + "word " * 100 + "x" * 400)
@given(st.text(max_size=80))
@settings(max_examples=20, deadline=None)
def test_what_users_write_comes_back_and_does_not_act(words: str) -> None:
    words = words.encode("utf-8", "replace").decode()
    package = nasty(words)
    text = text_of(package)
    spec, about = given_to(text, "load_module")
    assert spec == package.spec and about["texts"] == TEXTS
    made = one_shape_text(package, "0.1.0", "--size D=8")
    assert package == executed(made).NORM.package
    assert len(ast.parse(text).body) == len(ast.parse(text_of(nasty("plain"))).body)
    assert not any(character in text for character in "\r\x00\x1b\u202e\u2028")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("words", ['one "quoted" word', "word " * 60 + "end"])
def test_the_text_is_as_a_formatter_would_have_it(words: str, tmp_path: Path) -> None:
    ruff = shutil.which("ruff") or str(Path(sys.executable).with_name("ruff"))
    if not Path(ruff).exists():
        pytest.skip("ruff is not installed")
    path = tmp_path / "generated.py"
    path.write_text(text_of(replace(nasty(words), folded=FULL.folded)))
    config = ("--config", str(ROOT / "pyproject.toml"))
    run(ruff, "format", "--diff", *config, str(path))
    run(ruff, "check", "-q", *config, *(["--ignore", "E501"] if len(words) > 100 else []), str(path))


@pytest.mark.thorough
def test_the_module_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    path = tmp_path / "generated.py"
    path.write_text(text_of(FULL))
    run(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(path))


def test_lines_of_long_literals_are_filled() -> None:
    for value in ((), {}, ("a",), ('"',), (1, 2.5, 1e-06, True, None), {"name": "D", "extent": (4,)}):
        assert ast.literal_eval(literal(value)) == value
    value = {f"name{i}": "abcdefghij" * (1 + i % 4) for i in range(12)}
    value = {**value, "dict": {"a": 1}, "text": "w " * 99}
    text = literal(value, prefix="NAME = ")
    lines = text.splitlines()
    assert ast.literal_eval(text.removeprefix("NAME = ")) == value
    assert lines[0] == "NAME = {" and lines[-1] == "}" and '  "dict": {"a": 1},' in lines
    assert max(map(len, lines)) <= WIDTH and len(lines) < 14


def test_the_command_that_a_module_names_is_right() -> None:
    """A bundled spec is called by its name; a file of one's own by the file, if its norm has that name."""
    source = bundled.read("scalenorm")
    assert source is not None
    own = source.text.replace("norm scalenorm", "# mine\nnorm scalenorm")
    bundled_text, own_text = (text_of(short(text)) for text in (source.text, own))
    assert "    normgen compile scalenorm\n" in bundled_text
    assert "normgen compile scalenorm.norm" in own_text
