"""
The formats that `register` makes known to a session.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

#: Name of a format: the module and the class behind it.  Imported late, because they need PySpark.
FORMATS: dict[str, tuple[str, str]] = {
    "duly": ("duly.spark.datasource", "DulyDataSource"),
    "duly.events": ("duly.spark.events.source", "Events"),
}


def sources() -> list[type[DataSource]]:
    """
    The classes of all formats.
    """
    return [getattr(importlib.import_module(module), name) for module, name in FORMATS.values()]
