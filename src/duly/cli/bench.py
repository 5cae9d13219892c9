"""
``duly bench``: measure this machine.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING

from duly.bench.measures import MEASURES, QUICK, Sizes
from duly.bench.report import machine, measure, table
from duly.cli.loop import run
from duly.errors import UsageError

if TYPE_CHECKING:
    import argparse


def bench(args: argparse.Namespace) -> int:
    """
    Measure, print, and answer 1 if a figure misses its bound.
    """
    # What services say while they start and stop is not news here.
    logging.getLogger("duly").setLevel(logging.ERROR)
    for name in args.only:
        if name not in MEASURES:
            raise UsageError(f"there is no measure {name}; known are {', '.join(MEASURES)}")
    names = args.only or list(MEASURES)
    figures = run(measure(names, QUICK if args.quick else Sizes(), args.runs, args.url))
    if args.json:
        document = {
            "machine": machine(),
            "figures": [asdict(figure) | {"kept": figure.kept} for figure in figures],
        }
        print(json.dumps(document, indent=2))
    else:
        about = ", ".join(f"{name} {value}" for name, value in machine().items())
        print(f"{about}; median of {args.runs}")
        print(table(figures))
    return 1 if any(figure.kept is False for figure in figures) else 0
