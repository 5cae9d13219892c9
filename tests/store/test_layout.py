"""
A namespace of another layout is refused before anything in it is touched.
"""

from __future__ import annotations

import pytest

from duly.errors import LayoutMismatch
from duly.keys import LAYOUT
from duly.namespace import create, require
from duly.store import Store


@pytest.mark.parametrize("layout", ["1", "99"])
async def test_another_layout_is_refused_with_what_to_do(store, link, layout):
    meta = store.keys[0].fixed["meta"]
    await link.call("HSET", meta, "layout", layout)
    before = await link.call("HGETALL", meta)
    other = Store(link, namespace=store.namespace, now=store._now)
    for refused in (other.create(), create(link, store.namespace, 1), require(link, store.namespace)):
        with pytest.raises(LayoutMismatch, match=rf"layout version {layout}.* expects {LAYOUT}.*its jobs"):
            await refused
    assert before == await link.call("HGETALL", meta)
