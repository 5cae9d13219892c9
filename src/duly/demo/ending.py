"""
How the demonstration ends: Spark writes down what happened, and how late it was, on a page.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from duly.supervise.child import Child, Program, duly_command, environment

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_S = 300.0
#: A short life: quick to start beats quick in the long run.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


class Ending:
    """
    ``duly pipeline report --update`` over the jobs of the scene, as one more process of it.

    It is started before the jobs run and rehearses on those that have, with what the workers leave of the
    processors: a Spark that is warm makes the report in a few seconds.
    """

    def __init__(self, page: Path) -> None:
        self.page = page
        self.children: list[Child] = []  #: one, once it was started
        self._words: deque[str] = deque(maxlen=8)
        self._over: Path | None = None

    async def start(self, url: str, folder: Path) -> None:
        """
        Have Spark get ready.
        """
        settings = {
            "spark.driver.extraJavaOptions": f"{JAVA} -Djava.io.tmpdir={folder}",
            # What Spark puts aside goes with the folder.
            "spark.local.dir": str(folder),
            # A few dozen jobs: one part, one task, nothing to divide.
            "spark.sql.shuffle.partitions": "1",
            "spark.default.parallelism": "1",
            "spark.sql.adaptive.enabled": "false",
            # For a few dozen rows, code that is interpreted is there sooner than code that is compiled.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        }
        self._over = folder / "over"
        command = duly_command(
            *("pipeline", "report", "--update", "--table", str(folder / "history")),
            *("--html", str(self.page), "--master", "local[2]", "--when", str(self._over)),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        )
        env = environment(DULY_URL=url, DULY_NAMESPACE="demo")
        child = await Child.start(Program("report", command, env, folder), self._words.append)
        self.children.append(child)

    async def write(self) -> str:
        """
        Write the page; what is returned says why there is none, and is empty if there is one.
        """
        assert self._over is not None  # noqa: S101  # it was started
        self._over.touch()
        [child] = self.children
        code = await child.wait(LONGEST_S)
        if code == 0:
            return ""
        if code is None:
            return f"it took longer than {LONGEST_S:g} s"
        return next((word.removeprefix("duly: ") for word in reversed(self._words) if word), "no word why")
