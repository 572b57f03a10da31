"""What `--one-in` keeps: some cases of every test, with values of all kinds."""

from __future__ import annotations

import re
from itertools import product

from tests.sampling import one_in


def test_every_test_keeps_some_cases_of_all_kinds() -> None:
    cases = [f"a.py::test_it[{'-'.join(values)}]" for values in product("abc", "12345678", "xy")]
    others = ["a.py::test_it_again[1]", "b.py::test_it"]
    assert one_in(1, cases + others) == {*cases, *others}
    kept = one_in(4, cases + others)
    assert len(kept) == len(cases) / 4 + 2 and kept > {*others}
    told = [re.split(r"[\[\-\]]", case)[1:4] for case in kept.intersection(cases)]
    names, widths, dtypes = ({*values} for values in zip(*told, strict=True))
    assert len(names) == 3 and len(widths) > 4 and len(dtypes) == 2
    assert kept == one_in(4, reversed(cases + others))
