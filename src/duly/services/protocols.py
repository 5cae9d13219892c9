"""
What a crew asks of its worker, whichever kind it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from duly.services.service import Service

if TYPE_CHECKING:
    from duly.handlers import Handlers
    from duly.hooks import Hooks
    from duly.job import Lease
    from duly.metrics import Metrics
    from duly.middleware import Middleware
    from duly.record.outcomes import Outcomes
    from duly.record.transactionpools import TransactionPools
    from duly.services.outlook import Outlook
    from duly.store import Store


class RunningJobs(Protocol):
    """
    The jobs that a worker holds leases of.
    """

    def __len__(self) -> int:
        """
        Return the number of jobs that run or whose outcome is being stored.
        """
        ...

    def held(self) -> list[Lease]:
        """
        Return the leases to extend.  Called from the heart's thread.
        """
        ...

    def report_to(
        self,
        meter: Metrics | None,
        outcomes: Outcomes | None,
        transactions: TransactionPools | None = None,
    ) -> None:
        """
        Have runs counted by *meter*, and told or committed to the record, where there are such.
        """
        ...


class CrewWorker(Service, Protocol):
    """
    The worker of a crew: a service that claims and runs jobs.
    """

    name: str

    @property
    def running(self) -> RunningJobs:
        """
        The jobs that it holds leases of.
        """
        ...

    def about(self) -> bytes:
        """
        Return what the worker says of itself, as JSON.
        """
        ...

    def claim_now(self, shard: int) -> bool:
        """
        Claim from *shard* without waiting to be woken; return whether it takes more.
        """
        ...

    def topics_with_room(self) -> list[str] | None:
        """
        Return the topics of which a job could start now, None where that is unknown.
        """
        ...

    def stop_run(self, member: str, token: int) -> None:
        """
        Stop a run whose token is void.
        """
        ...

    async def sweep(self) -> None:
        """
        Stop what is over its time to run, for ever.
        """
        ...

    async def drain(self) -> None:
        """
        Stop claiming, let running jobs finish within the grace, and give back the rest.
        """
        ...

    async def give_back_all(self) -> None:
        """
        Give back whatever still runs, uncounted.
        """
        ...


class NewWorker(Protocol):
    """
    The class of a worker, or a function that makes one.
    """

    def __call__(
        self,
        store: Store,
        handlers: Handlers,
        outlooks: list[Outlook],
        *,
        concurrency: int,
        block_s: float,
        grace_s: float,
        role: str,
        hooks: Hooks,
        topics: list[str] | None,
        tracebacks: bool,
        middleware: Middleware | None,
    ) -> CrewWorker:
        """
        Make a worker.
        """
        ...
