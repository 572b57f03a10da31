"""`nt.nn.from_spec`: modules of any spec."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

import normgen
from normgen import bundled

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgen.torch")
from_spec = nt.nn.from_spec

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


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _scaled(**attrs):
    return from_spec(SCALED, sizes={"D": 6}, init={"s": 0.5}, dtype=torch.float64, **attrs)


def _draw(*shape):
    return torch.randn(shape, dtype=torch.float64)


def test_params_are_parameters_and_inputs_arguments():
    norm, x, z = _scaled(), _draw(4, 6), _draw(4, 6)
    assert {name: tuple(p.shape) for name, p in norm.named_parameters()} == {"w": (6,), "s": ()}
    made = norm(x, z)
    want = 0.5 * x / x.abs().mean(-1, keepdim=True)
    torch.testing.assert_close(tuple(made), (want, x + z))
    torch.testing.assert_close(norm(z=z, x=x), made)
    made.y.sum().backward()
    assert norm.w.grad is not None and norm.s.grad is not None
    torch.testing.assert_close(_scaled(twice=True)(x, z).y, 2 * want)


def test_attrs_that_are_no_choices_may_be_changed():
    norm, x = from_spec("rmsnorm", sizes={"D": 6}, eps=1e-3, dtype=torch.float64), _draw(4, 6)
    for eps in (1e-3, 0.5):
        norm.attrs["eps"] = eps
        torch.testing.assert_close(norm(x), torch.nn.functional.rms_norm(x, (6,), None, eps))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    ((torch.float32, 2e-6), (torch.float64, 1e-12), (torch.bfloat16, 2e-2)),
    ids=str,
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
        torch.testing.assert_close(*outcomes, atol=tolerance, rtol=tolerance)


def test_a_choice_that_is_given_does_not_follow_the_mode():
    norm = from_spec("batchnorm", sizes={"C": 6}, training=False, dtype=torch.float64)
    x = _draw(4, 6)
    torch.testing.assert_close(norm.train()(x), x / (1 + 1e-5) ** 0.5)


def test_what_is_omitted_takes_the_defaults_of_the_spec():
    norm = from_spec("groupnorm", sizes={"(G C)": 6}, groups=3, omit=("b",), dtype=torch.float64)
    assert norm.b is None and norm.w.shape == (6,)
    x = _draw(4, 6, 5)
    torch.testing.assert_close(norm(x), torch.nn.functional.group_norm(x, 3))
    apart = from_spec("groupnorm", sizes={"C": 2}, groups=3)
    assert apart.w.shape == (6,)


def test_sources_are_those_of_load(tmp_path):
    path = tmp_path / "mine.norm"
    path.write_text(bundled.read("rmsnorm").text)
    norm = normgen.load("rmsnorm")
    fixed = normgen.load("rmsnorm", eps=0.5)
    x = _draw(4, 6)
    for source in ("rmsnorm", path, path.read_text(), norm, nt.load("rmsnorm")):
        module = from_spec(source, sizes={"D": 6}, dtype=torch.float64, eps=0.5)
        torch.testing.assert_close(module(x), torch.nn.functional.rms_norm(x, (6,), None, 0.5))
    module = from_spec(fixed, sizes={"D": 6}, dtype=torch.float64)
    torch.testing.assert_close(module(x), torch.nn.functional.rms_norm(x, (6,), None, 0.5))


def test_the_representation_shows_the_spec():
    norm = from_spec("groupnorm", sizes={"C": 2}, groups=3, omit=("b",))
    assert repr(norm) == "groupnorm(w=(6,), b=None, groups=3, eps=1e-05)"


def test_modules_are_copied_pickled_and_made_without_memory():
    norm, x, z = _scaled(), _draw(4, 6), _draw(4, 6)
    saved = io.BytesIO()
    torch.save(norm, saved)
    saved.seek(0)
    copies = copy.deepcopy(norm), pickle.loads(pickle.dumps(norm)), torch.load(saved, weights_only=False)
    for each in copies:
        torch.testing.assert_close(each(x, z), norm(x, z), atol=0, rtol=0)
    meta = from_spec(SCALED, sizes={"D": 6}, init={"s": torch.nn.init.ones_}, device="meta")
    assert meta.w.device.type == "meta"
    meta.to_empty(device="cpu").reset_parameters()
    assert meta.s == 1 and (meta.w == 1).all()


@pytest.mark.parametrize(
    ("call", "fault", "message"),
    [
        (lambda: from_spec("rmsnorm"), ValueError, r"give it as sizes=\{'D': 64\}"),
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
        (lambda: _scaled()(_draw(4, 6), w=_draw(6)), TypeError, "w is none of its inputs"),
    ],
)
def test_mistakes_are_named(call, fault, message):
    with pytest.raises(fault, match=message):
        call()
