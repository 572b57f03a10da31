"""One direction of a norm as a call: arguments -> views -> a prepared call -> results.

Everything that depends only on shapes, dtypes, strides and alignment is prepared once and found again by
these: the checks, the launch plan, the compiled functions. A call like one before takes a shortcut, and looks
at its arrays no further than it must to know that it is one. What is left for each call is to allocate the
results, fill in addresses and launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from normgen import arrays
from normgen.arrays.views import Library
from normgen.devices.executors import keeps_calls
from normgen.launching.launch import HOST
from normgen.package.direction import Direction
from normgen.package.records import Package
from normgen.runtime.calls.arguments import Arguments, Request
from normgen.runtime.calls.assemble import Assembler, Executors, Planner
from normgen.runtime.calls.bounded import Bounded
from normgen.runtime.calls.cases import PreparedCases
from normgen.runtime.calls.look import ViewedCall, look
from normgen.runtime.calls.prepared import NOTHING, PreparedCall
from normgen.runtime.calls.shortcut import Brief, Shortcut, brief, shortcut
from normgen.runtime.calls.workspace import supplied

PREPARED_KEPT = 4096
SHORTCUTS_KEPT = 256


class Settled(NamedTuple):
    """A call that is prepared, and what it is prepared with."""

    prepared: PreparedCall
    call: ViewedCall
    stream: int
    head: tuple[Any, ...]  # the pool up to the results that are made
    theirs: Mapping[str, int]  # the addresses of scratch arrays that the caller supplies


class Dispatcher:
    """What runs the calls of one direction. It holds nothing but caches; any number of threads may call it
    at once."""

    def __init__(
        self, direction: Direction, package: Package, result: Any, executors: Executors, planner: Planner
    ) -> None:
        """`result`: the type of named tuples that calls return."""
        self.direction = direction
        self.result = result
        self.arguments = Arguments(package, direction)
        self.assembler = Assembler(direction, executors, planner)
        self._cases = PreparedCases(self.assembler)
        self._states = [(n, name) for n, name in enumerate(direction.reads) if name in direction.updated]
        self._prepared: Bounded[Any, PreparedCall] = Bounded(PREPARED_KEPT)
        self._shortcuts: Bounded[Any, Shortcut] = Bounded(SHORTCUTS_KEPT)
        keeps_calls(self)

    def forget(self) -> None:
        """Prepare every call again when it comes next."""
        self._prepared.forget()
        self._cases.forget()
        self._shortcuts.forget()

    def call(
        self,
        given: tuple[Any, ...],
        named: Mapping[str, Any],
        choice: tuple[Any, ...],
        out: Mapping[str, Any] | None,
        stream: Any,
        workspace: Mapping[str, Any] | None,
        sm_count: int | None,
    ) -> Any:
        """Run on these arguments. `choice`: the options of this direction alone, fit to be part of a key."""
        states = self._given_states(given, named) if self._states else ()
        found = brief(given, named, out, choice, states) if workspace is None and sm_count is None else None
        known = self._shortcuts.get(found[0]) if found is not None else None
        if known is not None and found is not None and (head := known.head(found[1])) is not None:
            objects, prepared, library = found[2], known.prepared, known.library
            owner = objects[known.like]
            handle = arrays.stream_for(library, owner, prepared.device, stream)
            theirs = [objects[place] for place in known.out]
            result = self._finish(prepared, library, owner, handle, head, theirs, NOTHING)
            if result is not None:
                return result
        options = (*choice, out, stream, workspace, sm_count)
        return self.run(self.arguments.request(given, named, options), found)

    def _given_states(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The states that a call updates."""
        found = (given[n] if n < len(given) else named.get(name) for n, name in self._states)
        return tuple([state for state in found if state is not None])

    def run(self, request: Request, found: Brief | None = None) -> Any:
        """The results, None where one is not wanted, each the same kind of array as the caller's. Calls that
        are the same in brief may then take a shortcut."""
        settled = self.settle(request)
        prepared, call, stream, head, theirs = settled
        like, out = call.views[call.like], request.out
        library = like.library
        if prepared.device != HOST and not prepared.idle:
            arrays.order(stream, (*call.views.values(), *call.out.values()))
        given = [out[name] for name in prepared.given]
        result = self._finish(prepared, library, like.owner, stream, head, given, theirs)
        if result is None:
            # The launches count on aligned results. Plan for what the allocator gives.
            made, _ = prepared.make(library, like.owner)
            names = [name for name in request.wanted if name not in out]
            return self.run(request._replace(out={**dict(zip(names, made, strict=True)), **out}))
        if found is not None and not call.loose:
            reads, bounds = self.direction.reads, self.arguments.bounds
            short = shortcut(found, reads, prepared, (call.like, library), request.numbers, bounds)
            self._shortcuts.keep(found[0], short)
        return result

    def settle(self, request: Request) -> Settled:
        """Look at everything that a call gives, check it, and prepare the call."""
        call = look(self.direction, request)
        like = call.views[call.like]
        stream = arrays.stream_of(like, request.stream)
        prepared = self.prepare(call)
        scratch, theirs = prepared.scratch, NOTHING
        if request.workspace:
            theirs = supplied(scratch.workspace, request.workspace, like)
        numbers = {**request.numbers, **call.bits}
        head = (
            *(view.pointer for view in call.views.values()),
            *(call.out[name].pointer for name in prepared.given),
            *(numbers[name] for name in prepared.numbers),
        )
        return Settled(prepared, call, stream, head, theirs)

    def prepare(self, call: ViewedCall) -> PreparedCall:
        """The prepared call: from the cache, by a case, or checked, planned and compiled now."""
        key = call.key
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._cases.prepare(call)
            self._prepared.keep(key, prepared)
        return prepared

    def _finish(
        self,
        prepared: PreparedCall,
        library: Library,
        owner: Any,
        stream: int,
        head: tuple[Any, ...],
        given: list[Any],
        theirs: Mapping[str, int],
    ) -> Any:
        """Allocate what the array `owner`'s library is to make, and launch. None where the results came out
        less aligned than planned for."""
        if not prepared.made:
            prepared.run(library, owner, stream, [*head], theirs)
            return self.result._make(prepared.fields([*given, None]))
        made, addresses = prepared.make(library, owner)
        if not prepared.suits(addresses):
            return None
        prepared.run(library, owner, stream, [*head, *addresses], theirs)
        return self.result._make(prepared.results(given, made, library, stream))
