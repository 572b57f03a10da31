"""`normgen completion`: print a shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete


class _Bash(BashComplete):
    """Click's script completes either words or files. This one completes both, and adds no space after
    `eps=`."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' type value
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
            file) compopt -o filenames; COMPREPLY+=($(compgen -f -- "$2")) ;;
            dir) compopt -o filenames; COMPREPLY+=($(compgen -d -- "$2")) ;;
            plain) [[ $value == *= ]] && compopt -o nospace; COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the completion script of a shell.

    It completes options, files and bundled specs, attrs behind --attr, and axes behind --size.

    \b
    bash:  normgen completion bash >> ~/.bashrc
    zsh:   normgen completion zsh >> ~/.zshrc
    fish:  normgen completion fish > ~/.config/fish/completions/normgen.fish
    """
    from click.shell_completion import get_completion_class

    context = click.get_current_context().find_root()
    shell_class = _Bash if shell == "bash" else get_completion_class(shell)
    assert shell_class is not None, shell
    script = shell_class(context.command, {}, "normgen", "_NORMGEN_COMPLETE").source()
    click.echo(script)
