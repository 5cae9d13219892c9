"""
Pages that a reader follows step by step: files that are written, and commands typed into one shell.

``<!-- file: shop.py -->`` above a block says that it is that file.  ``<!-- walk -->`` above a console block
says that its commands are typed and print what stands below them, in which ``…`` stands for anything within
a line, and a line that is only ``…`` for any lines; ``<!-- walk, fails -->``, that they do not end well.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT, blocks

#: What bash says of a background process that was killed, whenever it comes to it.
_NOTICE = re.compile(r"bash: line \d+:\s+\d+ Killed ")


class Shell:
    """
    One bash, as a reader has it open: what it sets, starts and forgets stays with it.
    """

    def __init__(self, folder: Path, **environ: str) -> None:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "PYTEST"))
        }
        here = f"{Path(sys.executable).parent}:{clean.get('PATH', '')}"
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=clean | {"PATH": here, "PYTHONUNBUFFERED": "1", "COLUMNS": "120"} | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Whatever it starts is ended with it, by its group.
            start_new_session=True,
        )

    def type(self, command: str) -> tuple[int, str]:
        """
        Type one command; its exit code and what appeared on the screen.
        """
        assert self._process.stdin
        assert self._process.stdout
        mark = secrets.token_hex(8)
        # Two quotes inside, so that a shell that echoes what it is told does not end the reading.
        self._process.stdin.write(f"{command}\nprintf '\\n%s %d\\n' {mark[:8]}''{mark[8:]} $?\n")
        self._process.stdin.flush()
        seen = []
        for line in self._process.stdout:
            if line.startswith(mark):
                return int(line.split()[1]), "".join(seen).removesuffix("\n")
            if not _NOTICE.match(line):
                seen.append(line)
        raise AssertionError(f"the shell has ended: {''.join(seen)}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def steps(text: str) -> list[tuple[str, str]]:
    """
    The commands of a console block, and what it says that each prints.
    """
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def shows(shown: str, printed: str) -> bool:
    """
    Whether a page shows what was printed.
    """
    lines = [line.strip() for line in shown.strip().splitlines()]
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n" for line in lines
    )
    had = "".join(f"{line.strip()}\n" for line in printed.strip().splitlines())
    return re.fullmatch(pattern, had) is not None


def walk(page: Path, shell: Shell, folder: Path, replace: dict[str, str] | None = None) -> int:
    """
    Follow a page; the number of commands typed.
    """
    typed = 0
    for block in blocks(page):
        if block.mark.startswith("file: "):
            path = folder / block.mark.removeprefix("file: ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.mark.startswith("walk"):
            for command, shown in steps(block.text):
                for old, new in (replace or {}).items():
                    command = command.replace(old, new)  # noqa: PLW2901  # the same command, elsewhere
                code, printed = shell.type(command)
                assert shows(shown, printed), (
                    f"{block}: {command}\nshould print\n{shown}\nand printed\n{printed}"
                )
                assert (code == 0) is (block.mark != "walk, fails"), f"{block}: {command} ended with {code}"
                typed += 1
    return typed


def unmarked(page: Path) -> list[str]:
    """
    Blocks that a reader would type or copy, and nobody has tried.
    """
    return [
        str(block)
        for block in blocks(page)
        if block.language in ("python", "console", "toml")
        and not block.mark.startswith(("file: ", "walk", "not run: "))
        and block.mark != "run"
    ]


def environ(installed: Path) -> dict[str, str]:
    """
    Python as it is where duly is installed, with this source.
    """
    # pytest-asyncio, which a reader need not have, would complain that nobody has told it this.
    options = "-o asyncio_default_fixture_loop_scope=function"
    return {"PYTHONPATH": f"{installed}:{ROOT / 'src'}", "PYTEST_ADDOPTS": options}
