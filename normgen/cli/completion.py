"""`normgen completion`: the script that makes a shell complete the command line."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  normgen completion bash >> ~/.bashrc
    zsh:   normgen completion zsh >> ~/.zshrc
    fish:  normgen completion fish > ~/.config/fish/completions/normgen.fish
    """
    from click.shell_completion import get_completion_class

    context = click.get_current_context().find_root()
    shell_class = get_completion_class(shell)
    assert shell_class is not None, shell
    script = shell_class(context.command, {}, "normgen", "_NORMGEN_COMPLETE").source()
    click.echo(script)
