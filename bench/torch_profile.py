"""Which share of a training step's time on the device goes into norms: forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

MARK = "bench::norm"
STEPS = 2


def norm_share(model: torch.nn.Module, step: Callable[[], Any], device: str) -> float:
    """The time of what norms launch over that of all that a step launches.

    The forward of a norm is marked. Its backward is known by the sequence numbers of the operators in the
    mark, which PyTorch gives to the nodes of its graph too.
    """
    handles = [handle for module in model.modules() if _is_norm(module) for handle in _marked(module)]
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    try:
        step()
        with profile(activities=activities) as profiler:
            for _ in range(STEPS):
                step()
            if device == "cuda":
                torch.cuda.synchronize()
    finally:
        for handle in handles:
            handle.remove()
    events = profiler.events()
    marks = [event for event in events if event.name == MARK and event.device_type == DeviceType.CPU]
    numbers = {each.sequence_nr for mark in marks for each in _below(mark) if each.sequence_nr >= 0}
    backwards = [
        event
        for event in events
        if event.name.startswith("autograd::engine::evaluate_function") and event.sequence_nr in numbers
    ]
    spent = sum(_time(event, device) for event in (*marks, *backwards))
    return spent / max(_all(events, device), 1e-9)


def _time(event: Any, device: str) -> float:
    """Microseconds of what an operator launches, or on the CPU of itself. The GPU's copy of a mark is not a
    kernel."""
    if device != "cuda":
        return float(event.cpu_time_total)
    own = sum(kernel.duration for kernel in event.kernels if kernel.name != MARK)
    return float(own + sum(_time(child, device) for child in event.cpu_children))


def _is_norm(module: torch.nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children())


def _marked(module: torch.nn.Module) -> list[Any]:
    """Hooks that mark the forward of a module."""
    open_marks: list[Any] = []

    def enter(*_: Any) -> None:
        open_marks.append(record_function(MARK))
        open_marks[-1].__enter__()

    def leave(*_: Any) -> None:
        open_marks.pop().__exit__(None, None, None)

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]


def _below(event: Any) -> list[Any]:
    found = list(event.cpu_children)
    for child in event.cpu_children:
        found += _below(child)
    return found


def _all(events: Any, device: str) -> float:
    """The time of all kernels and copies; on the CPU, of all that no other event holds."""
    if device != "cuda":
        return float(sum(event.cpu_time_total for event in events if event.cpu_parent is None))
    on_device = [event for event in events if event.device_type == DeviceType.CUDA]
    return float(sum(event.device_time_total for event in on_device if not event.is_user_annotation))
