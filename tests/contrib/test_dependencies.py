"""
FastAPI's Depends in handlers: resolved for a job, closed after its run, refused where a request is needed.
"""

import asyncio
import functools
import inspect
import os
import threading
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, Query, Request, Security
from fastapi.security import OAuth2PasswordBearer

from duly import Duly, JobFailed, Snooze, UsageError
from duly.contrib.dependencies import inject
from duly.http import async_endpoint
from tests.contrib import injected
from tests.services.conftest import becomes, working


@pytest.fixture
async def queue(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace, drain_grace=0.2) as app:
        yield app


class Session:
    """
    What a dependency opens and closes, and where.
    """

    log: list[str]

    def __init__(self) -> None:
        self.log = ["open"]
        self.thread = threading.get_ident()


sessions: list[Session] = []


def get_session():
    session = Session()
    sessions.append(session)
    try:
        yield session
    except BaseException as error:
        session.log.append(type(error).__name__)
        raise
    else:
        session.log.append("commit")
    finally:
        session.log.append("close")


async def get_session_async():
    session = Session()
    sessions.append(session)
    try:
        yield session
    except ValueError:
        session.log.append("swallowed")
    finally:
        session.log.append("close")


def prefix() -> str:
    return "Dr"


class Greeter:
    def __init__(self, title: Annotated[str, Depends(prefix)], mark: str = "!") -> None:
        self.title, self.mark = title, mark


async def greeting(
    greeter: Annotated[Greeter, Depends()],
    first=Depends(get_session),  # noqa: B008  # the way that FastAPI had before Annotated
    again=Depends(get_session),  # noqa: B008  # as above
) -> str:
    assert first is again
    return f"Hello, {greeter.title} {{name}}{greeter.mark}"


@pytest.fixture(autouse=True)
def no_sessions():
    sessions.clear()


async def test_dependencies_are_resolved_for_a_job_and_closed_after_it(queue):
    @queue.handler("greet")
    @inject
    async def greet(
        name: str,
        text: Annotated[str, Depends(greeting)],
        session: Annotated[Session, Depends(get_session)],
        own: Annotated[Session, Depends(get_session, use_cache=False)],
        *,
        times: int = 1,
    ) -> str:
        assert ["open"] == session.log == own.log
        assert threading.get_ident() != session.thread
        return " ".join([text.format(name=name)] * times)

    assert b'{"name":"Ada","times":2}' == greet.job("Ada", times=2).payload
    async with working(queue):
        job = await queue.enqueue(greet.job("Ada", times=2))
        assert "Hello, Dr Ada! Hello, Dr Ada!" == await job.result(timeout=30)
    assert [["open", "commit", "close"]] * 2 == [session.log for session in sessions]


async def test_a_plain_handler_has_its_dependencies_in_its_thread(queue):
    @queue.handler("greet")
    @inject
    def greet(name: str, session=Depends(get_session)) -> str:  # noqa: B008  # as above
        assert threading.get_ident() == session.thread
        return name

    async with working(queue):
        assert "Ada" == await (await queue.enqueue(greet.job("Ada"))).result(timeout=30)
    assert [["open", "commit", "close"]] == [session.log for session in sessions]


async def test_dependencies_are_told_how_a_run_ended(queue):
    @queue.handler("end", max_attempts=1, ttr=0.2)
    @inject
    async def end(
        how: str,
        session: Annotated[Session, Depends(get_session)],
        other: Annotated[Session, Depends(get_session_async)],
    ) -> object:
        match how:
            case "raise":
                raise KeyError("gone")
            case "hang":
                await asyncio.sleep(60)
            case "swallow":
                raise ValueError("nobody may swallow this")
        return Snooze(3600)

    async with working(queue):
        for how, state, told in (
            ("raise", "dead", ["KeyError"]),
            ("hang", "dead", ["CancelledError"]),
            ("snooze", "scheduled", ["commit"]),
        ):
            job = await queue.enqueue(end.job(how), id=how)
            await becomes(job, state, 30)
            assert ["open", *told, "close"] == sessions[-2].log
            assert ["open", "close"] == sessions[-1].log
        with pytest.raises(JobFailed, match="nobody may swallow this"):
            await (await queue.enqueue(end.job("swallow"))).result(timeout=30)
        assert ["open", "swallowed", "close"] == sessions[-1].log


async def test_a_handler_in_a_process_has_its_dependencies_there(queue):
    queue.handlers.add(injected.where)
    async with working(queue):
        name, is_there, pid = await (await queue.enqueue(injected.where.job("Ada"))).result(timeout=60)
    assert ("Ada", True) == (name, is_there)
    assert os.getpid() != pid


async def test_overrides_of_the_application_count(queue):
    api = FastAPI()

    @queue.handler("greet")
    @inject(api=api)
    async def greet(title: Annotated[str, Depends(prefix)]) -> str:
        return title

    async with working(queue):
        assert "Dr" == await (await queue.enqueue(greet.job())).result(timeout=30)
        api.dependency_overrides = {prefix: lambda: "Prof"}
        assert "Prof" == await (await queue.enqueue(greet.job())).result(timeout=30)


async def test_a_direct_call_may_bring_its_own(queue):
    @queue.handler("greet")
    @inject
    async def greet(name: str, session: Annotated[Session, Depends(get_session)]) -> object:
        return session

    assert "mine" == await greet("Ada", session="mine")
    assert [] == sessions
    assert ["open", "commit", "close"] == (await greet("Ada")).log


async def test_a_payload_cannot_take_the_place_of_a_dependency(queue):
    @queue.handler("pay")
    @inject
    async def pay(account: Annotated[str, Depends(prefix)], amount: int, **more: object) -> str:
        return f"{amount} from {account} {more}"

    told = "account.* comes from a dependency of the handler, and not from the payload: leave it out"
    with pytest.raises(UsageError, match=told):
        pay.job(amount=1, account="Mallory")
    api = FastAPI()
    async_endpoint("/pay", pay, to=api, queue=queue)
    body = {"amount": 1, "account": "Mallory"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://x") as client:
        refused = await client.post("/pay", json=body)
        assert (422, "account") == (refused.status_code, refused.json()["field"])
    async with working(queue):
        with pytest.raises(JobFailed, match="account: comes from a dependency"):
            await (await queue.enqueue("pay", body)).result(timeout=30)
        # What is no object is the first argument of the payload, not of the function.
        for payload in (1, {"amount": 1}):
            assert "1 from Dr {}" == await (await queue.enqueue("pay", payload)).result(timeout=30)


async def wait_for_prefix() -> str:
    return prefix()


def plainly(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


async def test_a_wrapped_dependency_is_of_the_kind_of_what_it_wraps(queue):
    @queue.handler("greet")
    @inject
    async def greet(
        title: Annotated[str, Depends(plainly(wait_for_prefix))],
        part: Annotated[str, Depends(functools.partial(plainly(wait_for_prefix)))],
        session: Annotated[Session, Depends(plainly(get_session))],
        other: Annotated[Session, Depends(plainly(plainly(get_session_async)))],
    ) -> str:
        assert ["open"] == session.log == other.log
        return title + part

    @queue.handler("greet.plain")
    @inject
    def greet_plainly(session: Annotated[Session, Depends(plainly(get_session))]) -> str:
        return session.log[0]

    async with working(queue):
        assert "DrDr" == await (await queue.enqueue(greet.job())).result(timeout=30)
        assert "open" == await (await queue.enqueue(greet_plainly.job())).result(timeout=30)
    assert ["close"] * 3 == [session.log[-1] for session in sessions]
    with pytest.raises(UsageError, match="is a plain def, and its dependency wait_for_prefix is async"):

        @inject
        def refused(title: Annotated[str, Depends(plainly(wait_for_prefix))]) -> None: ...


async def test_a_function_below_another_decorator_has_its_dependencies_until_it_ends(queue):
    def decorated(fn, wraps=functools.wraps):
        @wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs)

        return wrapper

    async def body(session: Annotated[Session, Depends(get_session)]) -> object:
        await asyncio.sleep(0)
        assert ["open"] == session.log
        return session

    assert ["open", "commit", "close"] == (await inject(decorated(body))()).log

    def keep_signature(fn):
        def named(wrapper):
            wrapper.__signature__, wrapper.__annotations__ = inspect.signature(fn), fn.__annotations__
            return wrapper

        return named

    with pytest.raises(UsageError, match="returned something to await: make it async def"):
        inject(decorated(body, keep_signature))()


def needs_request(request: Request) -> str: ...
def needs_header(agent: Annotated[str, Header()]) -> str: ...
def needs_query(page: int = Query(1)) -> str: ...
def needs_path(name: str) -> str: ...
async def is_async() -> str: ...


bearer = OAuth2PasswordBearer("token")


@pytest.mark.parametrize(
    ("dependency", "message"),
    [
        (Depends(needs_request), "needs_request: parameter request is of a request, and a job has none"),
        (Depends(needs_header), r"parameter agent is Header\(…\), which comes from a request"),
        (Depends(needs_query), r"parameter page is Query\(…\), which comes from a request"),
        (Depends(needs_path), "dependency needs_path of .*: parameter name comes from a request"),
        (Depends(bearer), "parameter request is of a request, and a job has none"),
        (Security(bearer), r"parameter it is Security\(…\), which comes from a request"),
    ],
)
def test_what_needs_a_request_is_refused_at_decoration(dependency, message):
    with pytest.raises(UsageError, match=message):

        @inject
        async def handler(it=dependency) -> None: ...


def test_other_mistakes_are_refused_at_decoration():
    app = Duly("redis://nobody.invalid")
    with pytest.raises(UsageError, match="is a plain def, and its dependency is_async is async"):

        @inject
        def plain(it: Annotated[str, Depends(is_async)]) -> None: ...

    with pytest.raises(UsageError, match="declares no dependency"):

        @inject
        async def nothing(name: str) -> None: ...

    with pytest.raises(UsageError, match="write @inject below @app"):

        @inject
        @app.handler("upside.down")
        async def upside_down(it: str = "x") -> None: ...

    with pytest.raises(UsageError, match="what parameter it depends on cannot be called"):

        @inject
        async def uncallable(it: Annotated[int | None, Depends()]) -> None: ...

    with pytest.raises(UsageError, match="its annotations cannot be read"):

        @inject
        async def unknown(it: Annotated["Unheard", Depends(prefix)]) -> None: ...  # noqa: F821  # the mistake
