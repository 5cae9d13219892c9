"""
Checks of what Spark needs, for `duly doctor`.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from duly.doctor.finding import Finding
from duly.errors import UsageError
from duly.extras import install
from duly.spark.java import REMEDY, TOO_NEW, find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = ("pyspark", "pyarrow", "pandas", "deltalake")


def spark() -> Finding:
    """
    Whether the packages of the pipeline are there.
    """
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if not found:
        return Finding("spark", "ok", f"not installed; only duly pipeline needs it: {install('spark')}")
    if missing:
        return Finding("spark", "hint", f"{', '.join(found)}; without {', '.join(missing)}", install("spark"))
    return Finding("spark", "ok", ", ".join(found))


def java(environ: Mapping[str, str] = os.environ) -> Finding:
    """
    Whether there is a Java that Spark runs on.
    """
    try:
        found = find_java(environ)
    except UsageError as error:
        return Finding("java", "hint", str(error), REMEDY)
    if found.version >= TOO_NEW:
        return Finding("java", "hint", f"{found}: that version is known to spoil data under Spark", REMEDY)
    return Finding("java", "ok", str(found))


def findings() -> list[Finding]:
    """
    What there is to say: nothing about Java where nobody wants Spark.
    """
    first = spark()
    return [first] if first.message.startswith("not installed") else [first, java()]
