"""
``duly``: finds the command, runs it, and turns errors into sentences and exit codes.

0 ok, 1 no, 2 usage, 3 store unavailable.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OK, NO, USAGE, UNAVAILABLE = 0, 1, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command and return its exit code.
    """
    args = _parser().parse_args(argv)
    # Imported late: `duly --version` should not wait for a queue.
    from duly.errors import DulyError, OutcomeUnknown, StoreUnavailable, UsageError

    try:
        code = _command(args.command)(args)
    except UsageError as error:
        return _say(error, USAGE)
    except (StoreUnavailable, OutcomeUnknown) as error:
        return _say(error, UNAVAILABLE)
    except DulyError as error:
        return _say(error, NO)
    except KeyboardInterrupt:
        return 130
    return code


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    if name == "work":
        from duly.cli.work import work

        return work
    from duly.cli.bench import bench

    return bench


def _say(error: Exception, code: int) -> int:
    print(f"duly: {error}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="duly",
        description="Run a function when it is due: never before, within milliseconds after, never lost.",
    )
    parser.add_argument("--version", action="version", version=f"duly {version('duly')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    work = commands.add_parser(
        "work",
        help="run the jobs of an app's handlers until SIGTERM or Ctrl-C",
        epilog="example: duly work shop.jobs:app --concurrency 100",
    )
    work.add_argument("app", metavar="MODULE:APP", help="where the Duly object is, e.g. shop.jobs:app")
    work.add_argument("--concurrency", type=int, metavar="N", help="how many jobs to run at once")
    work.add_argument(
        "--topic", action="append", dest="topics", metavar="NAME", help="take only this topic; repeatable"
    )
    work.add_argument("--role", choices=["auto", "leader", "follower"], help="the timer's duty; default auto")
    work.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])

    bench = commands.add_parser(
        "bench",
        help="measure this machine: rates, lateness, memory, idle cost",
        epilog="example: duly bench --quick",
    )
    bench.add_argument("only", nargs="*", metavar="WHAT", help="measure only these; default all")
    bench.add_argument("--url", help="a server to measure; default an embedded one in a temporary directory")
    bench.add_argument("--quick", action="store_true", help="small sizes, for a first look")
    bench.add_argument(
        "--runs", type=int, default=3, metavar="N", help="repeat each and report the median; default 3"
    )
    bench.add_argument("--json", action="store_true", help="machine-readable output")
    return parser
