"""
An environment for each system, made from exact versions, so that no system decides on another's libraries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
VENVS = HERE / ".venvs"
NODE = HERE / ".node"

#: In the order of tables and plots.
SYSTEMS = ("duly", "celery", "dramatiq", "rq", "arq", "huey", "taskiq", "docket", "saq", "bullmq")


class Unavailable(RuntimeError):
    """
    An environment cannot be made here; the message says what is missing.
    """


@dataclass(frozen=True)
class Environment:
    """
    How the agent of a system is started, and with which variables.
    """

    agent: tuple[str, ...]
    variables: dict[str, str]


def prepare(system: str) -> Environment:
    """
    Make the environment of *system*, unless it is there already.

    Raises:
        Unavailable: Something is missing, such as npm or the way to a registry.
    """
    if system == "bullmq":
        _node_modules()
        node = shutil.which("node") or ""
        return Environment((node, str(HERE / "systems" / "bullmq.mjs")), {"PEERS_NODE": str(NODE)})
    if system == "duly":
        # As it is checked out, and with what is installed beside it.
        python, path = Path(sys.executable), f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    else:
        python, path = _venv(system), str(ROOT)
    return Environment((str(python), "-m", "bench.peers.agent", system), {"PYTHONPATH": path})


def _venv(system: str) -> Path:
    requirements = HERE / "requirements" / f"{system}.txt"
    folder = VENVS / system
    python = folder / "bin" / "python"
    # Written last and compared: a broken or outdated installation is begun again.
    stamp, wanted = folder / "installed.txt", f"{sys.version}\n{requirements.read_text('utf-8')}"
    if _stamped(stamp, wanted):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder))
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    _run(*pip, "-r", str(requirements))
    stamp.write_text(wanted, "utf-8")
    return python


def _node_modules() -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise Unavailable("BullMQ needs node and npm: apt-get install nodejs npm")
    package = HERE / "requirements" / "package.json"
    stamp, wanted = NODE / "installed.txt", package.read_text("utf-8")
    if _stamped(stamp, wanted):
        return
    shutil.rmtree(NODE, ignore_errors=True)
    NODE.mkdir()
    shutil.copy(package, NODE)
    # Without a lock file, which npm writes for one platform; every version is exact.
    _run(npm, "install", "--no-package-lock", "--no-audit", "--no-fund", cwd=NODE)
    stamp.write_text(wanted, "utf-8")


def _stamped(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text("utf-8") == wanted


def _run(*command: str, cwd: Path = ROOT) -> None:
    print("$", *command, file=sys.stderr)
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")
