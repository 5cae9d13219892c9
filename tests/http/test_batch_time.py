"""
A line of a batch is stored soon after it came, on a loop whose clock only the test moves.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from duly.http import batch
from duly.http.settings import ServiceSettings
from duly.http.spool import Spools

MOST_S = 0.05
ROUNDED_S = 1e-4


class Loop(asyncio.SelectorEventLoop):
    """
    A loop that waits for nobody: where it would sleep, its clock goes on instead.
    """

    def __init__(self):
        self.now_s = 1000.0
        super().__init__()
        select = self._selector.select

        def look(timeout):
            ready = select(0)
            if not ready:
                assert timeout is not None, "everybody waits for somebody else"
                self.now_s += timeout + 1e-9  # a clock moves, whatever rounding leaves of a time
            return ready

        self._selector.select = look

    def time(self):
        return self.now_s


class Queue:
    """
    What a batch needs of an app: it stores jobs, and knows when.
    """

    def __init__(self):
        self.stored_s = {}

    async def enqueue_many(self, jobs):
        now_s = asyncio.get_running_loop().time()
        self.stored_s |= {job.id: now_s for job in jobs}
        return jobs


class Request(SimpleNamespace):
    """
    A request whose lines come one by one, *every_s*, until *quiet_s* before the end of its body.
    """

    def __init__(self, lines, every_s, quiet_s):
        super().__init__(scope={}, state=SimpleNamespace(key=None))
        self.came_s = {}
        self._lines, self._every_s, self._quiet_s = lines, every_s, quiet_s

    async def stream(self):
        loop = asyncio.get_running_loop()
        for number in range(self._lines):
            self.came_s[f"{number}"] = loop.time()
            yield b'{"id":"%d"}\n' % number
            await asyncio.sleep(self._every_s)
        await asyncio.sleep(self._quiet_s)


async def allowed(_request):
    pass


def lateness(monkeypatch, *, lines, every_s, quiet_s):
    """
    How long each line of a batch waited, in seconds.
    """
    with asyncio.Runner(loop_factory=Loop) as runner:
        loop = runner.get_loop()
        monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=loop.time))
        spools, queue = Spools(1_000_000), Queue()
        service = SimpleNamespace(
            settings=ServiceSettings(),
            app=queue,
            access=SimpleNamespace(confirm=allowed),
            draining=False,
            ending=None,
        )
        request = Request(lines, every_s, quiet_s)
        monkeypatch.setattr(batch, "_said", lambda number, *_: batch.BatchLine(number, "created"))
        answers = runner.run(answers_to(service, request, spools))
        assert list(range(1, lines + 1)) == [msgspec.json.decode(each)["line"] for each in answers]
        spools.close()
        assert request.came_s.keys() == queue.stored_s.keys()
        return [queue.stored_s[id_] - came_s for id_, came_s in request.came_s.items()]


async def answers_to(service, request, spools):
    spool = spools.open(1_000_000)
    await batch.Intake(service, request, "mail", spool, None).run()
    return b"".join([part async for part in spool.parts()]).splitlines()


@pytest.mark.parametrize("every_s", [0.0, 0.001, 0.01, 0.049, 0.051, 1.0])
def test_a_line_is_stored_50_ms_after_it_came_at_the_latest_also_while_others_drip_in(monkeypatch, every_s):
    late_s = lateness(monkeypatch, lines=200, every_s=every_s, quiet_s=10)
    assert max(late_s) <= MOST_S + ROUNDED_S


def test_lines_that_come_together_are_stored_together(monkeypatch):
    waited_s = lateness(monkeypatch, lines=11, every_s=0.005, quiet_s=10)
    # Ten of them within 50 ms, from the first on.
    assert pytest.approx(MOST_S, abs=ROUNDED_S) == waited_s[0]
    assert pytest.approx(MOST_S - 9 * 0.005, abs=ROUNDED_S) == waited_s[9]


def test_the_time_that_a_line_may_wait_is_what_the_page_says():
    assert MOST_S >= batch.LATE_S
