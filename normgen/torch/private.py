"""What normgen uses of PyTorch beside its public interface, and what it does where a release lacks that."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch.autograd import forward_ad

F = TypeVar("F", bound=Callable[..., Any])


def _find(home: str, *names: str) -> list[Any] | None:
    """What a module has under some names; None where it lacks one of them."""
    try:
        module = importlib.import_module(home)
        return [getattr(module, name) for name in names]
    except (ImportError, AttributeError):
        return None


class Levels(NamedTuple):
    """What operators take to be recorded at one level of `torch.func`'s transforms, as built-in ones are."""

    function: Any  # a class like torch.autograd.Function
    recording: Callable[[], Any]  # a context in which its `apply` records
    tangents: Callable[[bool], Any]  # a context with forward mode on
    below: Callable[..., Any]  # (operator, dispatch keys, arguments) -> what the operator does unrecorded
    in_forward_mode: Callable[[], bool]  # whether tensors may have tangents at this level


def _levels() -> Levels | None:
    single = _find("torch.autograd.function", "_SingleLevelFunction")
    recording = _find("torch._functorch.utils", "enable_single_level_autograd_function")
    tangents = _find("torch.autograd.forward_ad", "_set_fwd_grad_enabled")
    dispatch = _find("torch._C", "_AutoDispatchBelowAutograd", "_after_autograd_keyset")
    transforms = _find(
        "torch._functorch.pyfunctorch", "TransformType", "retrieve_current_functorch_interpreter"
    )
    if not (single and recording and tangents and dispatch and transforms and _ACTIVE):
        return None
    unrecorded, after = dispatch
    kinds, interpreter = transforms
    active = _ACTIVE[0]

    def below(operator: Any, keys: Any, given: tuple[Any, ...]) -> Any:
        with unrecorded():
            return operator.redispatch(keys & after, *given)

    def in_forward_mode() -> bool:
        return bool(interpreter().key() == kinds.Jvp) if active() else has_tangents()

    return Levels(single[0], recording[0], tangents[0], below, in_forward_mode)


_ACTIVE = _find("torch._C", "_are_functorch_transforms_active", "_len_torch_dispatch_stack")
_KEYS = _find("torch._C", "_dispatch_keys", "_parse_dispatch_key")
_SETS = _find("torch._C", "DispatchKeySet")
_BATCH = _find("torch", "_add_batch_dim", "_remove_batch_dim")
_NESTING = _find("torch._C", "_vmapmode_increment_nesting", "_vmapmode_decrement_nesting")
_AUTOCAST = _find("torch._C", "_is_any_autocast_enabled")
_VF = _find("torch", "_VF")
_HOOKS = _find("torch.nn.modules.module", "_has_any_global_hook")
_GROUPS = _find("torch.distributed.distributed_c10d", "_resolve_process_group")
_STORES = _find("torch.distributed.distributed_c10d", "_get_process_group_store")
_GRAPHS = _find("torch.fx.experimental.proxy_tensor", "ProxyTorchDispatchMode")
_SYMMETRIC = "torch.distributed._symmetric_memory"
# (a number) -> the set of dispatch keys that has it.
KEYS_BY_NUMBER: Callable[[int], Any] | None = getattr(_SETS[0], "from_raw_repr", None) if _SETS else None
LEVELS = _levels()  # without: torch.library.register_autograd, which knows no forward mode


def watched() -> bool:
    """Whether a transform or a mode is there, which sees operators alone; or that cannot be told."""
    return _ACTIVE is None or any(active() for active in _ACTIVE)


def has_transforms() -> bool:
    """Whether a transform of `torch.func` is there, or that cannot be told."""
    return _ACTIVE is None or bool(_ACTIVE[0]())


def has_tangents() -> bool:
    """Whether forward mode is on, or that cannot be told."""
    return int(getattr(forward_ad, "_current_level", 0)) >= 0


def unpack_dual(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A tensor without its tangent, and that, also while transforms are compiled, which count no levels."""
    made: Any = forward_ad.unpack_dual(tensor) if _VF is None else _VF[0]._unpack_dual(tensor, level=0)
    return made[0], made[1]


def constant(function: F) -> F:
    """Let `torch.compile` call a function once and take what it returns for a constant. This is all that
    `torch.compiler.assume_constant_result` does, but for an import of the whole compiler; a release that does
    not know it traces the function."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def in_graphs(operator: str, trace: Callable[..., Any], library: torch.library.Library) -> None:
    """Let a function make the calls of an operator while a graph is made of them: of a mode, which has a
    `tracer`, then of the operator, types, arguments. A release without this records the operator itself."""
    if _GRAPHS is not None:
        torch.library.register_torch_dispatch(operator, _GRAPHS[0], trace, lib=library)


def compiled_key(ctx: Any, others: object) -> tuple[int, ...]:
    """What compiled autograd knows a recorded call by: what was recorded, and what its backward depends on
    beside tensors."""
    return getattr(ctx, "_autograd_function_id", id(type(ctx))), hash(others) % 2**63


def all_gather(into: torch.Tensor, tensor: torch.Tensor, group: Any) -> None:
    """Have what all ranks of a group give, one after the other: by the name that the release has for that."""
    from torch import distributed

    gather: Any = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    gather(into, tensor, group=group)


def group_by_name(name: str) -> Any:
    """A process group by its name; None where there is none."""
    if _GROUPS is None:
        raise RuntimeError("this release of PyTorch cannot find process groups by name: upgrade PyTorch")
    try:
        return _GROUPS[0](name)
    except RuntimeError:
        return None


def store_of(group: Any) -> Any:
    """The store by which the processes of a group know of each other."""
    if _STORES is None:
        raise RuntimeError(
            "this release of PyTorch does not expose the store of a process group: upgrade PyTorch"
        )
    return _STORES[0](group)


def device_of(group: Any) -> torch.device:
    """Where a process group takes what is on the host from: there, if it can."""
    kinds = {torch.device(each).type for each in getattr(group, "_device_types", ())}
    if "cpu" in kinds or "cuda" not in kinds:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def has_symmetric_memory() -> bool:
    """Whether processes can have memory of each other's GPUs."""
    return _find(_SYMMETRIC, "empty", "rendezvous") is not None


def name_of_gpu(device: torch.device | int) -> str:
    """What tells a GPU from all others, in whatever process; empty where the release does not tell."""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))


def symmetric_words(words: int, device: torch.device) -> torch.Tensor:
    """So many numbers of 8 bytes on a GPU that other processes can have in their memory."""
    found = _find(_SYMMETRIC, "empty")
    if found is None:
        raise RuntimeError("this release of PyTorch has no symmetric memory")
    made: torch.Tensor = found[0](words, dtype=torch.int64, device=device)
    return made


def symmetric_peers(own: torch.Tensor, group: Any) -> tuple[list[torch.Tensor], Any]:
    """The memory that each rank of a group has of `symmetric_words`, and what keeps it. All ranks call it
    together, which need not make them wait for each other."""
    found = _find(_SYMMETRIC, "rendezvous")
    if found is None:
        raise RuntimeError("this release of PyTorch has no symmetric memory")
    handle = found[0](own, group.group_name)
    # Buffers begin where memory was allocated, of which a tensor may be a part: of all ranks the same one.
    begin = handle.get_buffer(group.rank(), (1,), own.dtype, 0)
    offset = (own.data_ptr() - begin.data_ptr()) // own.element_size()
    every = [handle.get_buffer(rank, (own.numel(),), own.dtype, offset) for rank in range(group.size())]
    return every, (own, handle)


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured on the current stream."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def stream_name(device: torch.device) -> int | None:
    """A number of the current stream of a device that no other gets. None for streams that PyTorch has not
    made, whose handles may come again, and while a CUDA graph is captured."""
    if device.type != "cuda":
        return 0
    name = int(torch.cuda.current_stream(device).stream_id)
    return None if is_capturing() or (name and not name & 1) else name


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether hooks wait for calls of a module."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    everywhere = _HOOKS is not None and bool(_HOOKS[0]())
    return everywhere or any(getattr(module, name, None) for name in names)


def ragged_dimension(tensor: torch.Tensor) -> int:
    """The dimension along which the parts of a jagged tensor differ in length."""
    return int(getattr(tensor, "_ragged_idx", 1))


def is_batch(tensor: torch.Tensor) -> bool:
    """Whether it is a batch of the older vmap, that of `torch.autograd.grad(..., is_grads_batched=True)`."""
    return bool(_KEYS and _BATCH and _NESTING) and _KEYS[0](tensor).has(_KEYS[1]("Batched"))  # type: ignore[index]


def of_batch(tensor: torch.Tensor) -> torch.Tensor:
    """A batch as a tensor whose first dimension it is."""
    assert _BATCH is not None
    made: torch.Tensor = _BATCH[1](tensor, _level(), 1, 0)
    return made


def as_batch(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """A tensor as a batch along one of its dimensions."""
    assert _BATCH is not None
    made: torch.Tensor = _BATCH[0](tensor, dim, _level())
    return made


def _level() -> int:
    """That of the vmap around."""
    assert _NESTING is not None
    level = _NESTING[0]() - 1
    _NESTING[1]()
    return int(level)


def may_autocast() -> bool:
    """Whether autocast is on for some device, or that cannot be told."""
    return _AUTOCAST is None or bool(_AUTOCAST[0]())


def fake_mode() -> Any:
    """The mode of tensors without values; None where there is none."""
    found = _find("torch._subclasses.fake_tensor", "FakeTensorMode")
    return None if found is None else found[0]()


def sharding_schemas() -> tuple[dict[Any, Any], Any] | None:
    """What PyTorch knows operators by where it shards them, and the type of that; None where it has neither:
    then it knows no operator of ours."""
    try:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

        return DTensor._op_dispatcher.sharding_propagator.op_to_schema_info, RuntimeSchemaInfo
    except (ImportError, AttributeError):
        return None
