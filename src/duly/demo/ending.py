"""
How the demonstration ends: Spark writes down what happened, and how late it was, on a page.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from duly.supervise.child import Child, Program, duly_command, environment

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_S = 180.0
#: A short life: quick to start beats quick in the long run.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Ending:
    """
    ``duly pipeline report --update`` over the jobs that just ran, as one more process of the scene.
    """

    def __init__(self, page: Path) -> None:
        self.page = page
        self.children: list[Child] = []  #: one, once it was started
        self._words: deque[str] = deque(maxlen=8)

    async def write(self, url: str, folder: Path) -> str:
        """
        Write the page; what is returned says why there is none, and is empty if there is one.
        """
        settings = {
            "spark.driver.extraJavaOptions": f"{JAVA} -Djava.io.tmpdir={folder}",
            # What Spark puts aside goes with the folder.
            "spark.local.dir": str(folder),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.adaptive.enabled": "false",
        }
        command = duly_command(
            *("pipeline", "report", "--update", "--table", str(folder / "history")),
            *("--html", str(self.page), "--master", "local[2]"),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        )
        env = environment(DULY_URL=url, DULY_NAMESPACE="demo")
        child = await Child.start(Program("report", command, env, folder), self._words.append)
        self.children.append(child)
        code = await child.wait(LONGEST_S)
        if code == 0:
            return ""
        if code is None:
            return f"it took longer than {LONGEST_S:g} s"
        return next((word.removeprefix("duly: ") for word in reversed(self._words) if word), "no word why")
