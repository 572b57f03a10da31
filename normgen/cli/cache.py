"""`normgen cache`: where compiled kernels and tuned schedules are kept, how much there is, and removing
them."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("cache")
def cache_command() -> None:
    """Show or clear the disk cache of compiled kernels, and the tuned schedules beside it.

    NORMGEN_CACHE_DIR names another directory; NORMGEN_CACHE=0 keeps nothing beyond the process.
    """


@cache_command.command("dir")
def directory() -> None:
    """Print the cache's directory."""
    click.echo(_root())


@cache_command.command("info")
def info() -> None:
    """Print the directory, how many entries it holds, their size, and how many files of tuned schedules."""
    entries = _entries(_root())
    total = sum(path.stat().st_size for path in entries)
    click.echo(f"directory: {_root()}")
    click.echo(f"entries: {len(entries)}")
    click.echo(f"size: {total / 1e6:.1f} MB")
    click.echo(f"tuned: {len(_tuned(_root()))} files")


@cache_command.command("clear")
@click.option("--tuned", is_flag=True, help="Also the schedules that `normgen tune` keeps.")
def clear(tuned: bool) -> None:
    """Remove every compiled kernel. Safe while other processes run: what they need is compiled again."""
    from contextlib import suppress

    removed = 0
    for path in (*_entries(_root()), *(_tuned(_root()) if tuned else ())):
        with suppress(FileNotFoundError):
            path.unlink()
            removed += 1
    click.echo(f"removed {removed} entries", err=True)


def _root() -> Path:
    from normgen.runtime.cache import default_cache

    return default_cache().root


def _tuned(root: Path) -> list[Path]:
    """The files of tuned schedules."""
    from normgen.runtime.tuned import FOLDER

    return sorted((root / FOLDER).glob("*.json"))


def _entries(root: Path) -> list[Path]:
    """The entries, without the locks beside them: a lock that is removed can be held twice."""
    return [path for path in sorted(root.glob("??/*")) if path.is_file() and path.suffix != ".lock"]
