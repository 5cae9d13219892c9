"""
What a job keeps of the request that made it: route, query and headers, without what is secret.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from duly.context import current_job
from duly.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import Request

#: Where a job's context keeps the request.
REQUEST = "request"

#: These say who somebody is; whoever may read the job could be them.
SECRETS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
#: And so, going by their names, do these.
_SECRET = re.compile(
    r"auth(?!ority)|cookie|token|secret|passw|api-?key|access-?key|session|credential|csrf|xsrf|jwt|signature|client-cert"
)
#: About the connection, not about what is asked for.
_CONNECTION = frozenset(
    "connection content-length expect keep-alive proxy-connection".split()
    + "te trailer transfer-encoding upgrade".split()
)


class AsyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    The request that an endpoint answered with a job.
    """

    id: str  #: its X-Async-Request-Id, or the one it was given
    endpoint: str  #: the path as it was declared: /orders/{order_id}/refund
    method: str
    path: str  #: as it was asked for
    route: dict[str, Any]  #: the values in the path, by name
    query: dict[str, str]  #: of a value that was given several times, the last
    headers: dict[str, str]  #: names are in small letters
    repeated: dict[str, list[str]] = {}  #: query values that were given several times, all of them


def current_request() -> AsyncRequest:
    """
    The request that made the job which is running here.

    Raises:
        UsageError: None did: the call is not inside a handler, or its job was sent in another way.
    """
    job = current_job()
    if REQUEST not in job.context:
        raise UsageError(f"{job.topic}/{job.id} was not sent by an async endpoint; there is no request")
    return msgspec.convert(job.context[REQUEST], AsyncRequest)


class HeaderRule:
    """
    Which headers are kept: those of *allow*, or all but secret ones and those of *deny*.
    """

    def __init__(self, allow: Iterable[str] | None, deny: Iterable[str]) -> None:
        self._allow = None if allow is None else _names(allow, "allow_headers")
        self._deny = _names(deny, "deny_headers")
        for name in sorted(SECRETS & (self._allow or frozenset())):
            raise UsageError(
                f"allow_headers has {name}, which would be stored with the job for whoever may read it; "
                "look at it in validate, or let options put what you need of it into the context"
            )

    def keeps(self, name: str) -> bool:
        """
        Whether a header, named in small letters, travels with the job.
        """
        if name in self._deny:
            return False
        if self._allow is not None:
            return name in self._allow
        return name not in _CONNECTION and not _SECRET.search(name)

    def of(self, request: Request) -> dict[str, str]:
        """
        The headers of a request that are kept; one that was sent several times is joined by commas.
        """
        kept: dict[str, str] = {}
        for name, value in request.headers.items():
            if self.keeps(name):
                kept[name] = f"{kept[name]}, {value}" if name in kept else value
        return kept


def _names(names: Iterable[str], what: str) -> frozenset[str]:
    if isinstance(names, str):
        raise UsageError(f"{what}={names!r} must be a list of names")
    return frozenset(name.lower() for name in names)


def capture(request: Request, endpoint: str, id_: str, rule: HeaderRule) -> AsyncRequest:
    """
    What a job keeps of *request*.
    """
    given = request.query_params
    lists = {name: given.getlist(name) for name in given}
    return AsyncRequest(
        id=id_,
        endpoint=endpoint,
        method=request.method,
        path=request.scope["path"],
        route=route_values(request.path_params),
        query=dict(given),
        headers=rule.of(request),
        repeated={name: values for name, values in lists.items() if len(values) > 1},
    )


def route_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """
    The values of a path in JSON; what is neither text nor a number, such as a UUID, as text.
    """
    return {
        name: value if isinstance(value, str | int | float) else str(value) for name, value in values.items()
    }
