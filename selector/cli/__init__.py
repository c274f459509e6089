"""The `selector` command: one file per subcommand, loaded when it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

import click

from selector.errors import SelectorError

#: Settings of the group and of every command, so that a command behaves alike by whatever way it is called.
HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_COMMANDS = ("profile", "recommend", "export", "route", "verify", "doctor")


class _Lazy(click.Group):
    """Loads a subcommand's module when it is used, so that `route` does not pay for `profile`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"selector.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Our own errors become one line on stderr and exit 1, Ctrl-C exit 130; anything else keeps its traceback."""
        try:
            return super().invoke(ctx)
        except SelectorError as error:
            click.echo(f"selector: {error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("selector: interrupted", err=True)
            ctx.exit(130)


@click.group(cls=_Lazy, context_settings=HELP)
@click.version_option(package_name="decoding-strategy-selector")
def main() -> None:
    """Measure speculative decoding on your machine and prompts, decide per request class, deploy the answer.

    \b
    selector profile                      measure (no MODEL: a small embedded one)
    selector recommend P.profile.json     decide, write the policy
    selector export P.policy.json --to vllm
    selector route P.policy.json "prompt text"
    selector verify                       compare outputs with plain decoding

    Exit: 0 done, 1 could not, 2 wrong usage, 130 interrupted (nothing lost).
    """
