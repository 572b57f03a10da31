"""`nt.nn.from_spec`: modules of any spec."""

from __future__ import annotations

import pytest

import normgen
from normgen import bundled
from tests.torch.norms import functional, nt, rms, torch
from tests.torch.test_modules import copies

from_spec, close, exact = nt.nn.from_spec, torch.testing.assert_close, torch.float64

SCALED = """
norm scaled "A norm of two inputs, and one output after another."

attr   power = 2               "of the mean"
attr   twice: bool = false     "whether all is doubled"

input  x[..., D]
param  w[D] = 1                "gain"
input  z[..., D]
param  s[]                     "scale"

let    factor = 2 if twice else 1
output y[..., D] = factor * w * s * x / max(mean[D](abs(x)), 1e-3) + 0 * power
output u[..., D] = z + x
"""


def _scaled(**attrs):
    return from_spec(SCALED, sizes={"D": 6}, init={"s": 0.5}, dtype=exact, **attrs)


def _draw(*shape):
    return torch.randn(shape, dtype=exact)


def test_params_are_parameters_and_inputs_arguments():
    norm, x, z = _scaled(), _draw(4, 6), _draw(4, 6)
    assert {name: tuple(p.shape) for name, p in norm.named_parameters()} == {"w": (6,), "s": ()}
    made = norm(x, z)
    want = 0.5 * x / x.abs().mean(-1, keepdim=True)
    close(tuple(made), (want, x + z))
    close(norm(z=z, x=x), made)
    made.y.sum().backward()
    assert norm.w.grad is not None and norm.s.grad is not None
    close(_scaled(twice=True)(x, z).y, 2 * want)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), ((torch.float32, 2e-6), (exact, 1e-12), (torch.bfloat16, 2e-2)), ids=str
)
def test_states_are_buffers_and_a_choice_follows_the_mode(dtype, tolerance):
    mine = from_spec("batchnorm", sizes={"C": 6}, momentum=0.3, dtype=dtype)
    theirs = torch.nn.BatchNorm1d(6, momentum=0.3, dtype=dtype)
    assert [name for name, _ in mine.named_buffers()] == ["running_mean", "running_var"]
    for training in (True, True, False):
        x = torch.randn(4, 6, 5, dtype=dtype)
        outcomes = [
            (each.train(training)(x), each.running_mean.to(dtype), each.running_var.to(dtype))
            for each in (mine, theirs)
        ]
        close(*outcomes, atol=tolerance, rtol=tolerance)


COUNTED = """
norm counted "A state that every call of the spec updates, and one that it leaves."

input  x[B, C]
state  seen[C] = 0
state  largest[C] = 3
update seen = seen + sum[B](x)
update largest = largest
output y[B, C] = (x - mean[B](x)) / largest + seen
"""
# What makes a module, and the states that training updates.
STATEFUL = {
    "mode": (lambda **how: from_spec("batchnorm", sizes={"C": 6}, **how), ("running_mean", "running_var")),
    "training is given": (
        lambda **how: from_spec("batchnorm", sizes={"C": 6}, training=True, **how),
        ("running_mean", "running_var"),
    ),
    "no mode": (lambda **how: from_spec(COUNTED, sizes={"C": 6}, **how), ("seen",)),
    "one is left out": (
        lambda **how: from_spec("batchnorm", sizes={"C": 6}, omit=("running_mean",), training=True, **how),
        ("running_var",),
    ),
}


@pytest.mark.parametrize("dtype", (torch.float32, exact, torch.bfloat16), ids=str)
@pytest.mark.parametrize(("make", "moved"), STATEFUL.values(), ids=STATEFUL)
def test_states_are_updated_in_training_alone(make, moved, dtype):
    """Results are those of the states, in either mode."""
    norm, x = make(dtype=dtype), torch.randn(4, 6, dtype=dtype)
    norm(x)
    for run in (norm, torch.compile(norm, backend="aot_eager", fullgraph=True)):
        before = {name: each.clone() for name, each in norm.named_buffers()}
        versions = [each._version for each in norm.buffers()]
        got = norm.eval()(x), run(x)
        assert got[0].equal(got[1]) and [each._version for each in norm.buffers()] == versions
        norm.train()(x)
        after = dict(norm.named_buffers())
        assert {name for name in after if not after[name].equal(before[name])} == {*moved}


def test_a_choice_that_is_given_does_not_follow_the_mode():
    norm, x = from_spec("batchnorm", sizes={"C": 6}, training=False, dtype=exact), _draw(4, 6)
    close(norm.train()(x), x / (1 + 1e-5) ** 0.5)


def test_what_is_omitted_takes_the_defaults_of_the_spec():
    norm = from_spec("groupnorm", sizes={"(G C)": 6}, groups=3, omit=("b",), dtype=exact)
    assert norm.b is None and norm.w.shape == (6,)
    x = _draw(4, 6, 5)
    close(norm(x), functional.group_norm(x, 3))
    apart = from_spec("groupnorm", sizes={"C": 2}, groups=3, omit=("b",))
    assert repr(apart) == "groupnorm(w=(6,), b=None, groups=3, eps=1e-05)"


def test_sources_are_those_of_load_and_numbers_may_be_changed(tmp_path):
    path, x, norm = tmp_path / "mine.norm", _draw(4, 6), normgen.load("rmsnorm")
    path.write_text(bundled.read("rmsnorm").text)
    for source in ("rmsnorm", path, path.read_text(), norm, nt.load("rmsnorm")):
        module = from_spec(source, sizes={"D": 6}, dtype=exact, eps=0.5)
        close(module(x), rms(x, None, 0.5))
    module.attrs["eps"] = 1e-3
    close(module(x), rms(x, None, 1e-3))
    fixed = from_spec(normgen.load("rmsnorm", eps=0.5), sizes={"D": 6}, dtype=exact)
    close(fixed(x), rms(x, None, 0.5))


def test_modules_are_copied_pickled_and_made_without_memory():
    norm, x, z = _scaled(), _draw(4, 6), _draw(4, 6)
    for each in copies(norm):
        close(each(x, z), norm(x, z), atol=0, rtol=0)
    meta = from_spec(SCALED, sizes={"D": 6}, init={"s": torch.nn.init.ones_}, device="meta")
    assert meta.w.device.type == "meta"
    meta.to_empty(device="cpu").reset_parameters()
    assert meta.s == 1 and (meta.w == 1).all()


@pytest.mark.parametrize(
    ("call", "fault", "message"),
    [
        (lambda: from_spec("rmsnorm"), ValueError, r"pass sizes=\{'D': 64\}"),
        (lambda: from_spec("rmsnorm", sizes={"E": 4}), ValueError, "no param or state along 'E'"),
        (lambda: from_spec("groupnorm", sizes={"G": 2}, groups=2), ValueError, "fixed by groupnorm"),
        (lambda: from_spec("rmsnorm", sizes={"D": 4}, omit=("y",)), ValueError, "no param or state 'y'"),
        (lambda: from_spec("rmsnorm", sizes={"D": 4}, init={"v": 1}), ValueError, "no param or state 'v'"),
        (lambda: from_spec(SCALED, sizes={"D": 4}), ValueError, r"init=\{'s': 0.5\}"),
        (lambda: from_spec("rmsnorm", sizes={"D": 4}, groups=2), normgen.SpecError, "no attr `groups`"),
        (lambda: from_spec(3), TypeError, "expected a spec"),
        (lambda: _scaled()(_draw(4, 6)), TypeError, "z is missing"),
        (lambda: _scaled()(*[_draw(4, 6)] * 3), TypeError, "takes 2 tensors, but 3 are given"),
        (lambda: _scaled()(_draw(4, 6), x=_draw(4, 6)), TypeError, "x is given twice"),
        (lambda: _scaled()(_draw(4, 6), w=_draw(6)), TypeError, "w is not one of its inputs"),
    ],
)
def test_mistakes_are_named(call, fault, message):
    with pytest.raises(fault, match=message):
        call()
