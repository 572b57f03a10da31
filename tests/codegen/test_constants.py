"""What a text reads and what a launch sets: the constants of `FormRecord` and of `Call.launch`."""

from __future__ import annotations

from normgen.package.constants import CONSTANTS, listed, listing
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
    text = (
        "// above\n\n"
        + listed([("N", "elements"), ("x_t", "types"), ("y_t", "types")])
        + "\nint f() { return N; }\n"
    )
    found = listing(text)
    assert found.names == ("N", "x_t", "y_t")
    assert found.filled(lambda name: f"define {name};") == (
        "// above\n\ndefine N;  // elements\n// types\ndefine x_t;\ndefine y_t;\n\nint f() { return N; }\n"
    )
    assert listing("int f();\n").names == () and listing("int f();\n").filled(str) == "int f();\n"
