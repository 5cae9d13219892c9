"""
Fixed moments of live views: for tests of how they look, and for the pictures in the documentation.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group
from rich.text import Text

from duly.demo.frame import Frame, WorkerLine
from duly.demo.ledger import Proof
from duly.demo.report import render as render_report
from duly.demo.scene import Plan, Played
from duly.demo.view import render as render_demo
from duly.top.snapshot import Failure, Lateness, Rate, Snapshot, Topic, WorkerRow
from duly.top.view import render as render_top

#: rich's own, without fonts from elsewhere: a picture that is looked at asks nobody for anything.
_FORMAT = re.sub(r"@font-face {{.*?}}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)

AT_MS = 1_790_000_000_000

TOP = Snapshot(
    at_ms=AT_MS,
    place="queue.internal:6379",
    namespace="shop",
    lateness=Lateness(2_940, 1, 6, 212),
    rates=(
        Rate("enqueued", 51.3, 3_012),
        Rate("promoted", 20.1, 1_204),
        Rate("claimed", 49.8, 2_951),
        Rate("acked", 49.1, 2_902),
        Rate("retried", 0.6, 36),
        Rate("buried", 0.0, 2),
        Rate("recovered", 0.0, 1),
    ),
    topics=(
        Topic("mail.welcome", 18_204, 3, 9, 0, 3),
        Topic("payment.check", 1_932, 0, 4, 2, 3),
        Topic("invoice.print", 310, 12, 0, 0, 0),
        Topic("report.nightly", 41, 0, 0, 1, 1, paused=True),
    ),
    due=(412, 388, 301, 342, 290, 1_024, 240, 198, 205, 187),
    overdue_ms=8_400,
    overdue_topic="invoice.print",
    workers=(
        WorkerRow("web-1-811-5f0c2a91", 811, "web-1", 6, 16, 1_200, live=True),
        WorkerRow("web-2-790-0b77d3e4", 790, "web-2", 5, 16, 3_100, live=True),
        WorkerRow("web-3-802-c19e60f8", 802, "web-3", 2, 16, 41_000, live=False),
    ),
    failures=(
        Failure("payment.check", "ConnectionError: the bank does not answer", 34, 2_000),
        Failure("mail.welcome", "ValueError: no such address", 4, 41_000),
    ),
)

_LATE = tuple(0.6 + (7 * number % 50) ** 2 / 300 for number in range(49))

DEMO_PLAN = Plan()
DEMO = Frame(
    elapsed_s=8.9,
    total=50,
    counts={"scheduled": 23, "ready": 0, "running": 2, "succeeded": 25, "dead": 0},
    late_ms=_LATE[:26],
    workers=(
        WorkerLine("worker-1", 4711, "working", 1, 9),
        WorkerLine("worker-2", 4712, "killed", 0, 7),
        WorkerLine("worker-3", 4713, "working", 0, 9),
    ),
    news=(
        "  0.2 s  a Valkey server of its own is up in /tmp/duly-demo-k2v9x1",
        "  1.3 s  3 workers are up: 4711, 4712, 4713",
        "  1.4 s  the queue is served at http://127.0.0.1:35577",
        "  1.6 s  50 jobs are submitted over HTTP, due within 12 s",
        "  7.6 s  worker-2 (pid 4712) is killed with SIGKILL while it runs job-026",
    ),
)
PLAYED = Played(
    DEMO_PLAN,
    Proof(50, 50, (), (), (), (), ("job-026",), _LATE, (3_204.0,)),
    {"succeeded": 50},
    WorkerLine("worker-2", 4712, "killed", 1),
    15.1,
    Path("/tmp/duly-demo-5f0c2a91.html"),
)


def text_of(renderable: object, width: int = 100) -> str:
    """
    How something looks without colours.
    """
    out = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    out.print(renderable)
    return out.file.getvalue()


def top_lines(width: int = 100, height: int | None = None, **changes: object) -> list[str]:
    text = text_of(render_top(replace(TOP, **changes), width, height), width)
    return [line.rstrip() for line in text.splitlines()]


def pictures() -> dict[str, str]:
    """
    The pictures of the documentation, as SVG, by their names.
    """
    return {
        "demo": _svg("duly demo", Group(render_demo(DEMO), Text(), render_report(PLAYED)), 100),
        "top": _svg("duly top", render_top(TOP, 100), 100),
    }


def _svg(title: str, renderable: object, width: int) -> str:
    # Nothing of it depends on the terminal of whoever makes the picture.
    out = Console(
        file=io.StringIO(),
        width=width,
        record=True,
        highlight=False,
        force_terminal=True,
        color_system="256",
        legacy_windows=False,
        no_color=False,
        _environ={},
    )
    out.print(renderable)
    # An id of its own: two pictures on a page must not share their styles.
    return out.export_svg(title=title, unique_id=title.replace(" ", "-"), code_format=_FORMAT)
