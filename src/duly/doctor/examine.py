"""
The examination: every check in its turn, from this machine to the jobs.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from duly.app import Duly
from duly.connection import Link
from duly.doctor import config, directory, machine, queue, record, server
from duly.doctor.finding import Finding
from duly.embedded.server import EmbeddedServer
from duly.errors import DulyError
from duly.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping

    from duly.settings import Settings

PATIENCE_S = 3.0


async def examine(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """
    Look at everything that can be looked at.  Changes nothing in the queue, and makes none.
    """
    findings = [machine.python(), machine.packages(), machine.open_files()]
    settings, finding = config.settings(environ, flags)
    findings.append(finding)
    if settings is None:
        return findings
    if settings.remote:
        findings.append(await _service(settings))
        return findings
    told = await asyncio.to_thread(record.tables, settings)
    if told is not None:
        findings.append(told)
    if settings.url is None:
        place = [
            directory.data_directory(settings.data),
            directory.disk_space(settings.data),
            directory.file_system(settings.data),
            directory.binary(),
        ]
        findings += place
        # A server is only started where one has been: looking must not make a queue.
        if not settings.data.is_dir() or any(each.level == "problem" for each in place):
            return findings
    try:
        async with _connected(settings) as patient:
            findings.append(Finding("server", "ok", f"answers at {patient.store.link.place}"))
            record_fits = told is not None and told.level == "ok"
            findings += await _look(patient, Duly(settings=settings).place, record_fits=record_fits)
    except DulyError as error:
        findings.append(
            Finding(
                "server",
                "problem",
                str(error),
                "see that it runs and that the address is right: --url, --data",
            )
        )
    return findings


async def _service(settings: Settings) -> Finding:
    """
    Whether an HTTP service answers; what is behind it is for a doctor on its side.
    """
    try:
        async with Duly(settings=settings):
            return Finding("service", "ok", f"a duly service answers at {settings.url}")
    except DulyError as error:
        return Finding("service", "problem", str(error), "see that it runs and that the address is right")


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[server.Patient]:
    embedded = EmbeddedServer(settings.data, settings.durability) if settings.url is None else None
    if embedded is not None:
        await asyncio.to_thread(embedded.start)
    link = Link(embedded.url if embedded is not None else settings.url or "", patience_s=PATIENCE_S)
    try:
        store = Store(link, namespace=settings.namespace, shards=settings.shards, lease_ms=settings.lease_ms)
        told: bytes = await link.call("INFO", "everything")
        info = dict(line.partition(":")[::2] for line in told.decode().splitlines() if ":" in line)
        yield server.Patient(store, settings, info, _is_local(link))
    finally:
        await link.aclose()
        if embedded is not None:
            await asyncio.to_thread(embedded.close)


def _is_local(link: Link) -> bool:
    return link.place.startswith(("/", "localhost:", "127.", "::1"))


async def _look(patient: server.Patient, place: str, *, record_fits: bool) -> list[Finding]:
    checks = {
        "version": server.version,
        "persistence": server.persistence,
        "eviction": server.eviction,
        "memory": server.memory,
        "round trip": server.round_trip,
        "clock": server.clock,
        "functions": server.functions,
    }
    findings = [await _guard(name, check(patient)) for name, check in checks.items()]
    if patient.local:
        findings.append(machine.huge_pages())
    layout = await _guard("namespace", queue.namespace(patient))
    findings.append(layout)
    if layout.level != "ok":
        return findings
    if record_fits:
        findings.append(await _guard(record.ITS_QUEUE, record.identity(patient.settings, patient.store)))
    stats = await queue.stats_of(patient)
    findings += [
        queue.workers(stats, place),
        queue.orphans(stats),
        queue.overdue(stats),
        queue.dead(stats),
        queue.quarantine(stats),
        queue.paused(stats),
        await _guard("event consumers", queue.consumers(patient)),
        await _guard("request keys", queue.request_keys(patient)),
    ]
    return findings


async def _guard(name: str, check: Awaitable[Finding]) -> Finding:
    """
    The finding, or that there could be none: a user may lack the right to ask.
    """
    try:
        return await check
    except DulyError as error:
        return Finding(name, "hint", f"could not be looked at: {error}", "ask as a user who may")
