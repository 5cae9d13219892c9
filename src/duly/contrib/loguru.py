"""
loguru: a patcher that says which job a line was written in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.context import CURRENT

if TYPE_CHECKING:
    from loguru import Record


def add_job(record: Record) -> None:
    """
    Add topic, id, attempt and token of the job that runs here to ``extra``; what was bound there stays.

    For ``logger.configure(patcher=add_job)``.
    """
    job = CURRENT.get(None)
    if job is not None:
        for name, value in job.log_fields().items():
            record["extra"].setdefault(name, value)
