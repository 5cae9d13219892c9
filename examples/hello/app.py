import asyncio

from duly import Duly

app = Duly()


@app.handler("greet")
async def greet(name: str) -> str:
    return f"Hello, {name}!"


async def main() -> None:
    async with app:
        job = await app.enqueue(greet.job("Ada"), delay=3)
        print(await job.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
