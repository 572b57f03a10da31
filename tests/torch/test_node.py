"""Known calls in C++: what is launched, what is recorded, and what Python is asked for all the same. Kernels
run on the host executor, behind a function of the type of cuLaunchKernelEx."""

from __future__ import annotations

import threading

import pytest

import normgen.torch.native as native
from normgen import bundled
from normgen.torch.steps import Step
from tests.fakes.launcher import HostLauncher
from tests.torch.norms import functional, nt, same, torch

pytestmark = pytest.mark.kernels
OWN = "\n# called in C++\n"  # a text of its own, so that no other test has its functions


@pytest.fixture(scope="module")
def extension():
    """The extension, which is built where it is not there yet."""
    before = native.EXTENSION.loaded
    found = native.EXTENSION.build()
    native.EXTENSION.loaded = before
    if found is None:
        pytest.skip(native.EXTENSION.fault)
    return found


@pytest.fixture(scope="module")
def only_launcher():
    return HostLauncher()


@pytest.fixture
def launcher(monkeypatch, extension, only_launcher):
    monkeypatch.setattr(native, "launcher_of", only_launcher.of)
    monkeypatch.setattr(native.EXTENSION, "loaded", extension)
    only_launcher.launches.clear()
    only_launcher.codes.clear()
    return only_launcher


@pytest.fixture
def python(monkeypatch):
    """The names of the steps that run in Python."""
    names = []
    run = Step.run

    def noted(self, *arguments):
        names.append(self.name.removesuffix("_forward"))
        return run(self, *arguments)

    monkeypatch.setattr(Step, "run", noted)
    return names


def load(name, **attrs):
    return nt.load(bundled.read(name).text + OWN, **attrs)


def _rms():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 8, generator=generator).requires_grad_()
    return x, torch.rand(8, generator=generator).requires_grad_()


def _theirs(x, w):
    return functional.rms_norm(x, (8,), w, 1e-6)


DY = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))


def known(norm, operands=None, cotangent=DY, **attrs):
    """The norm once its calls, and those of its backward, are known."""
    operands = operands or _rms()
    for _ in range(2):
        made = norm(*operands, **attrs)
        first = made[0] if isinstance(made, tuple) else made
        torch.autograd.grad(first, [each for each in operands if each.requires_grad], cotangent)
    return norm


def _batch(x, w, b):
    return functional.batch_norm(x, None, None, w, b, training=True)


PAIRS = {
    "rmsnorm": ({}, ((3, 8), (8,)), lambda x, w: functional.rms_norm(x, (8,), w, 1e-6)),
    "layernorm": ({}, ((3, 8), (8,), (8,)), lambda x, w, b: functional.layer_norm(x, (8,), w, b)),
    "groupnorm": ({"groups": 2}, ((3, 4, 5), (4,), (4,)), lambda x, w, b: functional.group_norm(x, 2, w, b)),
    "softmax": ({}, ((3, 8),), lambda x: functional.softmax(x, -1)),
    "batchnorm": (
        {},
        ((3, 4, 5), (4,), (4,)),
        _batch,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_known_calls_and_their_backwards_need_no_python(name, launcher, python):
    attrs, shapes, theirs = PAIRS[name]
    norm, generator = load(name, **attrs), torch.Generator().manual_seed(3)
    operands = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    cotangent = torch.randn(shapes[0], generator=generator)
    known(norm, operands, cotangent)
    python.clear()
    launcher.launches.clear()
    y = norm(*operands)
    found = torch.autograd.grad(y, operands, cotangent)
    assert python == [] and len(launcher.launches) >= 2
    assert y.grad_fn.name() == f"{norm._step.name}Backward" and y.requires_grad
    want = theirs(*operands)
    same(y, want)
    same(found, torch.autograd.grad(want, operands, cotangent))


def test_backwards_need_no_python_where_an_engine_turns_keys_off(launcher, python):
    norm, operands = known(load("rmsnorm")), _rms()
    y = norm(*operands)
    python.clear()
    off = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._ExcludeDispatchKeyGuard(off):
        found = torch.autograd.grad(y, operands, DY)
    assert python == []
    same(found, torch.autograd.grad(_theirs(*operands), operands, DY))


def test_what_lies_otherwise_is_another_call(launcher, python):
    norm, (x, w) = known(load("rmsnorm")), _rms()
    python.clear()
    for other in (
        torch.randn(4, 8),
        torch.randn(8, 3).t(),
        torch.randn(25)[1:].view(3, 8),
        x.detach().bfloat16(),
    ):
        same(norm(other, w.detach().to(other.dtype)), _theirs(other, w.detach().to(other.dtype)), 2e-2)
        assert len(python) == 1
        python.clear()
    norm(x, w, eps=1e-3)
    assert len(python) == 1


def test_calls_without_gradients_have_no_node(launcher, python):
    norm, (x, w) = load("rmsnorm"), _rms()
    for grad in (torch.no_grad, torch.inference_mode):
        with grad():
            norm(x, w)
            python.clear()
            y = norm(x, w)
            assert y.grad_fn is None and python == []
            assert y.is_inference() == (grad is torch.inference_mode)
        same(y, _theirs(x, w))


def test_gradients_that_nobody_needs_are_not_computed(launcher, python):
    norm, (x, w) = known(load("rmsnorm")), _rms()
    torch.autograd.grad(norm(x, w), (w,), DY)
    launcher.launches.clear()
    torch.autograd.grad(norm(x, w), (x, w), DY)
    both = len(launcher.launches)
    y = norm(x, w.detach())
    torch.autograd.grad(y, (x,), DY)
    y = norm(x, w.detach())
    launcher.launches.clear()
    python.clear()
    (dx,) = torch.autograd.grad(y, (x,), DY)
    assert python == [] and len(launcher.launches) < both - 1
    same(dx, torch.autograd.grad(_theirs(x, w), (x,), DY)[0])


def test_a_saved_tensor_that_changed_is_autograds_error(launcher):
    norm, (x, w) = known(load("rmsnorm")), _rms()
    y = norm(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, (x,), DY)


def test_a_graph_is_used_once_unless_it_is_retained(launcher):
    norm, (x, w) = known(load("rmsnorm")), _rms()
    y = norm(x, w)
    first = torch.autograd.grad(y, (x, w), DY, retain_graph=True)
    same(torch.autograd.grad(y, (x, w), DY), first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y, (x, w), DY)


@pytest.mark.parametrize("name", ("rmsnorm", "softmax"))
def test_second_derivatives_are_those_of_python(name, launcher):
    _, shapes, theirs = PAIRS[name]
    operands = _rms()[: len(shapes)]
    norm = known(load(name), operands)
    found = []
    for each in (norm, theirs):
        dy = DY.clone().requires_grad_()
        first = torch.autograd.grad(each(*operands), operands, dy, create_graph=True)
        found.append(torch.autograd.grad(sum(g.sin().sum() for g in first), (*operands, dy)))
    same(*found, 1e-4)


def test_cotangents_that_are_expanded_or_missing(launcher, python):
    norm, (x, w) = known(load("rmsnorm")), _rms()
    for _ in range(2):
        python.clear()
        found = torch.autograd.grad(norm(x, w).sum(), (x, w))
    assert python == []
    same(found, torch.autograd.grad(_theirs(x, w).sum(), (x, w)))
    add = load("add_rmsnorm")
    for place in (0, 1, 0, 1):
        python.clear()
        made, residual = add(x, DY, w), x + DY
        want = (residual, _theirs(residual, w))[place]
        got = torch.autograd.grad(made[place], (x,), DY)
        same(got, torch.autograd.grad(want, (x,), DY))
        assert made._fields == ("h", "y")
    assert python == []


def test_hooks_on_saved_tensors_are_called(launcher, python):
    norm, (x, w) = known(load("rmsnorm")), _rms()
    packed, python[:] = [], []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or (t * 1), lambda t: t):
        y = norm(x, w)
    assert len(packed) == 3 and python == []  # x, w and rstd
    same(torch.autograd.grad(y, (x, w), DY), torch.autograd.grad(_theirs(x, w), (x, w), DY))


def test_states_are_written_and_autograd_knows(launcher, python):
    norm, x = load("batchnorm"), torch.randn(4, 3, 5)
    weight = torch.rand(3, requires_grad=True)
    mean, var, their_mean, their_var = torch.zeros(3), torch.ones(3), torch.zeros(3), torch.ones(3)
    for _ in range(3):
        python.clear()
        version = mean._version
        norm(x, weight, running_mean=mean, running_var=var)
        norm(x, weight, None, mean, var, momentum=0.1)
        assert mean._version == version + 2
        for _ in range(2):
            functional.batch_norm(x, their_mean, their_var, weight, training=True)
    assert len(python) == 1  # operands by name are bound in Python
    same((mean, var), (their_mean, their_var))
    with pytest.raises(RuntimeError, match="is a state of batchnorm and cannot require a gradient"):
        norm(x, weight, None, mean.requires_grad_(), var)


def test_transforms_modes_and_kinds_of_tensors_are_left_to_python(launcher, python):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            seen.append(str(function))
            return function(*arguments, **(named or {}))

    seen = []
    norm, (x, w) = known(load("rmsnorm")), _rms()
    with Seen():
        norm(x, w)
    assert any(norm._step.name in name for name in seen)
    same(
        torch.func.grad(lambda x: norm(x, w).sin().sum())(x),
        torch.func.grad(lambda x: _theirs(x, w).sin().sum())(x),
    )
    batch = torch.stack([x, 2 * x])
    same(torch.vmap(lambda x: norm(x, w))(batch), _theirs(batch, w))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), DY)
        tangents = [torch.autograd.forward_ad.unpack_dual(each(dual, w)).tangent for each in (norm, _theirs)]
    same(*tangents)
    kind = x.detach().as_subclass(type("Kind", (torch.Tensor,), {}))
    same(norm(kind, w).as_subclass(torch.Tensor), _theirs(x, w))
    for strange in (x.detach().to_sparse(), torch.nested.nested_tensor([torch.ones(2, 8)])):
        with pytest.raises(NotImplementedError, match="which kernels do not take"):
            norm(strange, w)
    python.clear()
    compiled = torch.compile(lambda x: norm(x, w), fullgraph=True, backend="aot_eager")
    same(compiled(x), _theirs(x, w))
    with pytest.raises(TypeError, match="takes tensors, but w is of type float"):
        norm(x, 1.0)


def test_compiled_autograd_traces_a_node(launcher, python):
    from torch._dynamo import compiled_autograd

    norm, (x, w) = known(load("rmsnorm")), _rms()
    y = norm(x, w)
    python.clear()
    with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="aot_eager")):
        y.sin().sum().backward()
    assert len(python) == 1  # in the graph
    want = torch.autograd.grad(_theirs(x, w).sin().sum(), (x, w))
    same((x.grad, w.grad), want)


def test_a_refused_launch_is_made_by_python_and_a_later_one_is_an_error(launcher, python):
    norm, (x, w) = known(load("rmsnorm")), _rms()
    python.clear()
    launcher.codes = [201]
    y = norm(x, w)
    assert len(python) == 1
    same(y, _theirs(x, w))
    y = norm(x, w)
    launcher.codes = [0, 700]
    with pytest.raises(RuntimeError, match="launch 2 of a call failed with error 700"):
        torch.autograd.grad(y, (x, w), DY)


def test_forgotten_calls_are_prepared_again(launcher, python):
    norm, (x, w) = known(load("rmsnorm")), _rms()
    norm._step.calls.forget()
    python.clear()
    for _ in range(2):
        same(norm(x, w), _theirs(x, w))
    assert len(python) == 1


def test_more_calls_than_are_kept(launcher, python, monkeypatch):
    monkeypatch.setattr("normgen.torch.calls.KEPT", 3)
    norm = load("softmax")
    for _ in range(2):
        for rows in range(1, 6):
            x = torch.randn(rows, 8)
            same(norm(x), x.softmax(-1))
    python.clear()
    norm(x)
    assert python == []


def test_threads_do_not_disturb_one_another(launcher):
    norm, faults = known(load("rmsnorm")), []

    def work(seed):
        try:
            generator = torch.Generator().manual_seed(seed)
            x, w = torch.randn(3, 8, generator=generator).requires_grad_(), torch.rand(8).requires_grad_()
            for _ in range(10):
                found = torch.autograd.grad(norm(x, w), (x, w), DY)
                same(found, torch.autograd.grad(_theirs(x, w), (x, w), DY))
        except Exception as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_errors_of_python_backwards_reach_the_caller(launcher, monkeypatch):
    norm, (x, w) = known(load("rmsnorm")), _rms()

    def fails(*_):
        raise KeyError("as asked")

    y = norm(x, w)
    monkeypatch.setattr(Step, "run", fails)
    with pytest.raises(KeyError, match="as asked"):
        torch.autograd.grad(y, (x, w), DY.bfloat16().float().t().contiguous().t())
