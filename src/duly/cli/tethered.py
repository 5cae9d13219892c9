"""
``python -m duly.cli.tethered COMMAND…``: a command of duly that does not outlive whoever started it.

Standard input is a pipe that the starter holds and never writes to.  It closes when the starter ends, be it
by SIGKILL, and the command then drains as if it had been told to.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from duly.cli.main import main


def _watch(tether: int) -> None:
    while os.read(tether, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="duly-tether", daemon=True).start()
    sys.exit(main())
