"""`python -m normgen` is the command `normgen`."""

from __future__ import annotations

from normgen.cli import main

if __name__ == "__main__":
    main()
