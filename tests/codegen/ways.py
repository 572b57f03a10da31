"""Schedules of the rows family that tests ask for, whatever a kernel would take by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from normgen.families.rows.launch.choose import RowsSpace
from normgen.families.rows.launch.legal import legal
from normgen.families.rows.launch.schedule import RowSchedule, RowShape
from normgen.families.rows.launch.space import neighbours, starts
from normgen.launching import pick
from normgen.launching.machine import Machine
from normgen.launching.pick import Ranges, Space

Offers = Callable[[RowShape, Machine], Iterable[RowSchedule]]


@contextmanager
def first(found: Offers) -> Iterator[None]:
    """Kernels take the first of these schedules that they can, and what they take by themselves where they
    can take none."""

    def asked(space: RowsSpace) -> Ranges[Any] | None:
        shape, device = space.shape, space.device
        fitted = (legal(each, shape, device) for each in found(shape, device) if each.form in space.forms)
        first = next((each for each in fitted if isinstance(each, RowSchedule)), None)
        return None if first is None else Ranges((first,))

    with asked_first(asked):
        yield


@contextmanager
def only(form: str) -> Iterator[None]:
    """Kernels that have this form take the schedule that they would take if they had no other."""
    usual = pick.predicted

    def asked(space: RowsSpace) -> Ranges[Any] | None:
        return usual(replace(space, forms=(form,))) if form in space.forms else None

    with asked_first(asked):
        yield


@contextmanager
def asked_first(asked: Callable[[RowsSpace], Ranges[Any] | None]) -> Iterator[None]:
    """Kernels of the rows family take what this says, and what they take by themselves where it is None."""
    usual = pick.predicted

    def predicted(space: Space[Any], known: Any = ()) -> Ranges[Any] | None:
        found = asked(space) if isinstance(space, RowsSpace) else None
        return usual(space, known) if found is None else found

    with patch.object(pick, "predicted", predicted):
        yield


def of_form(form: str, **knobs: int) -> Offers:
    """Every schedule of a form that is offered with such knobs."""

    def ways(shape: RowShape, device: Machine) -> Iterator[RowSchedule]:
        for each in offered(shape, device, (form,)):
            if all(getattr(each, name) == value for name, value in knobs.items()):
                yield each

    return ways


def offered(shape: RowShape, device: Machine, forms: tuple[str, ...]) -> Iterator[RowSchedule]:
    """Every schedule of some forms."""
    for each in starts(shape, device, forms):
        yield from neighbours(each, shape, device, forms)


def pipeline(
    shape: RowShape,
    threads: int,
    cluster: int = 1,
    reload: bool = False,
    late: bool = False,
    stages: int = 0,
    teams: int = 1,
) -> RowSchedule:
    """One row at a time in so many threads of a block, or of each block of a cluster. With `stages` in its
    pipeline, a block has a multiprocessor of its own."""
    team = threads * cluster
    return RowSchedule(
        "pipeline", shape.vector, team, teams, -(-shape.vectors // team), int(stages > 0), stages=stages,
        reload=reload, late=late, cluster=cluster, bulk=reload and cluster > 1 and shape.whole_words,
    )  # fmt: skip


def shared(members: int, threads: int = 64, held: bool = False) -> Offers:
    """Rows in so many blocks that share one, by a launch for each level. `held`: their threads have sums over
    rows in registers."""

    def ways(shape: RowShape, device: Machine) -> Iterator[RowSchedule]:
        team = members * threads
        items = -(-shape.vectors // team)
        yield RowSchedule("multipass", shape.vector, team, 1, items, members=members, held=held)

    return ways
