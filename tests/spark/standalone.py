"""
A Spark cluster of its own for a test: a master and a worker, each a process, as on machines of their own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

import pyspark

from duly.spark.java import find_java

STARTS_WITHIN_S = 120
STOPS_WITHIN_S = 20
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DAEMONS = "org.apache.spark.deploy"


class Cluster:
    """
    Started by us, on ports that the system chose, and ended by us, by the ids of their groups.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self) -> Cluster:
        master = self._start("master.Master", "--port", "0")
        self.url = self._wait_for(master, r"Starting Spark master at (spark://\S+)")
        worker = self._start(
            *("worker.Worker", "--port", "0", "-c", "2", "-m", "2g"),
            *("-d", str(self._folder / "work"), self.url),
        )
        self._wait_for(worker, r"Successfully (registered) with master")
        return self

    def stop(self) -> None:
        # The worker first: it ends its executors.
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _start(self, kind: str, *words: str) -> Path:
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        log = self._folder / f"{kind}.log"
        environ = os.environ | {
            "JAVA_HOME": str(find_java().home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }
        command = [str(program), f"{DAEMONS}.{kind}", "--host", "127.0.0.1", "--webui-port", "0", *words]
        with log.open("wb") as out:
            self._processes.append(_spawn(command, out, environ))
        return log

    def _wait_for(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < deadline and self._processes[-1].poll() is None:
            if found := re.search(pattern, log.read_text("utf-8", "replace")):
                return found[1]
            time.sleep(0.05)
        raise RuntimeError(f"it does not start: {log.read_text('utf-8', 'replace')[-2_000:]}")


def _spawn(command: list[str], out: IO[bytes], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ, start_new_session=True
    )
