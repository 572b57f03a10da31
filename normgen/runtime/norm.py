"""`Norm`: a package as a pair of callables, the only object of the runtime that callers hold.

Generated modules of one shape import one name from here alone, `load_norm`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from normgen.cache_results import Late
from normgen.devices.executors import Executor, device_key, executor_of
from normgen.launching.launch import HOST, DeviceKey
from normgen.launching.machine import USUAL_MACHINE, Machine
from normgen.package import records
from normgen.package.constants import Constants
from normgen.package.direction import directions, result_tuple, tuple_name
from normgen.package.operands import FormRecord
from normgen.package.plain import package_of, schema
from normgen.runtime.calls.assemble import Executors, Planner
from normgen.runtime.calls.dispatch import Dispatcher
from normgen.runtime.calls.plan import Plan
from normgen.runtime.calls.sizes import Sizes, bind_sizes, imagined
from normgen.runtime.described import call_signature, call_text, own_method
from normgen.runtime.planning.tuned import plan_tuned


def check_abi(abi: int, regenerate: str, fields: str | None = None) -> None:
    """Refuse a generated module that this runtime cannot run: ImportError. `regenerate`: the command that
    generates it again. `fields`: the `schema` of the data that it holds."""
    if abi != records.ABI:
        raise ImportError(
            f"this module was generated for ABI {abi}, but the installed normgen has ABI {records.ABI}; "
            f"generate it again: {regenerate}"
        )
    if fields is not None and fields != schema():
        raise ImportError(
            f"this module has other fields than the installed normgen, although both have ABI {records.ABI}; "
            f"generate it again: {regenerate}"
        )


def load_norm(data: Mapping[str, Any], results: tuple[type[Any], type[Any] | None] | None = None) -> Norm:
    """The norm of a generated module of one shape. `data`: a package as plain data, with the ABI, the schema
    and the command that generates it again; `results`: the types of named tuples that the directions return,
    if the module defines them."""
    head = ("abi", "schema", "command")
    check_abi(data["abi"], data["command"], data["schema"])
    return Norm(package_of({name: each for name, each in data.items() if name not in head}), results=results)


@dataclass(frozen=True)
class _Shown:
    """The text that a module has of a form, for constants of this digest; other texts are printed."""

    digest: str
    text: str
    printed: Late[str]

    def __call__(self, given: Constants) -> str:
        return self.text if given.digest == self.digest else self.printed(given)


def with_texts(package: records.Package, texts: Mapping[str, tuple[str, str]]) -> records.Package:
    """A package with texts of its forms as a module has them: by entry, behind a digest of constants."""

    def form(each: FormRecord) -> FormRecord:
        known = texts.get(each.entry)
        return each if known is None else replace(each, text=Late(each.text.key, _Shown(*known, each.text)))

    def strategy(each: records.Strategy) -> records.Strategy:
        kernels = tuple(replace(kernel, forms=tuple(map(form, kernel.forms))) for kernel in each.kernels)
        return replace(each, kernels=kernels)

    def direction(each: records.PassRecord) -> records.PassRecord:
        return replace(each, strategies=tuple(map(strategy, each.strategies)))

    backward = None if package.backward is None else direction(package.backward)
    return replace(package, forward=direction(package.forward), backward=backward)


def _restored(package: records.Package, reference: object) -> Norm:
    """The norm of a pickle."""
    return Norm(package, reference=reference)


class Norm:
    """A compiled norm.

    `forward` and `backward` run where their arrays are: on the host for NumPy arrays; on their device
    and the caller's stream for CUDA arrays of any library. They return arrays of the same library. Calls
    are thread-safe. Calling the norm itself runs `forward` and returns only the outputs.
    """

    def __init__(
        self,
        package: records.Package,
        *,
        results: tuple[type[Any], type[Any] | None] | None = None,
        reference: object = None,
        executors: Executors = executor_of,
        planner: Planner = plan_tuned,
    ) -> None:
        """`results`: the types of named tuples that `forward` and `backward` return."""
        self.package = package
        self._reference = reference
        self._executors = executors
        self._planner = planner
        found = [each for each in directions(package) if each is not None]
        types = results or [result_tuple(each.result_type, tuple(each.results)) for each in found]
        self._dispatchers = {
            each.name: Dispatcher(each, package, result, executors, planner)
            for each, result in zip(found, types, strict=False)
        }
        self._forward = self._dispatchers["forward"]
        outputs = [name for name, each in self._forward.direction.results.items() if each.role != "save"]
        self._outputs = result_tuple(tuple_name(package.name, "outputs"), tuple(outputs))
        for name, each in self._dispatchers.items():
            setattr(self, name, own_method(getattr(Norm, name), self, package, each.direction))
        self.__signature__ = call_signature(package, self._forward.direction)

    @property
    def name(self) -> str:
        """The name that the spec gives the norm."""
        return self.package.name

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return call_text(self.package, self._forward.direction)

    @property
    def forward_args(self) -> tuple[str, ...]:
        """The names of `forward`'s arrays: inputs, params and states, in the order of the spec."""
        return self._forward.direction.reads

    @property
    def backward_args(self) -> tuple[str, ...]:
        """The names of `backward`'s arrays: cotangents, then the other arrays that the derivative reads, in
        the order of the spec."""
        found = self._dispatchers.get("backward")
        return found.direction.reads if found is not None else ()

    @property
    def reference(self) -> Any:
        """The same mathematics in float64, on NumPy arrays, for tests: `reference.forward`,
        `reference.backward`."""
        if self._reference is None:
            raise AttributeError(
                "a generated module has no reference: use normgen.load(...).reference of the spec"
            )
        return self._reference

    def __call__(
        self, *arrays: Any, out: Mapping[str, Any] | None = None, stream: Any = None, **named: Any
    ) -> Any:
        """Run `forward` without saves. Returns the output, or a named tuple of several."""
        made = self._forward.call(arrays, named, (False,), out, stream, None, None)
        fields = self._outputs._fields
        return made[0] if len(fields) == 1 else self._outputs._make(made[: len(fields)])

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
        """Run the forward. Returns outputs, then saves, as a named tuple in spec order.

        Pass arrays by position, in the order of `forward_args`, or by name. A param with a default may be
        omitted; pass None by position if others follow. Float attrs go by name. `out`: arrays to write, by
        result name. One may share exactly the memory of an operand that it depends on, with the same axes,
        element type and strides, if only one kernel accesses both: y over x. Any other overlap is a
        ValueError. `save=False`: omit the saves (None). `workspace`, `sm_count`: the scratch arrays that
        `workspace` returned for this number of multiprocessors, by default the device's.
        """
        return self._forward.call(arrays, named, (bool(save),), out, stream, workspace, sm_count)

    def backward(
        self,
        *arrays: Any,
        wrt: str | Iterable[str] | None = None,
        accumulate: bool = False,
        dtypes: Mapping[str, str] | None = None,
        out: Mapping[str, Any] | None = None,
        stream: Any = None,
        workspace: Mapping[str, Any] | None = None,
        sm_count: int | None = None,
        **named: Any,
    ) -> Any:
        """Run the backward. Returns gradients `d<name>`, as a named tuple in spec order.

        Pass arrays by position, in the order of `backward_args`, or by name. Other operands of the forward
        are accepted by name. A cotangent of None is zero. `wrt`: the names to differentiate with respect to;
        the other gradients are None and cost nothing. `accumulate`: add the gradients of params to those in
        `out`. An array in `out` may share memory with an operand as in `forward`: dx over dy, or over x.

        A gradient has the element type of its operand. If the derivative does not read the operand (a bias,
        say), pass it by name, or pass its type in `dtypes`: {"b": "f32"}. Otherwise the gradient has the
        type of the first cotangent.
        """
        dispatcher = self.dispatcher("backward")
        arguments = dispatcher.arguments
        choice = arguments.names(wrt), bool(accumulate), arguments.types(dtypes)
        return dispatcher.call(arrays, named, choice, out, stream, workspace, sm_count)

    def plan(self, direction: str, /, *arrays: Any, **named: Any) -> Plan:
        """Prepare a call, to repeat it on other arrays of the same layout.

        `direction`: "forward" or "backward". The other arguments are those of that method, including `out`
        and `stream`. This checks, plans and compiles everything, also for other numbers of rows, but launches
        nothing. See `Plan` for the arguments of its calls.
        """
        dispatcher = self.dispatcher(direction)
        return Plan(dispatcher, dispatcher.arguments.request(arrays, named))

    def workspace(
        self,
        direction: str,
        sizes: Sizes,
        dtypes: str | Mapping[str, str] = "f32",
        *,
        sm_count: int | None = None,
        alignment: int = 16,
        device: Machine | None = None,
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of the scratch arrays of a call, by name, without using a device.

        `sizes`: the length of each axis, `{"...": (8, 512), "D": 4096}`; `dtypes`: one for all operands
        without a type in the spec, or by name; `alignment`: of all arrays, in bytes. `sm_count` defaults
        to an H200's 132. A call needs exactly the scratch arrays of its device or `sm_count`, its lengths,
        its element types and the alignment of its arrays: those of `alignment=1` do not serve every call.
        """
        dispatcher = self.dispatcher(direction)
        bound = bind_sizes(dispatcher.direction, sizes, dtypes, alignment)
        planned = dispatcher.assembler.plan(bound, device or USUAL_MACHINE, sm_count)
        return {name: (shape, dtype) for name, shape, dtype in planned.workspace}

    def warmup(self, sizes: Sizes, dtypes: str | Mapping[str, str] = "f32", device: object = "cuda") -> None:
        """Compile and load the kernels of calls with contiguous arrays of these sizes, and of calls that
        differ only in the number of rows: few texts for each kernel that works on rows. Several are compiled
        in parallel."""
        key = device_key(device)
        run = [each for each in self._dispatchers.values() if each.direction.record.strategies]
        calls = [(each, imagined(each.direction, sizes, dtypes, key)) for each in run]
        texts = [text for each, call in calls for text in each.assembler.texts(call)]
        self._forward.assembler.compile(texts, key)
        for each, call in calls:
            each.prepare(call)

    def on(self, executor: Executor) -> Norm:
        """This norm, with all calls on one executor, for instance the checked host executor."""

        def bound(device: DeviceKey) -> Executor:
            if (device == HOST) != executor.device.host:
                raise ValueError(
                    f"this norm runs on {executor.device.name}, but the arrays are on {device[0]}: move them"
                )
            return executor

        types = [each.result for each in self._dispatchers.values()]
        return Norm(
            self.package,
            results=(types[0], types[1] if len(types) > 1 else None),
            reference=self._reference,
            executors=bound,
            planner=self._planner,
        )

    def __reduce__(self) -> Any:
        if self._executors is not executor_of or self._planner is not plan_tuned:
            raise TypeError(
                f"{self.name} is bound to an executor or a planner, which cannot be pickled: pickle the norm "
                "that it was made from"
            )
        return _restored, (self.package, self._reference)

    def __copy__(self) -> Norm:
        return self  # nothing of it changes but what it remembers of calls

    def __deepcopy__(self, memo: Any) -> Norm:
        return self

    def __repr__(self) -> str:
        operands = ", ".join(
            t.text if t.default is None else f"{t.text}={t.default:g}" for t in self.package.forward.reads
        )
        attrs = ", ".join(
            a.name if a.default is None else f"{a.name}={a.default!r}" for a in self.package.attrs
        )
        results = ", ".join(tensor.text for tensor in self._forward.direction.results.values())
        return f"<{self.name}: {operands}{'; ' if attrs else ''}{attrs} -> {results}>"

    def _repr_html_(self) -> str:
        """For notebooks: arguments, results and, if the spec is known, the formulas."""
        formulas = "" if self._reference is None else self.reference._repr_html_()
        head = f"<code>{escape(repr(self)[1:-1])}</code><p>{escape(self.package.doc)}</p>"
        return f"<div>{head}{formulas}</div>"

    def dispatcher(self, direction: str) -> Dispatcher:
        """The dispatcher that runs the calls of a direction, for code that prepares calls."""
        found = self._dispatchers.get(direction)
        if found is None and direction == "backward":
            raise ValueError(f"{self.name} has no backward: no output of it can be differentiated")
        if found is None:
            raise ValueError(f"{self.name} has no direction {direction!r}")
        return found
