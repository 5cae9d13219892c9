"""
Apps of Starlette and of FastAPI alike, and a queue behind them.
"""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from duly import Duly


@pytest.fixture(params=[Starlette, FastAPI], ids=["starlette", "fastapi"])
def make(request):
    return request.param


@pytest.fixture
def queue(valkey, namespace):
    return Duly(valkey.url, namespace=namespace, drain_grace=0.2)
