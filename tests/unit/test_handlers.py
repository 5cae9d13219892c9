import asyncio
import contextlib
import copy
import enum
import functools
import gc
import inspect
import math
import pickle
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import Duly
from duly.backoff import DEFAULT, Fixed, from_wire
from duly.codec import MAX_DEPTH, Envelope, decode, decode_envelope
from duly.durations import MAX_DUE_MS
from duly.errors import DulyError, UsageError
from duly.handlers import AsyncHandler, Handler, Handlers, Limits, NewJob, SyncHandler, Unreadable, new_job
from duly.job import JobKey, Lane, Order

LIMITS = Limits()
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass
class Address:
    street: str
    number: int = 1


class Colour(enum.Enum):
    red = "red"


class Point(msgspec.Struct):
    x: int


class Model(pydantic.BaseModel):
    name: str


class Strange:
    pass


class Closeable(Protocol):
    def close(self): ...


def made(fn, **options):
    return Handlers().handler("mail.welcome", **options)(fn)


def bound(handler, payload):
    """
    The arguments that the function receives, by name.
    """
    args, kwargs = handler.bind(payload)
    call = inspect.signature(handler.fn).bind(*args, **kwargs)
    return dict(call.arguments)


async def welcome(user_id: int, *, locale: str = "en") -> str:
    """
    Say hello.
    """
    return f"{user_id} {locale}"


# ---------------------------------------------------------------------------------------- a handler


def test_a_handler_is_still_its_function():
    handler = made(welcome)
    assert "42 de" == asyncio.run(handler(42, locale="de"))
    assert 3 == made(lambda a, b: a + b)(1, b=2)
    assert ("welcome", "\n    Say hello.\n    ") == (handler.__name__, handler.__doc__)
    assert inspect.signature(welcome) == inspect.signature(handler)


def test_defaults_are_those_of_the_documentation():
    handler = made(welcome)
    assert (5, DEFAULT, 300_000, None, 3) == (
        handler.max_attempts,
        handler.backoff,
        handler.ttr_ms,
        handler.concurrency,
        handler.max_crashes,
    )


def plain(): ...


class AsyncCallable:
    async def __call__(self, number: int): ...


@pytest.mark.parametrize(
    ("place", "kind", "fn", "run_in"),
    [
        ("loop", AsyncHandler, welcome, "auto"),
        ("loop", AsyncHandler, welcome, "loop"),
        ("loop", AsyncHandler, functools.partial(welcome, locale="de"), "auto"),
        ("loop", AsyncHandler, AsyncCallable(), "auto"),
        ("thread", SyncHandler, plain, "auto"),
        ("thread", SyncHandler, plain, "thread"),
        ("process", SyncHandler, plain, "process"),
    ],
)
def test_where_a_function_runs_follows_from_what_it_is(place, kind, fn, run_in):
    handler = made(fn, run_in=run_in)
    assert (place, kind) == (handler.run_in, type(handler))


def generator():
    yield


async def async_generator():
    yield


@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (welcome, {"run_in": "thread"}),
        (welcome, {"run_in": "process"}),
        (plain, {"run_in": "loop"}),
        (plain, {"run_in": "moon"}),
        (generator, {}),
        (async_generator, {}),
        (plain, {"max_attempts": 0}),
        (plain, {"max_attempts": True}),
        (plain, {"max_attempts": 2.0}),
        (plain, {"max_crashes": 0}),
        (plain, {"concurrency": 0}),
        (plain, {"ttr": 0}),
        (plain, {"ttr": -1}),
        (plain, {"ttr": "soon"}),
        (plain, {"backoff": 5}),
    ],
)
def test_a_handler_that_makes_no_sense_is_refused_when_it_is_defined(fn, options):
    with pytest.raises(UsageError):
        made(fn, **options)


@pytest.mark.parametrize("fn", [lambda a, /: a, lambda *args: args, lambda a, *rest, b: a])
def test_parameters_without_a_name_to_travel_under_are_refused(fn):
    with pytest.raises(UsageError, match="arguments by name"):
        made(fn)


@pytest.mark.parametrize("fn", [None, 5, "plain", []], ids=repr)
def test_what_is_no_function_is_refused(fn):
    for decorate in (Handlers().handler("x"), Duly().batch_handler("x")):
        with pytest.raises(UsageError, match=r"handler of x: .* is no function"):
            decorate(fn)


@pytest.mark.parametrize(
    ("fn", "told"),
    [(Limits, "Limits is a class"), (functools.singledispatch(lambda x: x), "a singledispatch function")],
)
def test_a_class_and_a_singledispatch_function_are_refused(fn, told):
    with pytest.raises(UsageError, match=told):
        Handlers().handler("a")(fn)


def test_a_function_that_hides_what_it_takes_is_refused():
    with pytest.raises(UsageError, match=r"handler of x: .* does not say what it takes"):
        Handlers().handler("x")(max)


@pytest.mark.parametrize("wrong", [None, 5, "hook", []], ids=repr)
def test_a_hook_that_cannot_be_called_is_refused(wrong):
    app = Duly()
    for hook in (app.on_start, app.on_success, app.on_failure, app.on_timeout, app.on_lease_lost):
        with pytest.raises(UsageError, match=r"on_[a-z_]+ takes a function"):
            hook(wrong)


@pytest.mark.parametrize("wrong", [None, 5, ["tenant"]], ids=repr)
def test_names_that_are_no_text_are_refused(wrong):
    app = Duly()
    with pytest.raises(UsageError, match="inherit takes names"):
        app.inherit(wrong)
    with pytest.raises(UsageError, match="invalid topic"):
        app.remove_handler(wrong)


def test_an_invalid_topic_is_refused():
    with pytest.raises(UsageError, match="invalid topic"):
        Handlers().handler("a/b")(plain)


class Shop:
    def __call__(self, order: int) -> None: ...

    def pay(self, order: int) -> None: ...


def unwrapped(fn):
    def wrapper(*args):
        return fn(*args)

    return wrapper


@pytest.mark.parametrize(
    "fn",
    [Shop(), Shop().pay, unwrapped(plain), functools.partial(plain), lambda: None],
    ids=["object", "method", "wrapper", "partial", "lambda"],
)
def test_what_a_new_process_cannot_import_is_refused_for_one(fn):
    with pytest.raises(
        UsageError, match=r"^handler of a: a new process cannot import .*; decorate a function at the"
    ):
        Handlers().handler("a", run_in="process")(fn)


def test_a_handler_that_has_another_name_in_its_module_is_refused_before_work_begins():
    app = Duly()
    app.handler("a", run_in="process")(plain)
    with pytest.raises(UsageError, match=r"cannot import tests\.unit\.test_handlers\.plain as a handler"):
        app.need_handlers()


# ------------------------------------------------------------------------------------- the registry


def test_a_topic_has_one_handler():
    handlers = Handlers()
    first = handlers.handler("a")(plain)
    with pytest.raises(UsageError, match="has a handler already"):
        handlers.handler("a")(welcome)
    handlers.add(first)
    assert first is handlers.get("a")
    assert ["a"] == handlers.topics()


CELL = """
@handlers.handler("greet")
async def greet(name: str{more}) -> str:
    return name
"""


def test_a_cell_that_runs_again_replaces_its_handler():
    handlers = Handlers()
    scope = {"handlers": handlers, "__name__": "__main__"}
    exec(CELL.format(more=""), scope)  # noqa: S102  # as a notebook does
    first = scope["greet"]
    exec(CELL.format(more=", title: str"), scope)  # noqa: S102  # as above
    assert first is not handlers.get("greet")
    assert scope["greet"] is handlers.get("greet")
    assert ["greet"] == handlers.topics()
    assert b'{"name":"Ada","title":"Dr"}' == scope["greet"].job("Ada", title="Dr").payload


BATCH_CELL = """
@app.batch_handler("score", max_rows={rows})
def score(jobs):
    return jobs
"""


def test_a_cell_with_a_batch_handler_that_runs_again_replaces_it():
    app = Duly()
    scope = {"app": app, "__name__": "__main__"}
    for rows in (10, 20):
        exec(BATCH_CELL.format(rows=rows), scope)  # noqa: S102  # as a notebook does
    assert [scope["score"]] == app.handlers.batches()
    assert 20 == scope["score"].max_rows


@pytest.mark.parametrize("other", [("def score", "def other"), ("batch_handler", "handler")])
def test_a_cell_that_makes_another_handler_of_a_batch_topic_is_told_to_remove_the_first(other):
    app, cell = Duly(), BATCH_CELL.replace(", max_rows={rows}", "")
    exec(cell, {"app": app, "__name__": "__main__"})  # noqa: S102  # as above
    with pytest.raises(UsageError, match=r"topic score has a handler already: .*; remove it first"):
        exec(cell.replace(*other), {"app": app, "__name__": "__main__"})  # noqa: S102  # as above
    assert ([], ["score"]) == (app.handlers.topics(), [each.topic for each in app.handlers.batches()])


def test_a_module_that_is_changed_and_reloaded_replaces_its_handler(tmp_path):
    handlers = Handlers()
    for number, before in enumerate(("", "# one more line\n", ""), 1):
        run_file(tmp_path / "mail.py", before + CELL.format(more=f", {'x' * number}: str"), handlers)
    assert ["greet"] == handlers.topics()
    assert b'{"name":"Ada","xxx":""}' == handlers.get("greet").job("Ada", xxx="").payload


@pytest.mark.parametrize("decorator", ["", "\n@timed"])
def test_two_functions_of_one_name_in_one_file_are_refused(tmp_path, decorator):
    cell = CELL.format(more="").replace('("greet")', f'("greet"){decorator}')
    with pytest.raises(
        UsageError,
        match=r"^topic greet has two handlers of the same name, in .*mail\.py, lines \d+ and \d+; rename",
    ):
        run_file(tmp_path / "mail.py", TIMED + cell + cell, Handlers())


TIMED = """
import functools
def timed(fn):
    return functools.wraps(fn)(lambda name: fn(name))
"""


def run_file(file, text, handlers):
    """
    Run a module, as an import or a reload does.
    """
    file.write_text(text)
    exec(compile(text, file, "exec"), {"handlers": handlers, "__name__": "shop.mail"})  # noqa: S102  # as above


def test_a_function_of_the_same_name_elsewhere_is_another():
    handlers = Handlers()
    for module in ("shop.mail", "shop.orders"):
        scope = {"handlers": handlers, "__name__": module}
        if module == "shop.mail":
            exec(CELL.format(more=""), scope)  # noqa: S102  # as an import does
        else:
            with pytest.raises(UsageError, match="has a handler already"):
                exec(CELL.format(more=""), scope)  # noqa: S102  # as above


def test_lambdas_are_not_taken_for_one_another():
    handlers = Handlers()
    handlers.handler("a")(lambda: 1)
    with pytest.raises(UsageError, match="has a handler already"):
        handlers.handler("a")(lambda: 2)


def test_a_removed_handler_makes_room_for_another():
    handlers = Handlers()
    handlers.handler("a")(plain)
    handlers.remove("a")
    assert (None, []) == (handlers.get("a"), handlers.topics())
    handlers.handler("a")(welcome)
    with pytest.raises(UsageError, match="no handler"):
        handlers.remove("b")


def test_topics_come_in_the_order_in_which_they_were_added():
    handlers = Handlers()
    for topic in ("b", "a", "c"):
        handlers.handler(topic)(plain)
    assert ["b", "a", "c"] == handlers.topics()


def test_the_limits_of_the_registry_bind_its_handlers():
    handler = Handlers(Limits(payload=20)).handler("a")(made(welcome).fn)
    assert b'{"user_id":1}' == handler.job(1).payload
    with pytest.raises(UsageError, match="the limit is 20"):
        handler.job(1, locale="x" * 20)


# ------------------------------------------------------------------------------------------ sending


def test_a_job_holds_its_arguments_by_name_and_leaves_out_defaults():
    handler = made(welcome)
    assert NewJob("mail.welcome", b'{"user_id":42}') == handler.job(42)
    assert b'{"user_id":42,"locale":"de"}' == handler.job(user_id=42, locale="de").payload


def test_how_a_result_is_read_is_no_part_of_what_a_job_says():
    first, second = (Handlers().handler("user")(fn) for fn in (gives_number, gives_number))
    assert first.job() == second.job() == NewJob("user", b"{}")
    assert 1 == len({first.job(), second.job(), NewJob("user", b"{}")})
    job = first.job()
    assert job.reader is copy.deepcopy(job).reader
    assert first.job() == pickle.loads(pickle.dumps(first.job()))  # noqa: S301  # our own
    assert b"" == first.job().order(LIMITS).envelope


def test_a_job_that_waits_to_be_sent_is_nothing_to_the_collector():
    assert not gc.is_tracked(made(welcome).job(42))


def test_a_handler_that_nobody_has_any_more_is_collected():
    def used_once():
        handlers = Handlers()

        @handlers.handler("user")
        def user() -> object:
            return handlers  # a cycle: the function knows who knows it

        user.job()
        return weakref.ref(user.fn)

    gone = used_once()
    gc.collect()
    assert gone() is None


def gives_number() -> int: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "missing a required argument: 'user_id'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"user_id": 2}, "multiple values"),
        ((1,), {"lokale": "de"}, "lokale"),
        (("x",), {}, "Expected `int`, got `str`"),
        ((1.5,), {}, "Expected `int`, got `float`"),
        ((1,), {"locale": None}, "Expected `str`, got `null`"),
        ((Strange(),), {}, "Strange has no form in JSON"),
        ((math.nan,), {}, "nan"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_sent(args, kwargs, told):
    with pytest.raises(UsageError) as refusal:
        made(welcome).job(*args, **kwargs)
    assert told in str(refusal.value)


def extra(a: int, **rest: float): ...


def test_keyword_arguments_of_any_name_travel_flat():
    handler = made(extra)
    assert b'{"a":1,"b":2.5}' == handler.job(1, b=2.5).payload
    assert ((), {"a": 1, "b": 2.5, "c": 3.0}) == handler.bind(b'{"a":1,"b":2.5,"c":3}')
    with pytest.raises(UsageError):
        handler.job(1, b="x")


# ---------------------------------------------------------------------------------------- receiving


def everything(
    when: datetime,
    who: UUID,
    price: Decimal,
    colour: Colour,
    address: Address,
    point: Point | None,
    model: Model,
    models: list[Model],
    tags: set[str],
    share: float,
    anything: Any,
    *,
    raw: bytes = b"",
    missing: int = 3,
): ...


def test_arguments_arrive_as_the_types_they_are_annotated_with():
    arguments = {
        "when": NOON,
        "who": UUID(int=7),
        "price": Decimal("1.50"),
        "colour": Colour.red,
        "address": Address("Main"),
        "point": Point(3),
        "model": Model(name="m"),
        "models": [Model(name="n")],
        "tags": {"a", "b"},
        "share": 2.0,
        "anything": {"x": [1]},
        "raw": b"\x00\xff",
    }
    handler = made(everything)
    args, kwargs = handler.bind(handler.job(**arguments).payload)
    assert ((), arguments) == (args, kwargs)
    assert Colour.red is kwargs["colour"]


def test_a_real_pydantic_model_arrives_validated():
    model = pydantic.create_model("Order", number=(int, ...), at=(datetime | None, None))

    def fn(order, other): ...

    fn.__annotations__ = {"order": model, "other": model | None}
    handler = made(fn)
    order = model(number=3, at=NOON)
    assert {"order": order, "other": None} == bound(handler, handler.job(order, None).payload)
    with pytest.raises(Unreadable, match="number"):
        handler.bind(b'{"order":{"number":"many"},"other":null}')


def single(first: int, second: int = 2): ...


@pytest.mark.parametrize("payload", [b"7", b" 7\n"])
def test_anything_but_an_object_is_the_single_positional_argument(payload):
    assert ((7,), {}) == made(single).bind(payload)


def takes_time(at: datetime): ...


def takes_list(numbers: list[int]): ...


def takes_maybe(number: int | None): ...


@pytest.mark.parametrize(
    ("argument", "fn", "payload"),
    [
        (NOON, takes_time, b'"2030-01-01T12:00:00Z"'),
        ([1, 2], takes_list, b"[1,2]"),
        (None, takes_maybe, b"null"),
    ],
)
def test_the_single_argument_is_converted_as_well(argument, fn, payload):
    assert ((argument,), {}) == made(fn).bind(payload)


@pytest.mark.parametrize("payload", [b"{}", b" {} ", b"null"])
def test_a_handler_without_parameters_takes_nothing(payload):
    assert ((), {}) == made(plain).bind(payload)
    assert b"{}" == made(plain).job().payload


@pytest.mark.parametrize(
    ("fn", "payload", "told"),
    [
        (welcome, b"", "truncated"),
        (welcome, b"{", "truncated"),
        (welcome, b"\xff", "malformed"),
        (welcome, b'{"user_id":1} x', "malformed"),
        (welcome, b"{}", "missing required field `user_id`"),
        (welcome, b'{"user_id":"1"}', "Expected `int`, got `str`"),
        (
            welcome,
            b'{"user_id":1,"other":2}',
            "contains an unknown field; the handler takes user_id, locale",
        ),
        (welcome, b'"x"', "Expected `int`, got `str`"),
        (plain, b"5", "object of arguments by name"),
        (plain, b'{"a":1}', "contains an unknown field; the handler takes no arguments"),
        (plain, b"", "truncated"),
        (lambda a, b: a, b"5", "object of arguments by name"),
        (lambda *, a: a, b"5", "object of arguments by name"),
        (extra, b'{"a":1,"b":"x"}', "Expected `float`"),
        (takes_list, b"[" * 100_000, "payload"),
        (everything, b'{"when":"yesterday"}', "datetime"),
    ],
)
def test_what_cannot_be_bound_is_unreadable_and_says_why(fn, payload, told):
    with pytest.raises(Unreadable) as refusal:
        made(fn).bind(payload)
    assert told in str(refusal.value)
    assert "mail.welcome" in str(refusal.value)
    assert isinstance(refusal.value, DulyError)


def takes_model(model: Model): ...


def test_what_a_model_refuses_is_unreadable():
    with pytest.raises(Unreadable, match="name: Field required"):
        made(takes_model).bind(b'{"model":{}}')


def untyped(a, b: "NoSuchName", c: int = 0): ...  # noqa: F821


def odd(a: Strange | int, b: Closeable, c: int): ...


def test_what_cannot_be_resolved_is_passed_on_as_json_made_it_and_the_others_keep_their_types(caplog):
    assert {"a": 1, "b": [2], "c": 3} == bound(made(untyped), b'{"a":1,"b":[2],"c":3}')
    [warning] = caplog.messages
    assert "parameter b is annotated with what cannot be resolved (name 'NoSuchName'" in warning
    with pytest.raises(Unreadable, match="Expected `int`, got `str`"):
        made(untyped).bind(b'{"a":1,"b":[2],"c":"3"}')


def test_a_union_is_read_as_those_of_its_members_that_json_can_say():
    assert {"a": 1, "b": {"x": 1}, "c": 3} == bound(made(odd), b'{"a":1,"b":{"x":1},"c":3}')
    for wrong in (b'{"a":"1","b":{},"c":3}', b'{"a":1,"b":{},"c":"3"}'):
        with pytest.raises(Unreadable):
            made(odd).bind(wrong)


def refers_to_later(value: "Later"): ...


@dataclass
class Later:
    x: int


def test_annotations_may_name_what_is_defined_later():
    assert {"value": Later(1)} == bound(made(refers_to_later), b'{"value":{"x":1}}')


def defaults(a: list[int], b: int = 5, c: str | None = "x", *, d: float = 1.0): ...


@given(
    st.fixed_dictionaries(
        {"a": st.lists(st.integers(-(2**53), 2**53), max_size=3)},
        optional={
            "b": st.integers(-(2**53), 2**53),
            "c": st.none() | st.text(),
            "d": st.floats(allow_nan=False, allow_infinity=False),
        },
    ),
    st.integers(0, 3),
)
def test_what_is_sent_is_what_is_received(arguments, positional):
    handler = made(defaults)
    args = []
    for name in ("a", "b", "c")[:positional]:
        if name not in arguments:
            break
        args.append(arguments[name])
    kwargs = {name: value for name, value in arguments.items() if name not in ("a", "b", "c")[: len(args)]}
    assert arguments == bound(handler, handler.job(*args, **kwargs).payload)


@given(st.binary(max_size=30) | st.text().map(str.encode))
def test_no_payload_whatsoever_raises_anything_but_unreadable(payload):
    for fn in (welcome, plain, extra, takes_model, untyped):
        with contextlib.suppress(Unreadable):
            made(fn).bind(payload)


# ------------------------------------------------------------------------------------------- orders


def test_a_job_without_options_is_due_now_under_an_id_of_its_own():
    job = made(welcome).job(1)
    order, other = job.order(LIMITS), job.order(LIMITS)
    assert Order(JobKey("mail.welcome", order.key.id), b'{"user_id":1}') == order
    assert 22 == len(order.key.id)
    assert order.key.id != other.key.id


def test_every_option_finds_its_place_in_the_order():
    options = {
        "id": "p-1",
        "delay": timedelta(hours=3),
        "expires": NOON,
        "priority": "high",
        "ttr": 30,
        "max_attempts": 2,
        "backoff": Fixed(5),
        "context": {"tenant": "acme"},
        "on_conflict": "replace",
        "retain": 1.5,
        "max_crashes": 7,
    }
    order = made(welcome).job(1).options(**options).order(LIMITS)
    envelope = Envelope(max_attempts=2, backoff={"kind": "fixed", "delay": 5}, context={"tenant": "acme"})
    assert envelope == decode_envelope(order.envelope)
    assert Fixed(5) == from_wire(envelope.backoff)
    assert order == Order(
        key=JobKey("mail.welcome", "p-1"),
        payload=b'{"user_id":1}',
        delay_ms=10_800_000,
        due_ms=None,
        lane=Lane.high,
        expires_ms=int(NOON.timestamp() * 1_000),
        ttr_ms=30_000,
        retain_s=2,
        max_crashes=7,
        envelope=order.envelope,
        on_conflict="replace",
    )


def ordered(**options):
    return made(welcome).job(1).options(**options).order(LIMITS)


def test_options_make_a_copy_and_later_ones_win():
    job = made(welcome).job(1)
    first = job.options(id="a", delay=5)
    second = first.options(delay=None, priority="low")
    assert (None, None) == (job.id, job.delay)
    assert ("a", 5, "normal") == (first.id, first.delay, first.priority)
    assert ("a", None, "low") == (second.id, second.delay, second.priority)


def test_a_new_job_cannot_be_changed():
    with pytest.raises(AttributeError):
        made(welcome).job(1).id = "b"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("dalay", "did you mean delay?"), ("topic", "unknown option topic"), ("payload", "payload")],
)
def test_an_unknown_option_is_refused_with_the_nearest_known(name, hint):
    with pytest.raises(UsageError) as refusal:
        made(welcome).job(1).options(**{"id": "a", name: 1})
    assert hint in str(refusal.value)


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": timedelta(seconds=-1)},
        {"delay": "soon"},
        {"delay": math.nan},
        {"delay": timedelta.max},
        {"delay": 0, "due_at": NOON},
        {"due_at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"due_at": "2030-01-01T00:00:00Z"},
        {"due_at": 5},
        {"due_at": datetime.max.replace(tzinfo=UTC)},
        {"due_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
        {"expires": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"expires": 60},
        {"id": ""},
        {"id": "a/b"},
        {"id": 5},
        {"priority": "urgent"},
        {"priority": "suspect"},
        {"priority": None},
        {"priority": []},
        {"on_conflict": "ignore"},
        {"on_conflict": None},
        {"ttr": 0},
        {"ttr": -1},
        {"retain": -1},
        {"max_attempts": 0},
        {"max_attempts": "3"},
        {"max_crashes": 0},
        {"backoff": lambda attempt: 1},
        {"backoff": 5},
        {"context": []},
        {"context": {1: 2}},
        {"context": {"a": Strange()}},
        {"context": {"a": math.inf}},
        {"context": {"a": "x" * 8_192}},
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options):
    with pytest.raises(UsageError):
        ordered(**options)


def nested(levels, inner=None):
    for _ in range(levels):
        inner = {"a": inner}
    return inner


def test_a_context_has_as_many_levels_as_any_value():
    order = ordered(context=nested(MAX_DEPTH))
    assert nested(MAX_DEPTH) == decode_envelope(order.envelope).context
    with pytest.raises(UsageError, match="context is nested 501 levels deep, the limit is 500"):
        ordered(context=nested(MAX_DEPTH + 1))
    with pytest.raises(UsageError, match="'a' would arrive as something else"):
        ordered(context=nested(MAX_DEPTH - 1, (1,)))


def test_what_is_changed_far_inside_is_told_with_its_place():
    @Handlers().handler("far")
    async def far(value: Any) -> Any:
        return value

    assert far.encode_result(nested(MAX_DEPTH))
    with pytest.raises(
        UsageError, match=r"result(\[\.\.\.\]){499} is of type tuple and would arrive as list"
    ):
        far.encode_result(nested(MAX_DEPTH - 1, (1,)))
    with pytest.raises(UsageError, match=r"argument value(\['a'\]){498} is of type tuple"):
        far.job(nested(MAX_DEPTH - 2, (1,)))


def test_a_context_that_is_too_large_is_told_so():
    with pytest.raises(UsageError, match="context is 8202 bytes, the limit is 8192"):
        ordered(context={"a": "x" * 8_194})


@given(
    st.datetimes(
        min_value=datetime(1971, 1, 1),  # noqa: DTZ001
        max_value=datetime(9998, 1, 1),  # noqa: DTZ001
        timezones=st.timezones() | st.just(UTC),
    )
)
def test_a_due_time_is_rounded_up_to_the_millisecond_and_never_early(due_at):
    exact = due_at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    due = timedelta(milliseconds=ordered(due_at=due_at).due_ms)
    assert exact <= due < exact + timedelta(milliseconds=1)


def test_the_last_millisecond_of_the_calendar_can_be_due_and_no_later():
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    assert MAX_DUE_MS == ordered(due_at=last).due_ms
    with pytest.raises(UsageError, match="year 9999"):
        ordered(due_at=last + timedelta(microseconds=1))


def test_a_due_time_long_past_is_due_now():
    assert 1 == ordered(due_at=datetime(1, 1, 1, tzinfo=UTC)).due_ms


def test_the_fold_decides_between_two_equal_wall_clock_times():
    berlin = ZoneInfo("Europe/Berlin")
    first = ordered(due_at=datetime(2030, 10, 27, 2, 30, tzinfo=berlin)).due_ms
    second = ordered(due_at=datetime(2030, 10, 27, 2, 30, tzinfo=berlin, fold=1)).due_ms
    assert 3_600_000 == second - first


def test_an_expiry_is_rounded_down_so_that_nothing_starts_after_it():
    expires = datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC)
    assert 1_000 == ordered(expires=expires).expires_ms


def test_nothing_is_kept_of_a_job_that_asks_for_no_retention():
    assert 0 == ordered(retain=0).retain_s
    assert None is ordered().retain_s


def test_an_empty_context_takes_no_space():
    assert b"" == ordered(context={}).envelope


# ------------------------------------------------------------------------------------------ by name


def test_a_job_can_be_described_by_name():
    job = new_job("payment.check", {"payment_id": "p-1"}, LIMITS).options(id="p-1")
    assert Order(JobKey("payment.check", "p-1"), b'{"payment_id":"p-1"}') == job.order(LIMITS)
    assert None is decode(new_job("a", None, LIMITS).payload)


def test_a_job_by_name_is_checked_like_any_other():
    with pytest.raises(UsageError, match="invalid topic"):
        new_job("a b", 1, LIMITS)
    with pytest.raises(UsageError, match="the limit is 10"):
        new_job("a", "x" * 10, Limits(payload=10))
    with pytest.raises(UsageError, match="Strange"):
        new_job("a", Strange(), LIMITS)


def test_a_payload_made_under_wider_limits_is_refused_by_narrower_ones():
    with pytest.raises(UsageError, match="the limit is 5"):
        new_job("a", "x" * 10, LIMITS).order(Limits(payload=5))


def test_both_kinds_are_handlers():
    assert isinstance(made(welcome), Handler)
    assert isinstance(made(plain), Handler)


@Handlers().handler("found.here")
def found_here(number: int) -> int:
    return number


def test_a_handler_is_pickled_by_its_name_as_functions_are():
    assert pickle.loads(pickle.dumps(found_here)) is found_here  # noqa: S301
    assert copy.deepcopy([found_here])[0] is found_here


@pytest.mark.parametrize("fn", [lambda number: number, functools.partial(found_here.fn, 1), copy.copy])
def test_a_handler_that_its_name_does_not_lead_to_is_not_pickled(fn):
    handler = Handler(fn, "lost")
    with pytest.raises(pickle.PicklingError, match="the handler of lost cannot be pickled: the name of its"):
        pickle.dumps(handler)
