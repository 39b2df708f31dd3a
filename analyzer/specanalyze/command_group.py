"""The commands as typer sees them: named from a table, imported and built when one is called, plain text as help.

Typer's own help draws boxes with rich and a Markdown reader, which cost more than everything else ``--help`` does, and
building all commands to run one costs as much again.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from specanalyze.argument_values import plain_values
from specanalyze.commands import COMMANDS

WIDEST: Final = 100
"""Columns of help on a wide terminal."""
SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": WIDEST}
_HEADING: Final = re.compile(r"^(?:[A-Z][\w ]*:|Usage:)", re.MULTILINE)


class PlainHelp(TyperCommand):
    """A command whose help is plain text with its examples in a section of their own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Values of the words."""
        plain_values(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Options, then the arguments by the names that the help explains."""
        return ["[OPTIONS]", *(_name(p) for p in self.params if p.param_type_name == "argument")]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """What the docstring says; what it shows as examples comes last (``format_epilog``)."""
        text, _ = split_examples(self.help or "")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options, each with what it means and its default."""
        arguments = [(_name(p), p.help or "") for p in self.params if p.param_type_name == "argument"]  # type: ignore[attr-defined]
        options = [p.get_help_record(ctx) for p in self.get_params(ctx) if p.param_type_name == "option"]
        for title, rows in (("Arguments", arguments), ("Options", [row for row in options if row])):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The docstring's examples, each on one line, so that they can be copied."""
        _, examples = split_examples(self.help or "")
        if examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in examples))

    def get_help(self, ctx: Any) -> str:
        """The whole page."""
        return _with_headings(super().get_help(ctx))


class CommandGroup(TyperGroup):
    """All commands of ``commands.COMMANDS``; only the one that is called is imported."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The group's own options."""
        plain_values(self.get_params(ctx))  # here, because typer adds some only when the group is made
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, in the order of ``--help``."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, built now; None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            import_module(f"specanalyze.commands.{COMMANDS[cmd_name].module}").register(app)
            app.registered_commands[0].cls = PlainHelp
            app.registered_commands[0].context_settings = SETTINGS
            self.commands[cmd_name] = get_command(app)
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called; an unknown name gets the names that look like it."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            close = " or ".join(get_close_matches(args[0], COMMANDS))
            ctx.fail(f"No such command {args[0]!r}.{f' Did you mean {close}?' if close else ''}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Names that begin so, with their summaries; nothing is imported for that."""
        built, self.commands = (
            self.commands,
            {
                name: TyperCommand(name=name, short_help=command.summary, rich_markup_mode=None)
                for name, command in COMMANDS.items()
            },
        )
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self.commands = built

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands under their headings, then the options."""
        first = max(len(name) for name in COMMANDS)
        for group in dict.fromkeys(command.group for command in COMMANDS.values()):
            with formatter.section(group):
                formatter.write_dl(
                    [
                        (name.ljust(first), command.summary)
                        for name, command in COMMANDS.items()
                        if command.group == group
                    ]
                )
        options = [p.get_help_record(ctx) for p in self.get_params(ctx)]
        with formatter.section("Options"):
            formatter.write_dl([row for row in options if row])

    def get_help(self, ctx: Any) -> str:
        """The whole page."""
        return _with_headings(super().get_help(ctx))


def split_examples(text: str) -> tuple[str, list[str]]:
    """A docstring's prose, and the command lines after ``Example:`` or ``Examples:``, one each."""
    prose, _, shown = text.partition("\n\nExample")
    lines = (line.strip() for line in shown.removeprefix("s").removeprefix(":").splitlines())
    return prose, [line for line in lines if line]


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _with_headings(text: str) -> str:
    """Headings in bold where a person reads, with the same freedom to refuse as everywhere else."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return _HEADING.sub(lambda found: f"\x1b[1m{found[0]}\x1b[0m", text)
