"""Long lines of kernel texts, folded where a reader would."""

from __future__ import annotations

import pytest

from normgen.kernel.folding import WIDTH, folded, laid_out, wrapped
from normgen.package.device_functions import file_text, files

OPERAND = "x_ptr + at_B * x_stride_B + row_offset<offset_t>(at_G, x_stride_G)"
WORDS = " ".join(["word"] * 25)
SPLIT = " ".join(["word"] * 21)
FOLDED = [
    # what a condition decides goes below it
    (
        f"if constexpr (WANT_Y && REALIGNED) Layout::store({OPERAND}, y_packed, lane);",
        f"if constexpr (WANT_Y && REALIGNED)\n    Layout::store({OPERAND}, y_packed, lane);",
    ),
    # what is assigned goes below, where that is one line
    (
        f"const auto some_words_of_x = load_vector<VEC>({OPERAND} + column);",
        f"const auto some_words_of_x =\n    load_vector<VEC>({OPERAND} + column);",
    ),
    # else arguments do, or what binds least in the first that does not fit
    (
        f"bulk_copy(x_pipeline + stage * ITEMS, {OPERAND}, slice * 2, &landed);",
        f"bulk_copy(x_pipeline + stage * ITEMS, {OPERAND},\n    slice * 2, &landed);",
    ),
    (
        f"store_vector({OPERAND} + {OPERAND}, lane);",
        f"store_vector({OPERAND} + x_ptr + at_B * x_stride_B\n"
        "    + row_offset<offset_t>(at_G, x_stride_G), lane);",
    ),
    # a comment behind code goes above it
    (
        "    const int column = (outer < 1 ? int(tile % TILES) * TILE : WIDTH) + lane % TILE;"
        "  // nothing beyond the last",
        "    // nothing beyond the last\n"
        "    const int column = (outer < 1 ? int(tile % TILES) * TILE : WIDTH) + lane % TILE;",
    ),
    (f"// {WORDS}\n// Apart.", f"// {SPLIT}\n// word word word word\n// Apart."),
]
# As templates have it, and as texts do.
LAID_OUT = [
    ("// let s0 = a\n// output y = s0\n//\n// a\n// text", "// let s0 = a\n// output y = s0\n//\n// a text"),
    ("for (int i = 0;\ni < N;\n++i) {\na();\n}", "for (int i = 0; i < N; ++i) {\na();\n}"),
    ("each([&](int i) {\nreturn i;\n});", "each([&](int i) {\nreturn i;\n});"),
    ("a =\n// why\nb;", "a =\n// why\nb;"),
    ("f(a,  // first\nb);", "f(a,  // first\nb);"),
    ("int x = a\n#pragma unroll\nb;", "int x = a\n#pragma unroll\nb;"),
    (
        'extern "C" __global__ void k(\nint a,\nint b) {\nf(\na);',
        'extern "C" __global__ void k(\nint a,\nint b) {\nf(a);',
    ),
]


@pytest.mark.parametrize(("text", "expected"), FOLDED)
def test_lines_are_cut_where_they_bind_least(text: str, expected: str) -> None:
    assert folded(text) == expected and folded(expected) == expected


@pytest.mark.parametrize(("text", "expected"), LAID_OUT)
def test_where_a_template_breaks_makes_no_difference(text: str, expected: str) -> None:
    assert laid_out(text) == expected and laid_out(expected) == expected


def test_what_has_nowhere_to_be_cut_stays() -> None:
    for text in (f"{'x' * 200};", f'f("{"a, b " * 40}");', f"#define A {'a + ' * 40}"):
        assert folded(text) == text


def test_formulas_go_on_further_in() -> None:
    assert wrapped("gradient dx = a + b + c", 16) == ["gradient dx = a", "    + b + c"]
    assert wrapped("gradient dx = a", 16) == ["gradient dx = a"]


def test_device_functions_keep_to_the_width() -> None:
    long = [(name, line) for name in files() for line in file_text(name).splitlines() if len(line) > WIDTH]
    assert not long
