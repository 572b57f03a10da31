"""Generated modules, made and imported."""

from __future__ import annotations

from types import ModuleType

import normgen
from normgen import bundled


def generated(spec: str) -> ModuleType:
    """The module of a bundled spec, or of the text of one."""
    source = bundled.read(spec) if spec in bundled.names() else None
    module = ModuleType("generated")
    text = normgen.compile_spec(spec if source is None else source.text)
    exec(compile(text, "<generated>", "exec"), module.__dict__)
    return module
