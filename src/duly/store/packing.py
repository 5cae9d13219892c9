"""
How scripts are told of a job: the bits and bytes in front of what users wrote.
"""

from __future__ import annotations

from struct import Struct

#: How enqueue.lua is told of a job: a byte for lane, options and what to do where the id is taken; its time.
SPEC = Struct(">BQ")
#: How hydrate.lua is: a byte for state, lane and options; its time, revision, attempts and crashes.
PROMISE = Struct(">BQQHH")
NUMBER = Struct(">Q")  #: of a shard, as revisions are
HAS_OPTIONS, FROM_NOW = 32, 64
ON_CONFLICT = {"keep": 0, "replace": 1, "raise": 2}
ASKS_FOR_REPLY = 4
AWAITED = 128
#: Bits of a spec that add.lua has no part in: a lane of its own, a reply, a waiter, a job to be replaced.
NOT_USUAL = 3 << 3 | ASKS_FOR_REPLY | AWAITED | ON_CONFLICT["replace"]
PROMISED_REPLY = 64  #: the same for hydrate.lua and thaw.lua

MAX_COUNT = 0xFFFF  #: of the runs and crashes that a record counts
MAX_MS = 0xFFFFFFFE  #: largest number of milliseconds that a record holds for a duration
