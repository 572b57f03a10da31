"""Write the sources of the site: `python -m tools.docs`, from the top of the tree."""

from __future__ import annotations

from tools.docs.assemble import TARGET, assemble

print(f"{len(assemble())} pages in {TARGET}")
