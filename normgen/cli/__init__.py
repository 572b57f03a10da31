"""The command line: `normgen COMMAND`.

Each command is one module of this package. It imports the compiler inside its function, so that
`normgen --help` starts fast. Errors become exit codes only here.
"""

from __future__ import annotations

import errno
import sys
from typing import Any

import click

from normgen import __version__
from normgen.cli import exits
from normgen.cli.bench import bench_command
from normgen.cli.cache import cache_command
from normgen.cli.check import check_command
from normgen.cli.compile import compile_command
from normgen.cli.completion import completion_command
from normgen.cli.console import ask_for_a_report, say, show_diagnostics
from normgen.cli.doctor import doctor_command
from normgen.cli.explain import explain_command
from normgen.cli.listing import list_command
from normgen.cli.new import new_command
from normgen.cli.tune import tune_command

# Errors of a disk, for files and for stdout.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class _Commands(click.Group):
    """A group that turns exceptions of the compiler into messages and exit codes."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            say("interrupted")
            context.exit(exits.INTERRUPTED)
        except (click.exceptions.Exit, click.Abort, click.ClickException, BrokenPipeError):
            raise
        except Exception as fault:
            context.exit(_report(fault))


def _report(fault: Exception) -> int:
    """Print what went wrong; returns the exit code."""
    from normgen.diagnostics import SpecError
    from normgen.errors import MachineError
    from normgen.launching.support import NoSchedule

    if isinstance(fault, SpecError):
        show_diagnostics(fault.diagnostics, fault.source)
        return exits.FAULTS
    if isinstance(fault, NoSchedule):
        say(str(fault))
        return exits.USAGE
    if isinstance(fault, MachineError):
        say(str(fault))
        if fault.exit_code == exits.INTERNAL:
            ask_for_a_report()
        return fault.exit_code
    if isinstance(fault, OSError) and fault.errno in _FULL:
        say(f"cannot write: {fault.strerror}")
        return exits.USAGE
    import traceback

    click.echo("".join(traceback.format_exception(fault)).rstrip(), err=True)
    ask_for_a_report()
    return exits.INTERNAL


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exits.SUMMARY,
)
@click.version_option(__version__, prog_name="normgen", message="%(prog)s %(version)s")
def commands() -> None:
    """Compile normalization specs into CUDA kernels, forward and backward.

    SPEC is a .norm file (the .norm may be left out), the name of a bundled spec (see `normgen list`), or -
    for stdin. A bundled name takes precedence over a file.
    """


for _command in (
    new_command,
    compile_command,
    check_command,
    explain_command,
    bench_command,
    tune_command,
    list_command,
    cache_command,
    doctor_command,
    completion_command,
):
    commands.add_command(_command)


def main() -> None:
    """The entry point of the command `normgen`."""
    for stream in (sys.stdout, sys.stderr):
        # Specs are UTF-8. A terminal with another encoding shows replacement characters.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    commands(prog_name="normgen")
