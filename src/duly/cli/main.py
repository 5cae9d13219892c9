"""
``duly``: finds the command, runs it, and turns errors into sentences and exit codes.

0 ok, 1 no, 2 usage, 3 store unavailable.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any

import click

import duly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

OK, NO, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 3, 130

#: Every command: the module in duly.cli that holds it under its own name, and its line in `duly --help`.
COMMANDS = {
    "audit": ("audit", "who changed what, over HTTP or by commands"),
    "bench": ("bench", "measure this machine: rates, lateness, memory, idle cost"),
    "completion": ("completion", "print the script that completes duly's words in your shell"),
    "dead": ("dead", "what dead jobs died of, and run them again"),
    "demo": ("demo", "see it work: jobs run on time although a worker is killed"),
    "doctor": ("doctor", "check machine, settings, server and queue, with a remedy for each finding"),
    "enqueue": ("enqueue", "send one job"),
    "init": ("init", "write a starter app: handlers, settings, a test"),
    "jobs": ("jobs", "list, show, cancel, reschedule and requeue jobs"),
    "keys": ("keys", "who may do what over HTTP: create, list, revoke API keys"),
    "listen": ("listen", "receive callbacks and check their signatures, for development"),
    "replies": ("replies", "what became of jobs that were sent with a reply_to"),
    "record": ("record", "the database of record: make its tables, check and export them"),
    "pipeline": ("pipeline", "move and read jobs in bulk, with Spark"),
    "serve": ("serve", "serve the queue over HTTP until SIGTERM or Ctrl-C"),
    "stats": ("stats", "the queue at a glance"),
    "submit": ("submit", "send many jobs: from JSON lines, or as a load"),
    "top": ("top", "watch the queue: lateness, rates, backlog, workers, failures"),
    "topics": ("topics", "list topics; pause, resume, limit and purge them"),
    "up": ("up", "run server and workers in one terminal until Ctrl-C"),
    "work": ("work", "run the jobs of an app's handlers until SIGTERM or Ctrl-C"),
    "workers": ("workers", "who works, on what"),
}


class OutputGone(Exception):
    """
    Whoever read our output has seen enough; `duly jobs ls | head` is no mistake.
    """


class Commands(click.Group):
    """
    Commands that are imported when they are called: `duly --version` should not wait for a queue.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """
        Name the commands, in the order of the alphabet.
        """
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as above
        """
        Import one command.
        """
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"duly.cli.{module}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """
        List them without importing one.
        """
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """
        Complete their names without importing one.
        """
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """
        Run a command, and tell what became of its output.
        """
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Said in another way: click would take it for a failure.
            raise OutputGone from None
        return answer

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """
        Name what is near where there is no such command.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if not near:
                raise
            msg = f"{error.message.rstrip('.')}; did you mean {near[0]}?"
            raise click.UsageError(msg, ctx) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(duly.__version__, message="duly %(version)s")
def cli() -> None:
    """
    Run a function when it is due: never before, within milliseconds after, never lost.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command and return its exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character is no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code: Any = cli.main(None if argv is None else list(argv), prog_name="duly", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OutputGone:
        _forget_output()
        return OK
    except Exception as error:  # noqa: BLE001  # what is not ours is raised again
        return _answer(error)
    return code if isinstance(code, int) else OK


def _forget_output() -> None:
    # What is still in the buffer would be written, and fail again, when Python ends.
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123  # a path to nowhere
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _answer(error: Exception) -> int:
    # Imported late, like the commands.
    from duly.errors import SERVER_ERRORS, DulyError, UsageError
    from duly.extras import missing

    if isinstance(error, ImportError):
        error = missing(error, "this command") or error
    if not isinstance(error, DulyError | OSError):
        raise error
    click.echo(f"duly: {error}", err=True)
    if isinstance(error, UsageError):
        return USAGE
    return UNAVAILABLE if isinstance(error, SERVER_ERRORS) else NO
