"""What constants decide goes, and nothing else: bodies of functions, and texts of several declarations."""

from __future__ import annotations

from collections import ChainMap

import pytest

from normgen.page.fold import Folder
from normgen.page.preprocess import preprocess
from normgen.page.program import reduced, settled
from normgen.page.syntax import Edits, parse
from normgen.page.values import Facts, Known

KNOWN = {"YES": True, "NO": False, "FOUR": 4}


def folded(body: str) -> str:
    """The statements of a body, of which each has its line."""
    before, text = "", f"void f() {{\n{body}\n}}"
    while before != text:
        edits = Edits(text)
        known = Known(Facts(), ChainMap(dict(KNOWN)))
        Folder(edits, lambda *_: None).fold(parse(text), known)
        before, text = text, edits.applied()
    return text.partition("{")[2].rpartition("}")[0].strip()


def reached(before: str, kernel: str) -> str:
    """What is left of declarations for a kernel."""
    return _alone(settled(_whole(before, kernel)).text)


def flagless(before: str, kernel: str) -> str:
    """What is left of declarations for a kernel, without flags."""
    return " ".join(_alone(reduced(_whole(before, kernel))).split())


def _whole(before: str, kernel: str) -> str:
    return f"{before}\nnamespace kernel_1 {{\n{kernel}\n}}\n"


def _alone(text: str) -> str:
    before, _, kernel = text.partition("namespace kernel_1 {")
    return f"{before.strip()}\n{kernel.strip().removesuffix('}').strip()}".strip()


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("if constexpr (YES) f();", "f();"),
        ("if constexpr (NO) f();", ""),
        ("if (x && YES) f();", "if (x) f();"),
        ("if (x || FOUR == 4) f();", "f();"),
        ("if (f() || YES) g();", "if (f() || YES) g();"),  # f may do something
        ("if (NO && f()) g();", ""),
        ("x = YES ? a : b;", "x = a;"),
        ("x = 2 * (NO ? a : b + c);", "x = 2 * (b + c);"),
        ("x = 2 * (YES ? a : b + c);", "x = 2 * a;"),
        ("x = YES && n;", "x = YES && n;"),  # a truth, where n is a number
        ("x = YES && n < 3;", "x = n < 3;"),
        ("int a[NO ? FOUR : 1]; g(a);", "int a[1]; g(a);"),
        ("x = FOUR * y;", "x = FOUR * y;"),
        ("x = YES * (y + 1) + NO * z;", "x = (y + 1) + 0;"),
        ("{ f(); return; } g();", "f(); return;"),
        ("int a = 1, b = a; f(a);", "int a = 1, b = a; f(a);"),
        ("if (FOUR / 3 == 1 && FOUR % 3 == 1 && -FOUR / 3 == -1) f();", "f();"),
        ("static_assert(FOUR > 4); f();", "static_assert(FOUR > 4); f();"),
        ("if constexpr (YES) return f(); g();", "return f();"),
        ("const bool all = FOUR == 4; if (all) f();", "f();"),
        ("const auto unused = [&](int i) { return i; }; f();", "f();"),
        ("float unused[4] = {}; float also[2] = {g()}; f();", "float also[2] = {g()}; f();"),
        ("int unused = g(); f();", "int unused = g(); f();"),
        ("__shared__ int unused[NO ? FOUR : 1]; f();", "f();"),
        ("extern __shared__ int unused[]; f();", "extern __shared__ int unused[]; f();"),
        ("for (int i = 0; i < 3; ++i) { if constexpr (NO) f(i); }", ""),
        ("const auto f = [&](int i) { if constexpr (NO) g(i); h(i); }; f(1);",
         "const auto f = [&](int i) { h(i); }; f(1);"),
        ("if (x) { if constexpr (YES) if (y) f(); } else g();", "if (x) { if (y) f(); } else g();"),
        ("if (x) if (y) f(); else if constexpr (NO) h(); else g();", "if (x) if (y) f(); else g();"),
        ("if (x) if (y) f(); else { if constexpr (NO) h(); } else g();",
         "if (x) if (y) f(); else { } else g();"),
        ("switch (x) { case 0:\n#pragma unroll\nfor (;;) f(); break; case 1: g(); }",
         "switch (x) { case 0: #pragma unroll for (;;) f(); break; case 1: g(); }"),
        ("if constexpr (FOUR > -1) f();", "f();"),
        ("if (x) if constexpr (YES) { if (y) f(); } else h(); else g();",
         "if (x) { if (y) f(); } else g();"),
    ],
)  # fmt: skip
def test_what_is_decided_goes(body: str, wanted: str) -> None:
    assert " ".join(folded(body).split()) == wanted


@pytest.mark.parametrize(
    "body",
    [
        "const bool YES = f(); if (YES) g();",
        "for (int FOUR = 0; FOUR < n; ++FOUR) { if (FOUR == 4) f(); }",
        "const auto f = [&](bool YES) { if (YES) g(); }; f(true);",
        "bool NO, YES; if (YES) g(NO);",
        "T* YES = f(); if (YES) g();",
    ],
)
def test_a_name_that_is_declared_again_is_no_constant(body: str) -> None:
    assert " ".join(folded(body).split()) == body


def test_a_block_whose_names_are_used_beside_it_keeps_its_braces() -> None:
    body = "int n = g(); if constexpr (YES) { int n = f(); h(n); } h(n);"
    assert " ".join(folded(body).split()) == "int n = g(); { int n = f(); h(n); } h(n);"


def test_what_was_in_braces_moves_out() -> None:
    inner = "        if constexpr (YES) {\n            f();\n            g();\n        }\n"
    body = f"    if constexpr (YES) {{\n{inner}    }}"
    assert folded(body) == "f();\n    g();"


def test_comments_go_with_what_they_are_of() -> None:
    body = (
        "    // of f\n    if constexpr (NO) f();  // here too\n    // of g\n    g();  // and this\n    h();"
    )
    assert folded(body) == "// of g\n    g();  // and this\n    h();"


def test_a_parameter_with_one_value_is_known_inside() -> None:
    before = """
template <bool FAST, int N> void run(float (&x)[N]) { if constexpr (FAST) quick(x); else slow(x); }
void quick(float* x);
void slow(float* x);
"""
    assert reached(before, "void kernel() { float x[3]; run<true>(x); }") == (
        "template <bool FAST, int N> void run(float (&x)[N]) { quick(x); }\nvoid quick(float* x);\n"
        "void kernel() { float x[3]; run<true>(x); }"
    )
    assert "slow" in reached(before, "void kernel() { float x[3]; run<true>(x); run<false>(x); }")


def test_a_parameter_that_is_deduced_has_the_values_of_what_it_is_deduced_from() -> None:
    before = """
template <int N, bool WIDE = false> struct Vector { float x[N]; };
template <int N, bool WIDE> void clear(Vector<N, WIDE>& v) { if constexpr (WIDE) far(v); else near(v); }
"""
    assert "far" not in reached(before, "void kernel() { Vector<4> v; clear(v); }")
    assert "near" not in reached(before, "void kernel() { Vector<4, true> v; clear(v); }")
    both = reached(before, "void kernel() { Vector<4> v; Vector<4, true> w; clear(v); clear(w); }")
    assert "near" in both and "far" in both


def test_specialisations_that_no_use_can_mean_go() -> None:
    before = """
template <int N, bool WIDE = (N > 4)> struct Room { float x[N]; };
template <int N> struct Room<N, true> { float wide[N]; };
"""
    assert "wide" not in reached(before, "void kernel() { Room<4> room; f(room); }")
    assert "wide" in reached(before, "void kernel() { Room<5> room; f(room); }")


def test_calls_of_what_does_nothing_go_and_what_is_always_the_same_is_known() -> None:
    before = """
template <bool YES> void wait() { if constexpr (YES) really(); }
template <int N> struct Places {
    static bool has(int i) { if constexpr (N == 1) return true; return i < N; }
};
"""
    kernel = "void kernel() { wait<false>(); if (Places<1>::has(3)) f(); }"
    assert " ".join(reached(before, kernel).split()) == "void kernel() { f(); }"
    assert "has(3)" in reached(before, kernel.replace("Places<1>", "Places<2>"))


def test_a_lambda_is_not_taken_for_a_function_of_its_name() -> None:
    before = """
struct Row { static void fill() {} static bool has(int i) { return true; } };
"""
    kernel = "void kernel() { Row::fill(); const auto fill = [&] { store(); }; fill(); }"
    assert reached(before, kernel).count("fill()") == 1
    hidden = "void kernel(Has has) { if (has(1)) f(); if (Row::has(1)) g(); }"
    assert "if (has(1)) f();" in reached(before, hidden)


def test_a_function_that_returns_a_short_expression_is_that_expression() -> None:
    before = """
template <bool LAST, class Index> Index block() { return Index(LAST ? most - 1 - number : number); }
template <int N> int lane() { return thread % N; }
"""
    kernel = "void kernel() { int a = lane<4>(); f(a, 2 * lane<4>(), 2 * block<false, int>()); }"
    left = reached(before, kernel)
    assert "int a = thread % 4;" in left and "2 * int(number)" in left and "block" not in left
    assert "2 * lane<4>()" in left  # it would need brackets, and have another type perhaps


def test_a_local_is_unread_though_others_have_its_name() -> None:
    before = "struct Row { static int column(int i) { return 2 * i; } };\n"
    one = "{ const int column = Row::column(i); f(i); }"
    other = "{ const int column = Row::column(i); f(column); }"
    left = reached(before, f"void kernel(int i) {{ {one} {other} }}")
    assert left.count("const int column") == 1


def test_an_unread_local_goes_though_a_name_of_a_type_makes_it() -> None:
    left = reached("", "using index_t = int; void kernel(int* x) { int* y = x + index_t(3); f(index_t(4)); }")
    assert "y" not in left and "f(index_t(4))" in left


def test_flags_with_one_value_go() -> None:
    before = """
// N values.
// WIDE: one more.
template <int N, bool WIDE = false> struct Vector { float x[WIDE ? N + 1 : N]; };
template <bool FAST, class T, int N, bool WIDE> void load(Vector<N, WIDE>& v, T* t) { t->read(v.x, FAST); }
"""
    kernel = "void kernel(T* t) { Vector<4> v; load<true>(v, t); }"
    left = flagless(before, kernel)
    assert "template <int N> struct Vector { float x[N]; };" in left and "WIDE" not in left
    assert "template <class T, int N> void load(Vector<N>& v, T* t) { t->read(v.x, true); }" in left
    assert left.endswith("void kernel(T* t) { Vector<4> v; load(v, t); }")
    both = flagless(before, kernel.replace("load<true>", "Vector<4, true> w; f(w); load<true>"))
    assert "Vector<4, true> w" in both and "struct Vector { float x[WIDE ? N + 1 : N]; }" in both


def test_an_object_that_is_made_by_a_constructor_stays() -> None:
    before = "struct Lock { Lock() { enter(); } };\nstruct Pair { int a, b; };\n"
    left = reached(before, "void kernel() { Lock lock; Pair pair; }")
    assert "Lock lock;" in left and "Pair" not in left


def test_a_member_hides_what_the_file_has_by_its_name() -> None:
    before = "using word_t = int;\nstruct Vector { using word_t = short; word_t word; };\n"
    assert "int" not in reached(before, "void kernel() { Vector v; v.word = 1; }")
    assert "int" in reached(before, "void kernel() { Vector v; word_t w = f(v); }")


def test_conditions_of_the_preprocessor() -> None:
    text = "#if !defined(HOST) && ARCH >= 900\na\n#elif ARCH >= 800\nb\n#else\nc\n#endif\n"
    assert preprocess(text, {"ARCH": 900}).split() == ["a"]
    assert preprocess(text, {"ARCH": 800}).split() == ["b"]
    assert preprocess(text, {"HOST": 1}).split() == ["c"]
    assert preprocess("#define DIMS\nvoid DIMS f();", {}) == "void f();"
    assert preprocess("#define DIMS two(2)\nvoid DIMS f();", {}) == "void two(2) f();"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("const int a = n;\n{\nconst int a = m;\nf(a);\n}", "const int a = m;\nf(a);"),
        ("const int a = n;\n{\nf(a);\nint a = m;\n}", "const int a = n;\n{\nf(a);\nint a = m;\n}"),
        ("const auto g = [&] {\nconst int a = n;\nf();\n};\ng();", "const auto g = [&] {\nf();\n};\ng();"),
    ],
    ids=["hidden in a block", "read before it is hidden", "in a lambda"],
)  # fmt: skip
def test_locals_that_nothing_reads_go(body: str, wanted: str) -> None:
    assert folded(body) == wanted


def test_a_parameter_of_a_template_is_no_use_of_a_constant() -> None:
    before = "template <bool FLAG> struct Layout { static int at() { return FLAG; } };"
    kernel = (
        'constexpr bool FLAG = true;\nextern "C" __global__ void k(int* x) { x[0] = Layout<true>::at(); }'
    )
    assert "constexpr" not in reached(before, kernel)
