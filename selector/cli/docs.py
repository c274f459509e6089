"""Prints docs/cli.md from the commands themselves: `python -m selector.cli.docs > docs/cli.md`."""

from __future__ import annotations

import click

from selector.cli import main

_WIDTH = 110
_HEAD = """\
# Command line

Printed by the program (`python -m selector.cli.docs > docs/cli.md`); a test fails when it is stale.

Data goes to stdout, talk and progress to stderr. Where a table is printed, `--json` prints all of it as JSON.

| exit | means |
|---|---|
| 0 | done |
| 1 | could not; one line on stderr says why and what mends it |
| 2 | wrong usage |
| 3 | `verify`: not lossless, or a drafter out of step |
| 4 | `verify`: too little was compared to say |
| 130 | interrupted; what was measured is kept |

| variable | does |
|---|---|
| `SELECTOR_CACHE_DIR` | folder for the converted embedded model, instead of the user's cache folder |
| `SELECTOR_EMBEDDED_WHEEL` | the wheel with the embedded model, downloaded before (no package index here) |
"""


def page() -> str:
    """The whole page: the group, then every command."""
    settings = {**main.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    group = click.Context(main, info_name="selector", **settings)
    parts = [_HEAD, _section("selector", main.get_help(group))]
    for name in main.list_commands(group):
        command = main.get_command(group, name)
        if command is not None:
            context = click.Context(command, group, name, terminal_width=_WIDTH)
            parts.append(_section(f"selector {name}", command.get_help(context)))
    return "\n".join(parts)


def _section(title: str, help_text: str) -> str:
    lines = "\n".join(line.rstrip() for line in help_text.splitlines())
    return f"## `{title}`\n\n```text\n{lines}\n```\n"


if __name__ == "__main__":
    click.echo(page(), nl=False)
