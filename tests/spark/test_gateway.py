"""
A test that is cut short while it waits for Java spoils none that follow.
"""

from __future__ import annotations

import signal
import threading
import time

import pytest

pytest.importorskip("pyspark")

from tests.spark.gateway import forget_answer

pytestmark = pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")


class CutShort(BaseException):
    """
    Raised wherever the program is, as when the time of a test is over.
    """


@pytest.fixture
def cut():
    def raise_it(*_):
        raise CutShort

    before = signal.signal(signal.SIGUSR1, raise_it)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_after_a_call_was_cut_short_the_next_one_gets_its_own_answer(spark, cut):
    gate = spark.sparkContext._jvm.java.util.concurrent.Semaphore(0)

    def cut_when_it_waits():
        while not gate.hasQueuedThreads():
            time.sleep(0.01)
        cut()
        gate.release()

    helper = threading.Thread(target=cut_when_it_waits)
    helper.start()
    # What was raised holds the connection, as a report on a failed test does.
    with pytest.raises(CutShort) as held:
        gate.acquire()
    helper.join()
    forget_answer()
    assert [5, 7] == [spark.range(count).count() for count in (5, 7)]
    assert held
