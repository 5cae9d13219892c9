"""
A user of an embedded server: ``user.py SRC PROGRAM DIR DURABILITY LINGER_S PATIENCE_S``.

obey     do what standard input says: ``ensure``, ``spawn`` a program that sleeps, or a command for the server
visit    come and go at random, count each visit in the server, and print the servers met
count    count in the server until standard input ends, whatever happens to it, and print the answers got
"""
# ruff: noqa: E402

import random
import selectors
import subprocess
import sys
import time
import types
from pathlib import Path

# An empty package in the place of duly: the embedded server stands alone, and importing all the rest would
# take most of the time of most tests.
src, program, data, durability, linger_s, patience_s = sys.argv[1:]
sys.modules["duly"] = types.ModuleType("duly")
sys.modules["duly"].__path__ = [str(Path(src, "duly"))]

from duly.embedded import EmbeddedServer, probe
from duly.embedded.layout import Layout
from duly.embedded.probe import ask
from duly.errors import DulyError

VISITS = 30

# On a busy machine the server may answer late; no test has a user ask while it is stopped.
probe.PATIENCE_S = 30.0


def obey(server, path):
    server.start()
    print("up", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["ensure"]:
                try:
                    server.ensure()
                    print("up", flush=True)
                except DulyError as error:
                    print(f"{type(error).__name__}: {error}", flush=True)
            case ["spawn"]:
                print(
                    subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, close_fds=False).pid,
                    flush=True,
                )
            case words:
                try:
                    print(" ".join(ask(path, *words).split()), flush=True)
                except OSError as error:
                    print(f"{type(error).__name__}: {error}", flush=True)


def visit(server, path):
    for _ in range(VISITS):
        with server:
            ask(path, "INCR", "visits")
            print(next(line for line in ask(path, "INFO", "server").split() if line.startswith("run_id:")))
        time.sleep(random.uniform(0, 0.1))  # what is tried is the chance of nobody being there


def count(server, path):
    server.start()
    print("up", flush=True)
    told = selectors.DefaultSelector()
    told.register(sys.stdin, selectors.EVENT_READ)
    while not told.select(timeout=0.001):
        try:
            answer = ask(path, "INCR", "count")
        except OSError:
            print("lost")
            server.ensure()
        else:
            print(answer.strip())


if __name__ == "__main__":
    embedded = EmbeddedServer(data, durability, linger_s=float(linger_s), patience_s=float(patience_s))
    {"obey": obey, "visit": visit, "count": count}[program](embedded, Layout(embedded.data).socket)
