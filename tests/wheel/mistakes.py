"""
Mistakes of new users, read from mistakes.toml, and made.

``python -m tests.wheel.mistakes [WORDS]`` shows what each says whose name holds the words, from this source.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

SHOP = """\
from duly import Duly

app = Duly()


@app.handler("greet")
async def greet(name: str) -> str:
    return f"Hello, {name}!"
"""
WITH_APP = """\
import asyncio
from datetime import UTC, datetime, timedelta

from duly import Duly
from shop import app, greet


async def main():
    async with app:
{lines}


asyncio.run(main())
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistake:
    """
    One of them; mistakes.toml says what the fields mean.
    """

    name: str
    says: str
    ends: int = 1
    prints: str = ""
    server: bool = False
    script: str = ""
    duly: str = ""
    lines: str = ""
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    @property
    def needs_server(self) -> bool:
        return self.server or bool(self.lines)

    @property
    def command(self) -> list[str]:
        """
        What the user types.
        """
        return ["duly", *shlex.split(self.duly)] if self.duly else ["python", "program.py"]

    def write(self, folder: Path) -> None:
        """
        Write what is in the user's folder.
        """
        program = self.script
        if self.lines:
            program = WITH_APP.format(lines=textwrap.indent(self.lines.strip(), " " * 8))
        files = {"shop.py": SHOP, **self.files, **({"program.py": program} if program else {})}
        for name, text in files.items():
            (folder / name).write_text(text)


def mistakes() -> list[Mistake]:
    """
    All of them.
    """
    data = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))
    return [
        Mistake(**{"lines" if name == "await" else name: value for name, value in each.items()})
        for each in data["mistake"]
    ]


def show(words: str) -> None:
    """
    Print what is said now.
    """
    import os
    import subprocess
    import tempfile

    from tests.docs.pages import ROOT
    from tests.servers import Server, binary

    server = Server(binary("valkey")).start()
    try:
        for number, mistake in enumerate(each for each in mistakes() if words in each.name):
            with tempfile.TemporaryDirectory(prefix="duly-", dir="/tmp") as folder:
                mistake.write(Path(folder))
                clean = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
                where = (
                    {"DULY_URL": server.url, "DULY_NAMESPACE": f"m{number}"} if mistake.needs_server else {}
                )
                name, *rest = mistake.command
                command = [sys.executable, *(["-m", "duly"] if name == "duly" else []), *rest]
                try:
                    done = subprocess.run(
                        command,
                        cwd=folder,
                        env=clean | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120"} | where | mistake.env,
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        text=True,
                        timeout=20,
                    )
                except subprocess.TimeoutExpired:
                    # With the extras of this environment, a service or a worker.
                    print(f"== {mistake.name}: goes on", flush=True)
                    continue
                print(f"== {mistake.name}: {done.returncode}\n{done.stdout}{done.stderr}", flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    show(" ".join(sys.argv[1:]))
