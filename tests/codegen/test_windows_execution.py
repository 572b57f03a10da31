"""Kernels of the windows family on the checked host executor against float64: every form, both directions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.families.windows.launch.shape import shape_of
from normgen.families.windows.launch.space import made as every_one
from normgen.runtime.norm import Norm
from normgen.verify.cases import DTYPE_SETS
from tests.codegen.windowing import ACROSS, GROUPS, LAST, WITHIN, case, subject, text
from tests.sampling import paired
from tests.verify.subjects import CHECKED, bundled_subject, prove

# Windows along C: as the systems bound them, to one side, apart from the element, wider than the axis.
WINDOWS = ("-2 .. 2", "-2 .. 1", "-4 .. 0", "1 .. 2", "-9 .. 9", "0 .. 0")
# Lengths of B, C, ...: neighbours drift by 0, 1, 2; vectors of 1 to 4; few places; many steps; images of
# several warps, with and without drift.
LENGTHS = ((2, 8, 16), (1, 12, 25), (2, 5, 7), (1, 1, 9), (2, 40, 1), (2, 8, 245), (1, 4, 396))


WALKS = [*(("march", n) for n in LENGTHS), *(("pixels", n) for n in LENGTHS[1:6:2]), ("direct", LENGTHS[0])]


@pytest.mark.parametrize("place", range(len(WALKS)), ids=lambda place: f"{WALKS[place]}")
def test_across_channels(place):
    """With each set of element types in turn."""
    form, lengths = WALKS[place]
    found = subject(text(), form)
    sizes = dict(zip(("B", "C", "rest"), lengths, strict=True))
    prove(found, case(found, sizes, DTYPE_SETS[place % len(DTYPE_SETS)]))


@pytest.mark.parametrize(("form", "window"), paired(["march", "pixels", "direct"], WINDOWS))
def test_bounds_of_the_window(form, window):
    found = subject(text(window=f"C: {window}"), "" if window == "0 .. 0" else form)
    prove(found, case(found, {"B": 2, "C": 8, "rest": 9}))


@pytest.mark.parametrize(("form", "window"), paired(["span", "direct"], ["-2 .. 1", "1 .. 3"]))
def test_channels_last(form, window):
    found = subject(text(LAST, f"C: {window}"), form)
    for channels in (3, 8, 32) if form == "span" else (3,):
        prove(found, case(found, {"B": 2, "C": channels, "rest": 5}, "bf16" if channels == 8 else "f32"))


@pytest.mark.parametrize(("form", "window"), paired(["", "direct"], ["H: -1 .. 1, W: -7 .. 1", "H: 0 .. 2"]))
def test_within_channels(form, window):
    found = subject(text(WITHIN, window), form)
    for height, width in ((9, 8), (1, 1), (4, 5)):
        prove(found, case(found, {"B": 2, "C": 2, "H": height, "W": width}))


@pytest.mark.parametrize(
    ("x", "window"), [(ACROSS, "C: 0 .. 3"), (LAST, "C: -2 .. 1"), (WITHIN, "H: -1 .. 1, W: -1 .. 1")]
)
def test_a_denominator_computed_again(x, window):
    found = subject(text(x, window, "let"))
    axes = ["rest" if axis.name == "..." else axis.name for axis in found.norm.package.axes]
    for form in {f.form for f in found.norm.package.backward.strategies[0].kernels[0].forms}:
        one = subject(text(x, window, "let"), form)
        prove(one, case(one, dict(zip(axes, (2, 6, 9, 4), strict=False))))


@pytest.mark.parametrize("form", ["march", "pixels", "direct"])
def test_windows_stay_within_their_group(form):
    found = subject(text(GROUPS), form)
    prove(found, case(found, {"B": 2, "G": 2, "C": 4, "rest": 9}))


@pytest.mark.parametrize(("offset", "pitch"), [(1, "padded"), (2, "")])
def test_any_address_and_stride(offset, pitch):
    found = subject(text())
    where = case(found, {"B": 2, "C": 8, "rest": 16}, "f16", offset=offset, pitch=pitch, given_out=True)
    prove(found, where)


OPERANDS = """norm weighted
attr beta = 0.5
input x[B, C, ...]
input scale[B]
input p[...]
param w[C] = 1
param v[] = 1
param z[B, C, ...] = 0
let d = 1 + sum[C: -2 .. 1](w * v * x^2 + p)
output y[B, C, ...] = (v * x + z) * scale * d^-beta
grad y wrt z
"""


# Where every operand has all of an image or none, it is walked.
WHOLE = """norm whole
attr beta = 0.5
input x[B, C, ...]
input scale[B]
param z[B, C, ...] = 0
let d = 1 + sum[C: -2 .. 1](scale * x^2)
output y[B, C, ...] = (x + z) * scale * d^-beta
output q[B, C, ...] = z * d + sum[C: 0 .. 2](x * z)
grad y, q wrt {wrt}
"""


@pytest.mark.parametrize(
    ("text", "form", "absent", "accumulate"),
    [
        (OPERANDS, "", (), True), (OPERANDS, "", ("w", "z"), False),
        (WHOLE.format(wrt="z"), "march", (), True), (WHOLE.format(wrt="x"), "pixels", ("z",), True),
        (WHOLE.format(wrt="z"), "pixels", (), False),
    ],
    ids=["parts", "parts-absent", "march", "pixels-absent", "pixels"],
)  # fmt: skip
def test_operands_with_any_of_the_axes(text, form, absent, accumulate):
    found = subject(text, form)
    prove(found, case(found, {"B": 2, "C": 5, "rest": 35}, absent=absent, accumulate=accumulate))


def test_many_images():
    found = subject(text())
    prove(found, case(found, {"B": 70000, "C": 3, "rest": 1}), HostExecutor())


@pytest.mark.parametrize("form", ["march", "pixels"])
def test_denominators_that_are_not_positive(form):
    norm = subject(text(), form).norm.on(CHECKED)
    x = np.zeros((1, 4, 4), np.float32)
    x[0, 0] = [0.0, 1.0, 2.0, 1e-20]
    for beta, k in ((0.75, 0.0), (0.75, -3.0), (1.0, -3.0), (0.5, 0.0), (0.3, -1.0)):
        got = norm.forward(x=x, alpha=1.0, beta=beta, k=k)
        d = k + np.stack([(x[:, max(0, c - 2) : c + 3].astype(np.float64) ** 2).sum(1) for c in range(4)], 1)
        with np.errstate(all="ignore"):
            want = x * np.power(d.astype(np.float32).astype(np.float64), -beta)
        np.testing.assert_allclose(np.asarray(got.y), want, rtol=2e-6)


@pytest.mark.parametrize(
    ("form", "window", "keep"),
    [("march", "C: -2 .. 2", "let"), ("march", "C: -2 .. 2", "save"), ("pixels", "C: -1 .. 1", "let")],
)
def test_every_form_gives_the_same_bits(form, window, keep):
    """Those of the form that takes each power by itself, where denominators are not positive too: NaN,
    infinite, or neither. (Pixels add up three neighbours in the order of the others, and no more.)"""
    x, dy = np.random.default_rng(6).standard_normal((2, 1, 19, 37)).astype(np.float32)
    x[0, :, :4], x[0, 3, 1] = 0.0, 1e-20
    walk, direct = (
        subject(text(window=window, keep=keep), each).norm.on(CHECKED) for each in (form, "direct")
    )
    for k, alpha in ((1.0, 0.25), (0.0, 1.0), (-3.0, 1.0), (2.0, -0.5)):
        for beta in (0.75, 0.5, 1.0, 0.3):
            given = {"x": x, "beta": beta, "k": k, "alpha": alpha}
            made, want = walk.forward(**given), direct.forward(**given)
            np.testing.assert_array_equal(made.y, want.y)
            saved = {"d": want.d} if keep == "save" else {}
            found = (each.backward(dy=dy, **given, **saved).dx for each in (walk, direct))
            np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("x", "lengths"), [(ACROSS, (2, 16, 9)), (LAST, (2, 5, 8))])
def test_the_same_bits_whatever_the_schedule(monkeypatch, x, lengths):
    values = np.random.default_rng(4).standard_normal(lengths).astype(np.float32)
    package = subject(text(x)).norm.package
    made = {}

    def run(pick):
        def choose(record, call):
            made["schedules"] = every_one(record, shape_of(record, call))
            made["chosen"] = pick(made["schedules"])
            return made["chosen"]

        monkeypatch.setattr("normgen.families.windows.launch.family.choose", choose)
        return np.asarray(Norm(package).on(CHECKED).forward(x=values).y).tobytes()

    orders = {False: run(lambda found: found[0])}
    for k in range(1, len(made["schedules"])):
        bits = run(lambda found, k=k: found[k])
        pixels = made["chosen"].form == "pixels"  # which add up by halves
        assert orders.setdefault(pixels, bits) == bits, made["chosen"]
    for base in made["schedules"]:
        for ranges in (1, 3) if base.form in ("march", "pixels") else ():
            length = -(-base.steps // ranges)
            other = replace(base, ranges=-(-base.steps // length), length=length)
            assert run(lambda found, other=other: other) == orders[base.form == "pixels"], other
    monkeypatch.undo()
    one = Norm(package).on(CHECKED).forward(x=values[1:]).y  # the other images are no matter
    assert np.asarray(one).tobytes() in orders[False]


@pytest.mark.parametrize("n", [1, 4, 5])
def test_local_response_norm_is_what_its_systems_compute(n):
    """y = x / d^beta over [c - n // 2, c + n - n // 2), its gradient over the transposed window; n divides
    also where the window is cut off."""
    alpha, beta, k, channels = 0.3, 0.75, 2.0, 7
    x, dy = np.random.default_rng(n).standard_normal((2, 2, channels, 9)).astype(np.float32)
    half, up = n // 2, n - n // 2

    def sums(values, low, high):
        return np.stack([values[:, max(0, c + low) : c + high + 1].sum(1) for c in range(channels)], 1)

    d = k + alpha * sums(x.astype(np.float64) ** 2, -half, up - 1) / n
    back = sums(dy * x * d ** (-beta - 1), 1 - up, half)
    norm = bundled_subject("local_response_norm", (("n", n),)).norm.on(CHECKED)
    given = {"alpha": alpha, "beta": beta, "k": k}
    made = norm.forward(x=x, **given)
    np.testing.assert_allclose(made.d, d, rtol=1e-6)
    np.testing.assert_allclose(made.y, x * d**-beta, rtol=2e-6, atol=1e-7)
    got = norm.backward(x=x, dy=dy, d=made.d, **given)
    want = dy * d**-beta - 2 * alpha * beta / n * x * back
    np.testing.assert_allclose(got.dx, want, rtol=1e-5, atol=1e-6)
