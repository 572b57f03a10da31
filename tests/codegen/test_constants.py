"""What a text reads and what a launch sets: the constants of `FormRecord` and of `Call.launch`."""

from __future__ import annotations

from normgen.package.constants import CONSTANTS, glossary, listed, listing
from tests.codegen import windowing
from tests.codegen.norms import package_of, packaged


def test_every_constant_is_read_by_some_text() -> None:
    """A constant that no text reads any more leaves the table: over specs that have all families and forms,
    and one whose windows lie along the innermost axis."""
    names = ("dyt", "scalenorm", "batchnorm_channels_last", "groupnorm", "rmsnorm_fp8")
    names += ("local_response_norm_recomputed",)
    found: set[str] = set()
    for made in (*map(packaged, names), package_of(windowing.text(windowing.LAST))):
        for record in filter(None, (made.forward, made.backward)):
            found.update(name for k in record.kernels for form in k.forms for name in form.constants)
    assert found >= set(CONSTANTS)


def test_a_text_is_launched_with_definitions_in_place_of_its_list() -> None:
    """Each beside what it means, neighbours that mean the same below that."""
    text = "// above\n\n" + listed(["VEC", "x_t", "y_t"]) + "\nint f() { return VEC; }\n"
    found = listing(text)
    assert found.names == ("VEC", "x_t", "y_t")
    assert found.filled(lambda name: f"define {name};") == (
        "// above\n\ndefine VEC;  // elements of a vector\n// type of this operand's elements\ndefine x_t;\n"
        "define y_t;\n\nint f() { return VEC; }\n"
    )
    assert listing("int f();\n").names == () and listing("int f();\n").filled(str) == "int f();\n"


def test_a_glossary_says_once_what_a_constant_means() -> None:
    """Where it means two things, for texts of either kind."""
    rows, columns = ("THREADS", "ITEMS", "HAS_X", "size_D"), ("THREADS", "LANES", "ITEMS", "HAS_W", "x_t")
    assert glossary([rows, columns, rows]) == (
        (("THREADS",), "threads of a block"),
        (("LANES",), "threads of a block along neighbouring columns"),
        (("ITEMS",), "vectors of a thread"),
        (("ITEMS",), "elements along a column of a thread"),
        (("HAS_X", "HAS_W"), "whether the call has this operand"),
        (("size_D",), "length of D"),
        (("x_t",), "type of this operand's elements"),
    )
