"""
What the workers of the demonstration run: handlers that take a moment and write to the ledger.
"""

from __future__ import annotations

import asyncio
import time

from duly.app import Duly
from duly.context import current_job
from duly.demo.ledger import HERE, note

app = Duly()


@app.handler("mail.send")
async def send_mail(ms: int) -> None:
    """
    Wait on the event loop, as for an answer over the network.
    """
    note(HERE, "started")
    await asyncio.sleep(ms / 1000)
    note(HERE, "finished")


@app.handler("invoice.print")
def print_invoice(ms: int) -> None:
    """
    Block a thread of its own.
    """
    note(HERE, "started")
    time.sleep(ms / 1000)
    note(HERE, "finished")


@app.handler("reminder.call")
async def call_reminder(ms: int) -> None:
    """
    Wait in two steps, and say how far it is.
    """
    note(HERE, "started")
    await asyncio.sleep(ms / 2000)
    await current_job().progress("ringing")
    await asyncio.sleep(ms / 2000)
    note(HERE, "finished")
