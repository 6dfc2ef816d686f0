"""Groups of commands: whole summaries in the help, one suggestion, a sentence on Ctrl-C."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import click
import typer.core

from covertfl.errors import CovertflError

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
LONGEST_SUMMARY = 1000  # characters: help wraps summaries and cuts none off


class Interrupted(CovertflError):
    """A command that the user has ended with Ctrl-C."""

    exit_status = INTERRUPTED


class CommandGroup(typer.core.TyperGroup):
    """A group of commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with the first sentence of each, wrapped."""
        rows = [
            (name, command.get_short_help_str(LONGEST_SUMMARY))
            for name, command in self.commands.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out the command; typer would end an interrupted one without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            advice = getattr(interruption, "__notes__", [])
            raise Interrupted("; ".join(["interrupted", *advice])) from interruption

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; raise UsageError with the name that was probably meant."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = suggest(args[0], self.commands)
            raise click.UsageError(f"No such command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


def suggest(typed: str, known: Iterable[str]) -> str:
    """Return ". Did you mean ...?" with the nearest known name, empty if none is near."""
    near = difflib.get_close_matches(typed, list(known), n=1)
    return f". Did you mean {near[0]!r}?" if near else ""
