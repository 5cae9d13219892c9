"""
Pipelines as programs, for `spark-submit` and `python -m`.
"""

from __future__ import annotations

import importlib
import sys


def run(pipeline: str) -> None:
    """
    Do as `duly pipeline NAME` does, with the arguments of this process.
    """
    # By its name: the command line stands above this layer.
    main = importlib.import_module("duly.cli.main").main
    sys.exit(main(["pipeline", pipeline, *sys.argv[1:]]))
