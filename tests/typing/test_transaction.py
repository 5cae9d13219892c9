"""
What a type checker must see of a handler's transaction, and must refuse.  Checked, not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

from duly import current_job
from duly.record.jobsession import AsyncJobSession, JobSession

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session


async def an_async_block_gives_an_async_session() -> AsyncSession:
    async with current_job().transaction() as session:
        assert_type(session, AsyncJobSession)
        session.set_result(1)
    return session  # a block swallows no exception, so this is reached


def a_plain_block_gives_a_session() -> Session:
    with current_job().transaction() as session:
        assert_type(session, JobSession)
        session.set_result(1, 2)  # type: ignore[call-arg]
    return session
