"""The pages that each build of the site generates."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tools.docs.api import api
from tools.docs.command_line import command_line
from tools.docs.gallery import gallery
from tools.docs.language import language
from tools.docs.pages import Page
from tools.docs.reference import reference

# Each makes some pages, or files that pages link to. The order does not matter.
GENERATED: tuple[Callable[[], Iterable[Page]], ...] = (api, command_line, gallery, language, reference)
