"""
Ask a payment provider at growing intervals until a payment has settled.
"""

import asyncio

from duly import Duly, Intervals, JobFailed, Retry, current_job

app = Duly()


@app.handler("payment.poll", max_attempts=5, backoff=Intervals([0.2, 0.4, 0.8]))
async def poll(payment: str) -> str:
    state = await ask_provider(payment)
    print(f"{payment}, question {current_job().attempt}: {state}", flush=True)
    if state == "pending":
        raise Retry(reason="still pending")  # after the next interval; the last one repeats
    return state


async def ask_provider(payment: str) -> str:
    """
    Somebody else's API: p-1 settles at the third question, p-2 never does.
    """
    return "settled" if payment == "p-1" and current_job().attempt == 3 else "pending"


async def main() -> None:
    async with app:
        stop = asyncio.Event()
        worker = asyncio.create_task(app.work(stop=stop))

        for payment in ("p-1", "p-2"):
            job = await app.enqueue(poll.job(payment), id=payment)
            try:
                print(payment, "is", await job.result(timeout=30))
            except JobFailed as error:
                print(payment, "needs a person:", str(error).partition("retry: ")[2])

        stop.set()
        await worker


if __name__ == "__main__":
    asyncio.run(main())
