"""`normgen cache`: show and clear the cache of compiled kernels and tuned schedules."""

from __future__ import annotations

from pathlib import Path

import click

from normgen.counting import bytes_text, counted


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """The bytes of an option such as 500M."""
    from normgen.cache_limit import parse_size

    try:
        return None if value is None else parse_size(value)
    except ValueError as fault:
        raise click.BadParameter(str(fault)) from None


@click.group("cache", short_help="Show or clear the cache on disk.")
def cache_command() -> None:
    """Show or clear the cache on disk: compiled kernels, and schedules kept by `normgen tune`.

    NORMGEN_CACHE_DIR sets another directory. With NORMGEN_CACHE=0 nothing outlives the process.
    NORMGEN_CACHE_LIMIT limits the size of the kernels, for example to 500M (default 1G; 0 for no limit).
    """


@cache_command.command("dir")
def directory() -> None:
    """Print the cache's directory."""
    click.echo(_root())


@cache_command.command("info", short_help="Print the directory and its size.")
def info() -> None:
    """Print the directory, the number and size of its entries, the limit, and the number of tuned files."""
    from normgen.cache_limit import entries, size_limit

    sizes = [entry.bytes for entry in entries(_root())]
    limit = size_limit()
    click.echo(f"directory: {_root()}")
    click.echo(f"entries: {len(sizes)}")
    click.echo(f"size: {bytes_text(sum(sizes))}")
    click.echo(f"limit: {bytes_text(limit) if limit else 'none'}")
    click.echo(f"tuned: {counted(len(_tuned(_root())), 'file')}")


@cache_command.command("clear")
@click.option("--tuned", is_flag=True, help="Also remove the schedules kept by `normgen tune`.")
def clear(tuned: bool) -> None:
    """Remove all compiled kernels. Running processes are safe: they compile again what they need."""
    from normgen.cache_limit import prune

    removed = prune(_root(), 0)
    for path in _tuned(_root()) if tuned else ():
        path.unlink(missing_ok=True)
        removed += 1
    click.echo(f"removed {counted(removed, 'entry')}", err=True)


@cache_command.command("prune", short_help="Remove the least recently used kernels.")
@click.option(
    *("--to", "limit"),
    metavar="SIZE",
    callback=_size,
    help="The size to shrink to, for example 200M (default: the limit).",
)
def prune_command(limit: int | None) -> None:
    """Remove the least recently used kernels until the others fit into the limit.

    A full cache does this by itself. Running processes are safe: they compile again what they need.
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
