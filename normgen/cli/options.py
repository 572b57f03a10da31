"""What several commands share: the SPEC argument, `--attr`, `--size`, `--dtype`, `--arch`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from normgen.cli import exits
from normgen.cli.suggestions import suggest_attrs, suggest_sizes, suggest_specs

if TYPE_CHECKING:
    from normgen.diagnostics import Source

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# A spec is a page of text. A larger file is a mistake, and is not read into memory.
LARGEST_SPEC = 50_000_000
STDIN = "<stdin>"  # the name of a spec from there

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
AXIS = re.compile(r"[A-Z][A-Za-z0-9_]*|\.\.\.")
DIMENSION = re.compile(rf"{AXIS.pattern}|\([A-Z][A-Za-z0-9_ ]*\)")
_INTEGER = re.compile(r"[+-]?[0-9]+")


class Unreadable(click.ClickException):
    """A spec on the command line that cannot be read."""

    exit_code = exits.USAGE


def spec_argument(command: Command) -> Command:
    """The argument SPEC: a file, the name of a bundled spec, or `-` for stdin."""
    return click.argument("spec", metavar="SPEC", shell_complete=suggest_specs)(command)


def attr_option(command: Command) -> Command:
    """`--attr eps=1e-6`, any number of times."""
    return click.option(
        "--attr",
        "attrs",
        metavar="NAME=VALUE",
        multiple=True,
        shell_complete=suggest_attrs,
        callback=lambda _context, _parameter, given: _attrs(given),
        help="Set an attr of the spec. Int and bool attrs without a default must be set.",
    )(command)


def size_option(text: str) -> Decorator:
    """`--size D=4096`, any number of times."""
    return click.option(
        "--size",
        "sizes",
        metavar="AXIS=LENGTH",
        multiple=True,
        shell_complete=suggest_sizes,
        callback=lambda _context, _parameter, given: _sizes(given),
        help=text,
    )


def dtype_option(text: str) -> Decorator:
    """`--dtype bf16`."""
    from normgen.dtypes import DEVICE_DTYPES

    return click.option(
        "--dtype", type=click.Choice(DEVICE_DTYPES), default="bf16", show_default=True, help=text
    )


def arch_option(text: str) -> Decorator:
    """`--arch sm_90`: an architecture that kernels can target."""
    return click.option(
        "--arch",
        metavar="ARCH",
        default="sm_90",
        show_default=True,
        callback=lambda _context, _parameter, given: _arch(given),
        help=text,
    )


def given_options(names: Collection[str]) -> list[str]:
    """Which of the parameters of these names the command line gives, as options: `--dtype`."""
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def read_spec(argument: str) -> Source:
    """The spec that SPEC names: a bundled spec, else a file, whose `.norm` may be left out."""
    from normgen import bundled
    from normgen.diagnostics import Source

    if argument == "-":
        return Source(STDIN, _decode("stdin", sys.stdin.buffer.read(LARGEST_SPEC + 1)))
    found = bundled.read(argument)
    if found is not None:
        return found
    path = argument
    if not Path(path).exists():
        if Path(f"{path}.norm").is_file():
            path = f"{path}.norm"
        elif _NAME.fullmatch(path):
            raise Unreadable(f"there is no bundled spec {path} and no file {path}.norm: {bundled.hint(path)}")
    return Source(path, _decode(path, _contents(path)))


def _contents(path: str) -> bytes:
    from normgen import bundled

    try:
        with open(path, "rb") as file:
            return file.read(LARGEST_SPEC + 1)
    except OSError as fault:
        raise Unreadable(f"cannot read {path}: {fault.strerror}{bundled.file_hint(path)}") from fault
    except ValueError as fault:  # a NUL in the name
        raise Unreadable(f"cannot read {path!r}: {fault}") from fault


def _decode(name: str, data: bytes) -> str:
    if len(data) > LARGEST_SPEC:
        raise Unreadable(f"{name} is larger than {LARGEST_SPEC // 1_000_000} MB: a spec is a page of text")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise Unreadable(f"{name} is not UTF-8 text (byte {fault.start})") from fault


def _attrs(given: tuple[str, ...]) -> dict[str, object]:
    given_by_name = pairs(given, "--attr", "eps=1e-6")
    return {name: _value(text) for name, text in given_by_name.items()}


def _sizes(given: tuple[str, ...]) -> dict[str, int]:
    sizes = {}
    for axis, text in pairs(given, "--size", "D=4096", AXIS).items():
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise click.BadParameter(f"{axis}={text}: a length is a whole number", param_hint="--size")
        sizes[axis] = int(text)
    return sizes


def pairs(given: tuple[str, ...], option: str, example: str, name: re.Pattern[str] = _NAME) -> dict[str, str]:
    """The values of a repeated option of the form `name=value`, by name."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value or not name.fullmatch(key):
            raise click.BadParameter(f"{text!r} is not of the form {example}", param_hint=option)
        if key in found:
            raise click.BadParameter(f"{key} is given twice", param_hint=option)
        found[key] = value
    return found


def _value(text: str) -> object:
    """A bool, int or float as in the spec language; any other text, which the checker refuses."""
    if text in ("true", "True", "false", "False"):
        return text.lower() == "true"
    # Python refuses to read longer ones; so does the language.
    if _INTEGER.fullmatch(text) and len(text) <= sys.int_info.default_max_str_digits:
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def _arch(given: str) -> str:
    from normgen.launching.machine import is_too_old, too_old

    if not re.fullmatch(r"sm_[0-9]{2,3}[af]?", given):
        raise click.BadParameter(f"{given!r} is not an architecture, such as sm_90", param_hint="--arch")
    if is_too_old(given):
        raise click.BadParameter(too_old(given), param_hint="--arch")
    return given
