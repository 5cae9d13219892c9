"""
Write the description of the service to where it is checked in: python -m tests.http.openapi.
"""

from __future__ import annotations

import msgspec

from duly.http.api import OPERATIONS
from duly.http.openapi import document
from tests.http.test_openapi import CHECKED_IN

if __name__ == "__main__":
    made = msgspec.json.format(msgspec.json.encode(document(OPERATIONS)), indent=2)
    CHECKED_IN.write_bytes(made + b"\n")
