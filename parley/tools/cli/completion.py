"""``parley completion SHELL``: the script that completes commands, options and values in a shell.

The script calls this command again with the words that were typed (``--words``), which prints a candidate per line.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from parley.tools.cli.app import App
from parley.tools.cli.completion_scripts import BASH, FISH, ZSH

app = App(
    "Print the script that completes commands, options and their values in bash, zsh or fish.\n\n"
    "Names of topics and groups come from the cluster that the command line or the profile names; if it does not "
    "respond within a second, there are none.",
    examples=[
        ("source <(parley completion bash)", "in this shell; in ~/.bashrc for all shells"),
        ("parley completion zsh > ~/.zfunc/_parley", "a folder of fpath, before compinit"),
        ("parley completion fish > ~/.config/fish/completions/parley.fish", "for fish"),
    ],
    takes_profiles=False,
)


class Shell(StrEnum):
    """The shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_SCRIPTS = {Shell.BASH: BASH, Shell.ZSH: ZSH, Shell.FISH: FISH}


@app.only_command()
def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.", show_default=False)],
    words: Annotated[
        list[str] | None,
        typer.Argument(hidden=True, metavar="", help="After `--`: the words after `parley`, the last one unfinished."),
    ] = None,
) -> None:
    if words is None:
        print(_SCRIPTS[shell], end="")
        return
    from parley.tools.cli.completing import candidates

    for each in candidates(words):
        print(f"{each.value}\t{each.meaning}" if each.meaning and shell is not Shell.BASH else each.value)
