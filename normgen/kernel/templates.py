"""The templates of kernel texts and modules, compiled once for all processes of a user."""

from __future__ import annotations

import marshal
from functools import cache
from typing import Any

import jinja2
from jinja2.bccache import Bucket

from normgen.cache_results import kept

_OPTIONS: dict[str, Any] = {
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
    "autoescape": False,
    "optimized": False,  # a fifth of the time of compiling a template goes into folding constants
}


@cache
def environment() -> jinja2.Environment:
    """The one template environment: an undefined name in a template is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("normgen", "templates"),
        undefined=jinja2.StrictUndefined,
        bytecode_cache=_Kept(),
        **_OPTIONS,
    )


class _Kept(jinja2.BytecodeCache):
    """The code of templates, out of the cache: a bucket comes with it, and nothing is loaded or dumped."""

    def get_bucket(
        self, environment: jinja2.Environment, name: str, filename: str | None, source: str
    ) -> Bucket:
        def build() -> bytes:
            return marshal.dumps(environment.compile(source, name, filename))

        depends = (jinja2.__version__, repr(_OPTIONS), name, filename or "", source)
        bucket = Bucket(environment, self.get_cache_key(name, filename), self.get_source_checksum(source))
        bucket.code = marshal.loads(kept("template", depends, build))
        return bucket
