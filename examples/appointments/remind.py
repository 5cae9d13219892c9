"""
Remind people of appointments: one is cancelled, one is moved.
"""

import asyncio
from datetime import UTC, datetime, timedelta

from duly import Duly, JobHandle

app = Duly()


@app.handler("appointment.remind")
async def remind(who: str, what: str) -> str:
    print(f"{who}: {what}", flush=True)
    return who


async def plan(appointment: str, who: str, what: str, due_at: datetime) -> JobHandle[str]:
    # A reminder has the id of its appointment, so it can be found again, and planning it anew replaces it.
    return await app.enqueue(remind.job(who, what), due_at=due_at, id=appointment, on_conflict="replace")


async def main() -> None:
    async with app:
        stop = asyncio.Event()
        worker = asyncio.create_task(app.work(stop=stop))

        now = datetime.now(UTC)
        ada = await plan("appointment-1", "Ada", "dentist", now + timedelta(seconds=2))
        await plan("appointment-2", "Grace", "haircut", now + timedelta(hours=1))
        await plan("appointment-3", "Linus", "yoga", now + timedelta(days=1))

        state = await app.job("appointment.remind", "appointment-2").cancel()
        print("Grace's reminder is", state.name)

        linus = app.job("appointment.remind", "appointment-3")
        await linus.reschedule(delay=0.5)
        print("Linus's reminder is moved")

        await linus.result(timeout=30)
        await ada.result(timeout=30)
        stop.set()
        await worker


if __name__ == "__main__":
    asyncio.run(main())
