"""
What the workers run.
"""

import asyncio

from duly import Bury, Duly, Fixed, current_job

TOPIC = "mail.reminder"
app = Duly()


@app.handler(TOPIC, max_attempts=4, backoff=Fixed(1))
async def remind(customer: int, name: str, days: int) -> str:
    # In the place of a mail server with its moods: some addresses are wrong, now and then it does not answer.
    if customer % 23 == 0:
        raise Bury("no such address")
    if customer % 7 == 0 and current_job().attempt == 1:
        raise ConnectionError("the mail server does not answer")
    await asyncio.sleep(0.01)
    return f"{name}: {days} days left"
