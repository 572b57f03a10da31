"""Known calls in C++: what is launched, and what Python is asked for all the same. Kernels run on the host
executor, behind a function of the type of cuLaunchKernelEx."""

from __future__ import annotations

import ctypes
from functools import partial
from types import SimpleNamespace

import pytest

import normgen
from normgen import bundled
from normgen.launching.launch import HOST
from normgen.runtime.calls.prepared import Scratch
from normgen.runtime.calls.workspace import MEMORY
from normgen.runtime.norm import Norm
from normgen.runtime.planning.choose import plan_launches
from normgen.torch import native
from normgen.torch.function import NormFunction
from normgen.torch.steps import Step
from tests.codegen.residing import small_slices
from tests.threads import at_once, foreign
from tests.torch.norms import CASES, Case, batch, drawn, functional, nt, rms, same, torch

OWN = "\n# a node in C++\n"  # another text, so that no other test has its functions
NORMS = (
    *CASES,
    Case("softmax", {}, lambda x: functional.softmax(x, -1), ((3, 8),)),
    Case("batchnorm", {}, batch, ((3, 4, 5), (4,), (4,))),
)
MANY = CASES[0]._replace(shapes=((512, 2, 8), (8,)))  # rows, of which several blocks have some
grad = torch.autograd.grad


def _known(case=CASES[0], **attrs):
    """A norm whose calls, and those of its backward, are known; operands; a cotangent."""
    norm, operands = nt.load(bundled.read(case.name).text + OWN, **case.attrs), case.draw()
    for _ in range(2):
        grad(norm(*operands), operands, torch.randn(case.shapes[0]))
    return norm, operands, torch.randn(case.shapes[0])


@pytest.fixture
def python(launcher, runs):
    """The steps that run in Python."""
    return runs


@pytest.mark.parametrize("case", NORMS, ids=lambda case: case.name)
def test_known_calls_and_their_backwards_need_no_python(case, launcher, python):
    norm, operands, dy = _known(case)
    python.clear()
    launcher.launches.clear()
    y, want = norm(*operands), case.theirs(*operands)
    found = grad(y, operands, dy, retain_graph=True)
    assert python == [] and len(launcher.launches) >= 2
    assert y.grad_fn.name() == f"{norm._step.name}Backward" and y.requires_grad
    same(y, want)
    same(found, grad(want, operands, dy))
    # An engine may turn keys off.
    off = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._ExcludeDispatchKeyGuard(off):
        same(grad(y, operands, dy), found)
    assert python == []


def test_what_lies_otherwise_is_another_call(python):
    norm, (x, w), _ = _known()
    x, w = x.detach(), w.detach()
    others = torch.randn(4, 8), torch.randn(8, 3).t(), torch.randn(25)[1:].view(3, 8), x.bfloat16()
    norm(x, w)
    python.clear()
    for other in others:
        want = rms(other, w.to(other.dtype))
        for _ in range(2):
            same(norm(other, w.to(other.dtype)), want, 2e-2)
    norm(x, w, eps=1e-3)
    assert len(python) == 4


def test_tensors_of_inference_mode_are_known_with_others_of_their_layout(python):
    norm, x = nt.load(bundled.read("softmax").text + OWN), torch.randn(3, 7)
    with torch.inference_mode():
        inferred = x.clone()
    norm(x)
    python.clear()
    for each in (inferred, x, inferred):
        same(norm(each), x.softmax(-1))
    assert python == []


def test_gradients_that_nobody_needs_are_not_computed(launcher, python):
    norm, (x, w), dy = _known(MANY)
    counts = []
    for given, wanted in (((x, w), (x, w)), ((x, w.detach()), (x,))):
        for _ in range(3):
            y = norm(*given)
            launcher.launches.clear()
            python.clear()
            found = grad(y, wanted, dy)
        counts.append(len(launcher.launches))
        assert python == []
        same(found, grad(rms(*given), wanted, dy))
    assert counts[1] < counts[0]


def test_what_surrounds_known_calls_needs_no_python(python):
    (norm, (x, w), dy), add = _known(), nt.load(bundled.read("add_rmsnorm").text + OWN)
    (batch_norm, operands, _), states = _known(NORMS[-1]), [torch.zeros(4), torch.ones(4)]
    for _ in range(3):
        python.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            norm(x, w)
        grad(norm(x, w).sum(), (x, w))  # an expanded cotangent
        for place in (0, 1):
            grad(add(x, dy.clone(), w)[place], (x,), dy)  # one that is missing
        batch_norm(*operands, *states)
        for no_grad in (torch.no_grad, torch.inference_mode):
            with no_grad():
                y = norm(x, w)
            assert y.grad_fn is None
    assert python == []
    batch_norm(*operands[:2], running_mean=states[0], running_var=states[1])
    assert len(python) == 1  # operands by name are bound in Python


def test_transforms_modes_and_kinds_of_tensors_are_left_to_python(python):
    modes = pytest.importorskip("torch.testing._internal.logging_tensor")
    func, forward_ad = torch.func, torch.autograd.forward_ad
    norm, (x, w), dy = _known()
    with modes.capture_logs_with_logging_tensor_mode() as seen:
        norm(x, w)
    assert any(norm._step.name in name for name in seen)
    same(*(func.grad(lambda x, f=f: f(x, w).sin().sum())(x) for f in (norm, rms)))
    many = torch.stack([x, 2 * x])
    same(torch.vmap(lambda x: norm(x, w))(many), rms(many, w))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), dy)
        same(*(forward_ad.unpack_dual(each(dual, w)).tangent for each in (norm, rms)))
    kind = x.detach().as_subclass(type("Kind", (torch.Tensor,), {}))
    same(norm(kind, w).as_subclass(torch.Tensor), rms(x, w))
    for strange in (x.detach().to_sparse(), torch.nested.nested_tensor([torch.ones(2, 8)])):
        with pytest.raises(NotImplementedError, match="which kernels do not support"):
            norm(strange, w)
    same(torch.compile(lambda x: norm(x, w), fullgraph=True, backend="aot_eager")(x), rms(x, w))
    with pytest.raises(TypeError, match="takes tensors, but w is of type float"):
        norm(x, 1.0)


def test_threads_that_python_has_not_made_may_call(python):
    norm, x = nt.load(bundled.read("batchnorm").text + OWN), torch.randn(8, 4, 300, 300)[:, :, ::2]
    want = [norm(x) for _ in range(2)][-1]
    python.clear()
    made = foreign(lambda: norm(x))
    made += at_once(*[lambda: norm(x)] * 3)
    assert python == [] and all(torch.equal(each, want) for each in made)


def test_a_refused_launch_is_made_by_python_and_a_later_one_is_an_error(launcher, python):
    norm, (x, w), dy = _known(MANY)
    python.clear()
    launcher.codes = [201, 201]  # of the function, and of its operator
    same(norm(x, w), rms(x, w))
    assert len(python) == 1
    y = norm(x, w)
    launcher.codes = [0, 700]
    with pytest.raises(RuntimeError, match="launch 2 of a call failed with error 700"):
        grad(y, (x, w), dy)


@pytest.mark.parametrize("done", (0, 1))
def test_a_known_call_that_fails_leaves_zeros(done, launcher, python, monkeypatch):
    """What a kernel wrote that ended early is not there for the next call, by whomever that is made."""
    small_slices(monkeypatch)
    text = f"{bundled.read('groupnorm_channels_last').text}{OWN}# {done} done\n"
    package = normgen.load(text, groups=4).package
    norm = NormFunction(Norm(package, planner=partial(plan_launches, strategy="resident")))
    given, dy = (drawn(1, 6, 50, 32), drawn(32)), torch.randn(1, 6, 50, 32)
    want = [grad(norm(*given), given, dy) for _ in range(2)][-1]
    y, zeros, seen = norm(*given), MEMORY.zeros(HOST, 0, 1), []
    words = (ctypes.c_ubyte * 8).from_address(zeros.address)

    def fail():
        words[7] = 1
        return 700

    def run(*arguments):
        seen.append(any(words))
        return ran(*arguments)

    ran = Step.run
    monkeypatch.setattr(Step, "run", run)
    python.clear()
    launcher.codes = [*[0] * done, fail]
    if done:
        with pytest.raises(RuntimeError, match="launch 2 of a call failed with error 700"):
            grad(y, given, dy, retain_graph=True)
    same(grad(y, given, dy), want)
    assert seen == [False] * (1 - done) and not any(words) and not launcher.codes


def test_a_build_without_cuda_keeps_no_calls_on_a_gpu(extension):
    device, node = SimpleNamespace(scratch=Scratch(), device=("cuda", 0)), SimpleNamespace(has_cuda=False)
    assert native.prepared_in_extension(node, None, device, (), ()) is None
    calls, x = extension.Calls(8, []), torch.randn(2)
    calls.learn((1,), (x,), lambda: None)
    assert calls.run((1,), (), (x,)) is None
    host = native.filled(extension.Prepared(), operands=1, fields=[-1])
    calls.learn((1,), (x,), lambda: host)
    assert calls.run((1,), (), (x,)) == (None,)


def test_forgotten_calls_are_prepared_again(python, monkeypatch):
    norm, (x, w), _ = _known()
    norm._step.calls.forget()
    python.clear()
    for _ in range(2):
        same(norm(x, w), rms(x, w))
    assert len(python) == 1
    monkeypatch.setattr("normgen.torch.calls.KEPT", 3)
    norm, w = nt.load(bundled.read("rmsnorm").text + OWN + "# few are kept\n"), w.detach()
    for rows in (1, 2, 3, 4, 5) * 2:
        python.clear()
        x = torch.randn(rows, 8)
        for _ in range(2):
            same(norm(x, w), rms(x, w))
        assert len(python) == 1, "it was forgotten, and is learnt"


def test_errors_of_python_backwards_reach_the_caller(launcher, monkeypatch):
    norm, (x, w), dy = _known()

    def fails(*_):
        raise KeyError("as asked")

    y = norm(x, w)
    monkeypatch.setattr(Step, "run", fails)
    with pytest.raises(KeyError, match="as asked"):
        grad(y, (x, w), dy.bfloat16().float().transpose(0, 1).contiguous().transpose(0, 1))
