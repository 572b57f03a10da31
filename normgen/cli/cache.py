"""`normgen cache`: where compiled kernels and tuned schedules are kept, how much there is, and removing
them."""

from __future__ import annotations

from pathlib import Path

import click

from normgen.counting import bytes_text, counted


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """The bytes of an option that is written as in 500M."""
    from normgen.cache_limit import parse_size

    try:
        return None if value is None else parse_size(value)
    except ValueError as fault:
        raise click.BadParameter(str(fault)) from None


@click.group("cache", short_help="Show or clear what is kept on disk.")
def cache_command() -> None:
    """Show or clear the disk cache of compiled kernels, and the tuned schedules beside it.

    NORMGEN_CACHE_DIR names another directory; NORMGEN_CACHE=0 keeps nothing beyond the process.
    NORMGEN_CACHE_LIMIT is what the kernels may take, for example 500M (default 1G; 0: any amount).
    """


@cache_command.command("dir")
def directory() -> None:
    """Print the cache's directory."""
    click.echo(_root())


@cache_command.command("info", short_help="Print the directory and what it holds.")
def info() -> None:
    """Print the directory, how many entries it holds, their size, and how many files of tuned schedules."""
    from normgen.cache_limit import entries, size_limit

    sizes = [entry.bytes for entry in entries(_root())]
    limit = size_limit()
    click.echo(f"directory: {_root()}")
    click.echo(f"entries: {len(sizes)}")
    click.echo(f"size: {bytes_text(sum(sizes))}")
    click.echo(f"limit: {bytes_text(limit) if limit else 'none'}")
    click.echo(f"tuned: {counted(len(_tuned(_root())), 'file')}")


@cache_command.command("clear")
@click.option("--tuned", is_flag=True, help="Also the schedules that `normgen tune` keeps.")
def clear(tuned: bool) -> None:
    """Remove every compiled kernel. Safe while other processes run: what they need is compiled again."""
    from normgen.cache_limit import prune

    removed = prune(_root(), 0)
    for path in _tuned(_root()) if tuned else ():
        path.unlink(missing_ok=True)
        removed += 1
    click.echo(f"removed {counted(removed, 'entry')}", err=True)


@cache_command.command("prune", short_help="Remove kernels that are not used any more.")
@click.option(
    *("--to", "limit"),
    metavar="SIZE",
    callback=_size,
    help="What may be left, as in 200M (default: the limit).",
)
def prune_command(limit: int | None) -> None:
    """Remove the kernels that were not used for longest, until the others take no more than the limit.

    A full cache does so by itself. Safe while other processes run: what they need is compiled again.
    """
    from normgen.cache_limit import prune, size_limit

    if limit is None:
        limit = size_limit() or None
    click.echo(f"removed {counted(prune(_root(), limit), 'entry')}", err=True)


def _root() -> Path:
    from normgen.cache import default_cache

    return default_cache().root


def _tuned(root: Path) -> list[Path]:
    """The files of tuned schedules."""
    from normgen.runtime.planning.store import FOLDER

    return sorted((root / FOLDER).glob("*.json"))
