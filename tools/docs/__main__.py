"""Write the sources of the site: `python -m tools.docs`, from the top of the tree."""

from __future__ import annotations

from tools.docs.assemble import TARGET, assemble
from tools.docs.generated import GENERATED

made = assemble(page for make in GENERATED for page in make())
print(f"{len(made)} pages in {TARGET}")
