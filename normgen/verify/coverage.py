"""The cases that a spec's kernels are checked on.

A norm of *rows* has its statistics along the innermost axes. `covering` takes every width with every number
of rows. A width keeps its element types (three sets of one type, six mixed), its offset and its layout for
all of them: numbers of rows are arguments of a kernel, so the whole product compiles little more than a
sample would. `quick` takes a few of these. `thorough` rotates the element types through the product and adds
every set of them at a few widths and all offsets. Any other spec (channels, groups, windows) has the cases of
`spaces`. `in_reason` leaves out what lengths that are given make too large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from normgen.ir.program import Definition
from normgen.verify import spaces
from normgen.verify.cases import DTYPE_SETS, Case, DtypeSet, make_case, told
from normgen.verify.memory import PITCHES
from normgen.verify.turns import in_turn

ROWS = (0, 1, 2, 3, 33)
WIDTHS = (1, 2, 3, 7, 8, 31, 32, 33, 100, 127, 128, 1000, 1023, 1024, 4097, 16385, 65537)
THOROUGH_WIDTHS = (7, 33, 128, 1000, 4097)
MOST = 2_500_000  # elements of a case
# Groups of cases, by their place in WIDTHS and in the spaces, and the elements of one.
QUICK_ROWS = (6, 10, 11, 14)
QUICK_SPACES = (0, 4, 7, 11)
QUICK_ELEMENTS = 150_000

Sizes = Mapping[str, int]


def covering(
    definition: Definition, sizes: Sizes | None = None, sets: Sequence[DtypeSet] = DTYPE_SETS
) -> list[Case]:
    """What the suite and `normgen check` run."""
    if not spaces.is_of_rows(definition):
        return _distinct(told(definition, case) for case in spaces.covering(definition, sizes or {}, sets))
    cases: list[Case] = []
    seen: set[tuple[int, ...]] = set()
    for index, width in enumerate(WIDTHS):
        own = ROWS[1 + index % (len(ROWS) - 1)]
        for rows in (own, *(rows for rows in ROWS if rows != own)):
            case = _covering_case(definition, index, rows, width, sizes or {}, sets)
            lengths = tuple(case.extents.values())
            if rows == own or lengths not in seen:  # once is enough where the caller fixes the width
                cases.append(case)
            seen.add(lengths)
    return _distinct(told(definition, case) for case in cases)


def _covering_case(
    definition: Definition, index: int, rows: int, width: int, sizes: Sizes, sets: Sequence[DtypeSet]
) -> Case:
    case = make_case(definition, rows, width, sets[(2 * index) % len(sets)], sizes)
    case = replace(case, offset=(0, 0, 1, 2, 3)[index % 5])
    return in_turn(definition, case, index, rows == ROWS[-1])


def quick(
    definition: Definition, sizes: Sizes | None = None, sets: Sequence[DtypeSet] = DTYPE_SETS
) -> list[Case]:
    """A few of the covering cases, for an answer within seconds: aligned and not, short rows and long,
    results made, given, in place and added to. Of each group two cases, one of them the longest."""
    groups: dict[int, list[Case]] = {}
    for case in covering(definition, sizes, sets):
        if all(case.extents.values()) and case.work(definition) <= QUICK_ELEMENTS:
            groups.setdefault(case.group, []).append(case)
    wanted = QUICK_ROWS if spaces.is_of_rows(definition) else QUICK_SPACES
    # Lengths that are given leave some groups out: then the first that there are.
    found = [group for group in wanted if group in groups] or list(groups)[: len(wanted)]
    return _distinct(case for group in found for case in (groups[group][0], groups[group][-1]))


def thorough(
    definition: Definition, sizes: Sizes | None = None, sets: Sequence[DtypeSet] = DTYPE_SETS
) -> list[Case]:
    """The fuller run."""
    cases = covering(definition, sizes, sets)
    if not spaces.is_of_rows(definition):
        return _distinct([*cases, *spaces.thorough(definition, sizes or {}, sets)])
    group = len(WIDTHS)
    for index, (width, rows) in enumerate((w, r) for w in WIDTHS for r in ROWS):
        dtypes = sets[index % len(sets)]
        case = make_case(definition, rows, width, dtypes, sizes)
        cases.append(replace(case, seed=1000 + index, group=group + index))
    group += len(WIDTHS) * len(ROWS)
    for index, (dtypes, width) in enumerate((d, w) for d in sets for w in THOROUGH_WIDTHS):
        for offset in range(4):
            case = replace(
                make_case(definition, 3, width, dtypes, sizes),
                offset=offset,
                pitch=PITCHES[(index + index // len(THOROUGH_WIDTHS)) % len(PITCHES)],
            )
            cases.append(replace(case, seed=2000 + index, group=group + index))
    return _distinct(cases)


def in_reason(definition: Definition, cases: Sequence[Case]) -> list[Case]:
    """Those of at most `MOST` elements; where each has more that is not an empty call, the smallest."""
    smallest = min((c.elements(definition) for c in cases if all(c.extents.values())), default=0)
    return [case for case in cases if case.elements(definition) <= max(MOST, smallest)]


def _distinct(cases: Iterable[Case]) -> list[Case]:
    return list(_first_of_each(cases))


def _first_of_each(cases: Iterable[Case]) -> Iterator[Case]:
    seen = set()
    for case in cases:
        lengths, dtypes = tuple(case.extents.items()), tuple(case.dtypes.items())
        key = (lengths, case.rest, dtypes, case.offset, case.pitch, case.absent)
        if key not in seen:
            seen.add(key)
            yield case
