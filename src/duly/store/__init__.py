"""
The queue as a set of atomic transitions: one method per script.
"""

from __future__ import annotations

from duly.store.answers import refused, unsound
from duly.store.claims import Claims
from duly.store.hydrating import Hydrating
from duly.store.limits import Backlog, Limits
from duly.store.quarantine import Quarantine
from duly.store.reading import Reading
from duly.store.replying import Replying
from duly.store.requests import Requests
from duly.store.sending import Sending
from duly.store.steering import Steering
from duly.store.upkeep import Upkeep
from duly.store.values import (
    CLAIM_BYTES,
    PER_CALL,
    Claimed,
    Ending,
    Finish,
    Held,
    Hydrated,
    Keeping,
    Life,
    Look,
    Promise,
    Recovered,
    Upto,
    Want,
)

__all__ = [
    "CLAIM_BYTES",
    "PER_CALL",
    "Backlog",
    "Claimed",
    "Ending",
    "Finish",
    "Held",
    "Hydrated",
    "Keeping",
    "Life",
    "Look",
    "Promise",
    "Recovered",
    "Store",
    "Upto",
    "Want",
    "refused",
    "unsound",
]


class Store(Sending, Hydrating, Claims, Steering, Limits, Reading, Upkeep, Replying, Requests, Quarantine):
    """
    The queue as a set of atomic transitions, one method per script.

    A method made its transition or raised.  Each file here has the verbs of those who need them together.
    """
