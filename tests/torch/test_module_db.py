"""Drop-ins beside the modules of PyTorch that they replace, over PyTorch's own samples of these.

In float64, where the spec's own mathematics is evaluated, all samples; in float32, by kernels on the CPU,
some of each module.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
nt = pytest.importorskip("normgen.torch")
module_db = pytest.importorskip("torch.testing._internal.common_modules").module_db

INFOS = {
    info.module_cls.__name__: info
    for info in module_db
    if info.module_cls.__module__.startswith("torch.nn.modules") and hasattr(nt.nn, info.module_cls.__name__)
}
KERNEL_SAMPLES = 2  # of each module in float32


def _samples(dtype, count=None):
    found = []
    for name, info in INFOS.items():
        for training in (True, False) if info.train_and_eval_differ else (True,):
            torch.manual_seed(0)
            inputs = info.module_inputs_func(info, "cpu", dtype, requires_grad=True, training=training)
            mode = "train" if training else "eval"
            found += [
                pytest.param(name, sample, training, id=f"{name}-{sample.desc or index}-{mode}")
                for index, sample in enumerate(inputs[:count])
            ]
    return found


def _pair(name, sample, dtype, training):
    """Our module and PyTorch's, of equal parameters and buffers that are not the defaults."""
    given = sample.constructor_input
    classes = getattr(nt.nn, name), INFOS[name].module_cls
    mine, theirs = (each(*given.args, **given.kwargs).to(dtype) for each in classes)
    torch.manual_seed(1)
    with torch.no_grad():
        for tensor in (*theirs.parameters(), *theirs.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    mine.load_state_dict(theirs.state_dict())
    return mine.train(training), theirs.train(training)


def _called(module, sample):
    """What a module gives, the gradients of what it was given, and that."""
    arguments = copy.deepcopy(sample.forward_input.args)
    given = [each.requires_grad_() for each in arguments] + list(module.parameters())
    result = module(*arguments, **sample.forward_input.kwargs)
    first = torch.autograd.grad(result.sin().sum(), given, create_graph=True)
    return result, first, given


@pytest.mark.parametrize(("name", "sample", "training"), _samples(torch.float64))
def test_modules_agree_in_float64(name, sample, training):
    _compare(*_pair(name, sample, torch.float64, training), sample, 1e-12)


@pytest.mark.parametrize(("name", "sample", "training"), _samples(torch.float32, KERNEL_SAMPLES))
def test_modules_agree_in_float32(name, sample, training):
    _compare(*_pair(name, sample, torch.float32, training), sample, 2e-4)


def _compare(mine, theirs, sample, tolerance):
    results = [_called(module, sample)[:2] for module in (mine, theirs)]
    torch.testing.assert_close(*results, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(
        *(dict(m.state_dict()) for m in (mine, theirs)), atol=tolerance, rtol=tolerance
    )
    assert repr(mine) == repr(theirs)


@pytest.mark.parametrize(("name", "sample", "training"), _samples(torch.float64))
def test_second_derivatives_agree_in_float64(name, sample, training):
    found = []
    for module in _pair(name, sample, torch.float64, training):
        _, first, given = _called(module, sample)
        wanted = sum(each.cos().sum() for each in first)
        found.append(torch.autograd.grad(wanted, given, allow_unused=True))
    torch.testing.assert_close(*found, atol=1e-9, rtol=1e-9)


def test_the_samples_are_there():
    """Every drop-in is compared."""
    ours = {name for name in nt.nn.__all__ if hasattr(torch.nn, name) and not name.startswith("Lazy")}
    assert ours == set(INFOS)
