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
EXACT, FLOAT = torch.float64, torch.float32


def _samples(dtype, tolerance, count=None):
    for name, info in INFOS.items():
        for training in (True, False) if info.train_and_eval_differ else (True,):
            torch.manual_seed(0)
            inputs = info.module_inputs_func(info, "cpu", dtype, requires_grad=True, training=training)
            for index, sample in enumerate(inputs[:count]):
                label = f"{name}-{sample.desc or index}-{'train' if training else 'eval'}-{dtype}"
                yield pytest.param(name, sample, training, dtype, tolerance, id=label)


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


def _called(module, sample, dtype):
    """What a module gives and leaves, with first derivatives, and second ones in float64."""
    arguments = copy.deepcopy(sample.forward_input.args)
    given = [each.requires_grad_() for each in arguments] + list(module.parameters())
    result = module(*arguments, **sample.forward_input.kwargs)
    first = torch.autograd.grad(result.sin().sum(), given, create_graph=dtype is EXACT)
    wanted = sum(each.cos().sum() for each in first)
    second = torch.autograd.grad(wanted, given, allow_unused=True) if dtype is EXACT else ()
    return result, first, second, dict(module.state_dict())


@pytest.mark.parametrize(
    ("name", "sample", "training", "dtype", "tolerance"), [*_samples(EXACT, 1e-12), *_samples(FLOAT, 2e-4, 2)]
)
def test_modules_agree(name, sample, training, dtype, tolerance):
    pair = _pair(name, sample, dtype, training)
    *found, (second, wanted), states = zip(*(_called(module, sample, dtype) for module in pair), strict=True)
    for got, want in (*found, states):
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(second, wanted, atol=1e-9, rtol=1e-9)
    assert repr(pair[0]) == repr(pair[1])


def test_the_samples_are_there():
    """Every drop-in is compared."""
    ours = {name for name in nt.nn.__all__ if hasattr(torch.nn, name) and not name.startswith("Lazy")}
    assert ours - {"SyncBatchNorm"} == set(INFOS)  # PyTorch has none of that, and `test_spread` compares it
