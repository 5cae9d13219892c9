"""
The queue as a set of atomic transitions: one method per script.
"""

from __future__ import annotations

from duly.store.answers import refused, unsound
from duly.store.hydrating import Hydrating
from duly.store.leasing import Leasing
from duly.store.quarantine import Quarantine
from duly.store.reading import Reading
from duly.store.replying import Replying
from duly.store.sending import Sending
from duly.store.steering import Steering
from duly.store.upkeep import Upkeep
from duly.store.values import (
    PER_CALL,
    Claimed,
    Ending,
    Finish,
    Held,
    Hydrated,
    Keeping,
    Look,
    Promise,
    Recovered,
    Want,
)

__all__ = [
    "PER_CALL",
    "Claimed",
    "Ending",
    "Finish",
    "Held",
    "Hydrated",
    "Keeping",
    "Look",
    "Promise",
    "Recovered",
    "Store",
    "Want",
    "refused",
    "unsound",
]


class Store(Sending, Hydrating, Leasing, Steering, Upkeep, Replying, Quarantine, Reading):
    """
    The queue as a set of atomic transitions, one method per script.

    A method made its transition or raised.  Each file here has the verbs of those who need them together.
    """
