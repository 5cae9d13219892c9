"""
Rebuild a search index once after many edits: each edit puts the rebuild off.
"""

import asyncio

from duly import Duly, JobHandle

app = Duly()
QUIET_S = 2


@app.handler("index.rebuild")
async def rebuild(article: str, text: str) -> str:
    print(f"index {article}: {text!r}", flush=True)
    return text


async def save(article: str, text: str) -> JobHandle[str]:
    print(f"save  {article}: {text!r}", flush=True)
    # The same id again: the rebuild that waits is replaced, with its text and its time.
    return await app.enqueue(rebuild.job(article, text), id=article, delay=QUIET_S, on_conflict="replace")


async def main() -> None:
    async with app:
        stop = asyncio.Event()
        worker = asyncio.create_task(app.work(stop=stop))

        for text in ("D", "Du", "Dul", "Duly"):
            rebuilt = await save("article-1", text)
        print("found:", await rebuilt.result(timeout=30))

        stop.set()
        await worker


if __name__ == "__main__":
    asyncio.run(main())
