"""`Norm`: a package as a pair of callables. The only object of the runtime that callers hold."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from normgen.runtime.call import Pass, Request
from normgen.runtime.direction import Direction, directions
from normgen.runtime.executors import Executor, device_key, executor_of
from normgen.runtime.launches import Device
from normgen.runtime.layout import tensor_text
from normgen.runtime.planned import Plan
from normgen.runtime.query import Sizes, scratch, stand_ins
from normgen.runtime.records import ABI, Package, TensorRecord
from normgen.runtime.shortcut import see
from normgen.runtime.tuned import plan_tuned
from normgen.runtime.views import HOST, DeviceKey

Executors = Callable[[DeviceKey], Executor]
# Operands and numbers by name, and what else a call asks for.
Asked = tuple[dict[str, object], dict[str, float], Request]


def check_abi(abi: int, regenerate: str) -> None:
    """Refuse a generated module that this runtime cannot run. `regenerate`: the command that writes it
    anew."""
    if abi != ABI:
        raise ImportError(
            f"this module was generated for ABI {abi}, but the installed normgen has ABI {ABI}; "
            f"generate it again: {regenerate}"
        )


def result_type_name(norm: str, direction: str) -> str:
    """What the named tuple of a direction is called: `RmsForward`."""
    return "".join(part[:1].upper() + part[1:] for part in (*norm.split("_"), direction))


class Norm:
    """A compiled norm.

    `forward` and `backward` run where their arrays are: on the host for NumPy arrays, on their device
    and the caller's stream for CUDA arrays of any library, and return arrays of the same kind. Calls
    may come from any number of threads.
    """

    def __init__(
        self,
        package: Package,
        *,
        results: tuple[type[Any], type[Any] | None] | None = None,
        reference: object = None,
        executors: Executors = executor_of,
        planner: Callable[..., Any] = plan_tuned,
    ) -> None:
        check_abi(package.abi, f"normgen compile {package.name}.norm")
        forward, backward = directions(package)
        self.package = package
        self._reference = reference
        self._executors = executors
        self._planner = planner
        self._types = results or (
            _tuple_type(package.name, forward),
            _tuple_type(package.name, backward) if backward is not None else None,
        )
        self._results: dict[str, Any] = dict(zip(("forward", "backward"), self._types, strict=True))
        self._forward = Pass(forward, package, executors, planner)
        self._outputs = tuple(name for name, tensor in forward.results.items() if tensor.role != "save")
        self._saved = tuple(forward.results)
        self._backward = Pass(backward, package, executors, planner) if backward is not None else None
        gradients = backward.results if backward is not None else {}
        self._gradient_of = {tensor.source: name for name, tensor in gradients.items()}

    @property
    def name(self) -> str:
        return self.package.name

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.package.doc

    @property
    def forward_args(self) -> tuple[str, ...]:
        """The names of `forward`'s arrays: inputs, params and states, in the order of the spec."""
        return self._forward.direction.reads

    @property
    def backward_args(self) -> tuple[str, ...]:
        """The names of `backward`'s arrays: cotangents, then what the derivative reads in the order of the
        spec."""
        return self._backward.direction.reads if self._backward is not None else ()

    @property
    def reference(self) -> Any:
        """The same mathematics in float64, on NumPy arrays, for tests: `reference.forward`,
        `reference.backward`."""
        if self._reference is None:
            raise AttributeError(
                "a generated module holds no reference; load the spec for that: normgen.load(...).reference"
            )
        return self._reference

    def forward(
        self,
        *arrays: Any,
        out: Mapping[str, Any] | None = None,
        save: bool = True,
        stream: Any = None,
        workspace: Mapping[str, Any] | None = None,
        sm_count: int | None = None,
        **named: Any,
    ) -> Any:
        """Outputs, then saves, as a named tuple in spec order.

        Arrays go by position, in the order of `forward_args`, or by name. A param with a default may be left
        out: by position, None stands for it where others follow. Float attrs go by name. `out`: arrays to
        write, by result name. One may lie exactly over an operand that it depends on, of the same
        axes, element type and strides, where one kernel alone touches the two: y over x. Any other overlap
        is a ValueError. `save=False`: leave the saves out (None). `workspace`, `sm_count`: the scratch arrays
        that `workspace` told for so many multiprocessors; the device's own number where none is given.
        """
        seen = see(arrays, named, out, bool(save)) if workspace is None and sm_count is None else None
        made = self._forward.again(seen, stream) if seen is not None else None
        if made is None:
            asked = self._ask_forward(arrays, out, save, stream, workspace, sm_count, **named)
            made = self._forward.run(*asked, seen)
        return self._results["forward"]._make(made)

    def backward(
        self,
        *arrays: Any,
        wrt: str | Iterable[str] | None = None,
        accumulate: bool = False,
        out: Mapping[str, Any] | None = None,
        stream: Any = None,
        workspace: Mapping[str, Any] | None = None,
        sm_count: int | None = None,
        **named: Any,
    ) -> Any:
        """Gradients `d<name>`, as a named tuple in spec order.

        Arrays go by position, in the order of `backward_args`, or by name; other operands of the
        forward are welcome by name. A cotangent that is None is zero. `wrt`: the names to differentiate
        by, the others are None and cost nothing. `accumulate`: add the gradients of params to those in
        `out`. An array in `out` may lie over an operand as in `forward`: dx over dy, or over x.
        """
        chosen = self._pass("backward")
        plain = workspace is None and sm_count is None and _is_plain(wrt)
        seen = see(arrays, named, out, wrt, bool(accumulate)) if plain else None
        made = chosen.again(seen, stream) if seen is not None else None
        if made is None:
            asked = self._ask_backward(arrays, wrt, accumulate, out, stream, workspace, sm_count, **named)
            made = chosen.run(*asked, seen)
        return self._results["backward"]._make(made)

    def plan(self, direction: str, /, *arrays: Any, **named: Any) -> Plan:
        """A call made ready, to be repeated on other arrays that lie alike.

        `direction`: "forward" or "backward"; then whatever that takes, `out`, `stream` and the like included.
        Everything is checked, planned and compiled now; nothing is launched. `Plan` says what its calls take.
        """
        ask = self._ask_backward if direction == "backward" else self._ask_forward
        return Plan(self.name, self._pass(direction), self._results[direction], *ask(arrays, **named))

    def workspace(
        self,
        direction: str,
        sizes: Sizes,
        dtypes: str | Mapping[str, str] = "f32",
        *,
        sm_count: int | None = None,
        alignment: int = 16,
        device: Device | None = None,
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of the scratch arrays of a call, by name, without touching a device.

        `sizes`: the length of each axis, `{"...": (8, 512), "D": 4096}`; `dtypes`: one for all operands
        that the spec leaves open, or by name; `alignment`: of all arrays, in bytes. `sm_count` defaults
        to an H200's 132. A call takes exactly the arrays that were told for its device or `sm_count`, its
        lengths, its element types and the alignment of all that it is given: `alignment=1` is no worst case.
        """
        chosen = self._pass(direction)
        return scratch(
            chosen.direction, self.package.header, self._planner, sizes, dtypes, sm_count, alignment, device
        )

    def warmup(self, sizes: Sizes, dtypes: str | Mapping[str, str] = "f32", device: object = "cuda") -> None:
        """Compile and load, on a device, what calls with such contiguous arrays will need."""
        key = device_key(device)
        for chosen in (self._forward, self._backward):
            if chosen is not None:
                views = stand_ins(chosen.direction, sizes, dtypes, 16, key)
                chosen.prepare(views, {}, tuple(chosen.direction.results))

    def on(self, executor: Executor) -> Norm:
        """This norm, with all of its calls on one executor, for instance the host's checked one."""

        def bound(device: DeviceKey) -> Executor:
            if (device == HOST) != (executor.device.arch == "host"):
                raise ValueError(
                    f"this norm runs on {executor.device.name}, but the arrays are on {device[0]}"
                )
            return executor

        return Norm(
            self.package,
            results=self._types,
            reference=self._reference,
            executors=bound,
            planner=self._planner,
        )

    def __repr__(self) -> str:
        record = self.package.forward
        operands = ", ".join(_parameter(tensor) for tensor in record.reads)
        attrs = ", ".join(
            a.name if a.default is None else f"{a.name}={a.default!r}" for a in self.package.attrs
        )
        results = ", ".join(tensor_text(tensor) for tensor in self._forward.direction.results.values())
        return f"<{self.name}: {operands}{'; ' if attrs else ''}{attrs} -> {results}>"

    def _ask_forward(
        self,
        arrays: tuple[Any, ...],
        /,
        out: Mapping[str, Any] | None = None,
        save: bool = True,
        stream: Any = None,
        workspace: Mapping[str, Any] | None = None,
        sm_count: int | None = None,
        **named: Any,
    ) -> Asked:
        """A call of `forward` in the terms of its pass."""
        operands, numbers = self._forward.arguments.sort(arrays, named)
        out = self._by_name("out", out, self._forward.direction.results)
        _check_mapping("workspace", workspace, "as `workspace` tells")
        wanted = self._saved if save else self._outputs
        if not save:
            wanted = tuple(name for name in self._saved if name in self._outputs or name in out)
        return operands, numbers, Request(wanted, out, False, stream, workspace, sm_count)

    def _ask_backward(
        self,
        arrays: tuple[Any, ...],
        /,
        wrt: str | Iterable[str] | None = None,
        accumulate: bool = False,
        out: Mapping[str, Any] | None = None,
        stream: Any = None,
        workspace: Mapping[str, Any] | None = None,
        sm_count: int | None = None,
        **named: Any,
    ) -> Asked:
        """A call of `backward` in the terms of its pass."""
        chosen = self._pass("backward")
        operands, numbers = chosen.arguments.sort(arrays, named)
        direction = chosen.direction
        out = self._by_name("out", out, direction.results)
        _check_mapping("workspace", workspace, "as `workspace` tells")
        wanted = []
        for source in self._wanted(wrt):
            if source in direction.reads and operands.get(source) is None:
                continue  # left out of the forward: nothing to differentiate by
            name = self._gradient_of[source]
            wanted.append(name)
            if accumulate and direction.accumulates(name) and name not in out:
                raise ValueError(
                    f"accumulate=True adds to out[{name!r}], which is missing; give it or narrow wrt="
                )
        for name in out:
            if name not in wanted:
                raise ValueError(
                    f"out[{name!r}] is not computed: {direction.results[name].source} is not in wrt"
                )
        return operands, numbers, Request(tuple(wanted), out, accumulate, stream, workspace, sm_count)

    def _pass(self, direction: str) -> Pass:
        if direction == "forward":
            return self._forward
        if direction != "backward":
            raise ValueError(f"{self.name} has no direction {direction!r}")
        if self._backward is None:
            raise ValueError(f"{self.name} has no backward: no output of it can be differentiated")
        return self._backward

    def _wanted(self, wrt: str | Iterable[str] | None) -> tuple[str, ...]:
        if wrt is None:
            return tuple(self._gradient_of)
        if not isinstance(wrt, Iterable):
            raise TypeError(f"wrt takes names of operands, not a {type(wrt).__name__}")
        chosen = (wrt,) if isinstance(wrt, str) else tuple(wrt)
        self._check_names("wrt", chosen, self._gradient_of)
        return tuple(name for name in self._gradient_of if name in chosen)

    def _by_name(self, what: str, given: Mapping[str, Any] | None, known: Iterable[str]) -> Mapping[str, Any]:
        """Arrays by the names of results; none where none are given."""
        names = tuple(known)
        _check_mapping(what, given, f"such as {what}={{{names[0]!r}: ...}}")
        self._check_names(what, given or (), names)
        return given or {}

    def _check_names(self, what: str, given: Iterable[str], known: Iterable[str]) -> None:
        names = list(known)
        for name in given:
            if not isinstance(name, str):
                raise TypeError(
                    f"{what} takes names as strings, such as {names[0]!r}, not a {type(name).__name__}"
                )
            if name not in names:
                close = get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"it knows {', '.join(names)}"
                raise ValueError(f"{what}: {self.name} has no {name!r}; {hint}")


def _is_plain(wrt: object) -> bool:
    """Whether names may be looked at more than once, and be part of a key."""
    return wrt is None or type(wrt) is str or (type(wrt) is tuple and all(type(name) is str for name in wrt))


def _check_mapping(what: str, given: object, form: str) -> None:
    """Refuse what holds no arrays by name. `form`: how it is to be written."""
    if given is not None and not isinstance(given, Mapping):
        way = "its ._asdict()" if hasattr(given, "_asdict") else f"a dict of arrays by name, {form}"
        raise TypeError(f"{what} is a {type(given).__name__}: give {way}")


def _parameter(tensor: TensorRecord) -> str:
    return tensor_text(tensor) + ("" if tensor.default is None else f"={tensor.default:g}")


def _tuple_type(norm: str, direction: Direction) -> type[Any]:
    return namedtuple(result_type_name(norm, direction.name), list(direction.results))
