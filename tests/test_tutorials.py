"""The tutorials: what they say of a kernel is in the kernel that they show."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"


def test_what_is_said_of_a_kernel_is_in_it() -> None:
    text = (FOLDER / "read-measure-tune.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## The kernel\n")
    section, _, _ = section.partition("\n## Measure it\n")
    kernel = section.partition("```cpp\n")[2].partition("```")[0]
    steps = re.findall(r"^\d+\. .*(?:\n   .*)*", section, re.MULTILINE)
    named = [name for step in steps for name in re.findall(r"`([^`]+)`", step)]
    assert len(steps) >= 8 and len(named) > 10
    assert not [name for name in named if name not in kernel]
