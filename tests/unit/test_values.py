"""
What a handler gets of an argument, and a caller of a result.
"""

import asyncio
import collections
import dataclasses
import enum
import functools
import ipaddress
import math
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import annotated_types
import attrs
import msgspec
import pydantic
import pytest
from flask import Flask
from typing_extensions import TypeAliasType

from duly import Bury, Codec, Duly, Snooze, UsageError
from duly.annotation import Shape
from duly.binding import Binding, is_async
from duly.codec import Unreadable, decode
from duly.handlers import AsyncHandler, Handlers, Limits, SyncHandler
from duly.http.endpointdocs import schema_of
from duly.http.problems import Problem
from duly.http.requestbody import RequestBody
from tests.docs.values import (
    CARRIED,
    CODEC,
    EXACT,
    READ,
    REFUSED,
    Admin,
    Cat,
    Colour,
    Login,
    Money,
    Parcel,
    Strange,
    User,
    carry,
    value_of,
)

if TYPE_CHECKING:
    from nowhere import Imaginary

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def made(fn, *, codec=None, **options):
    return Handlers(codec=codec).handler("values", **options)(fn)


def returned(fn, value):
    """
    What a caller gets of a value that the handler returned.
    """
    handler = made(fn, codec=CODEC)
    return handler.binding.decode_result(handler.encode_result(value))


# -- the table of the documentation -----------------------------------------------------------------------


@pytest.mark.parametrize(("annotation", "text", "expected"), EXACT)
def test_both_ends_get_an_equal_value_of_the_same_type_or_it_is_refused(annotation, text, expected):
    value = value_of(text)
    carried = carry(annotation, value)
    assert expected == (REFUSED if carried.refused else CARRIED), carried.refused
    if not carried.refused:
        assert [(type(value), value)] * 2 == [(type(end), end) for end in (carried.got, carried.back)]


@pytest.mark.parametrize(("annotation", "text", "expected"), READ)
def test_a_value_whose_meaning_is_clear_is_read_as_the_annotation_says(annotation, text, expected):
    carried = carry(annotation, value_of(text))
    assert expected == (REFUSED if carried.refused else CARRIED), carried.refused
    if not carried.refused:
        assert carried.got == carried.back
        assert type(carried.got) is type(carried.back)
        assert (type(value_of(text)), value_of(text)) != (type(carried.got), carried.got)


def test_an_iterable_of_models_is_a_list_that_is_checked_before_it_is_sent():
    handler = made(lambda_of(Iterable[User]))
    [got] = handler.bind(handler.job([User(name="Ada")]).payload)[1].values()
    assert (list, [User(name="Ada")]) == (type(got), got)
    with pytest.raises(UsageError, match="Field required"):
        handler.job([{"wrong": 1}])


def gives_any() -> Any: ...


def test_lazy_texts_of_babel_are_sent_in_the_language_of_the_sender():
    from babel.support import LazyProxy
    from flask_babel import Babel, LazyString, force_locale, get_locale, lazy_gettext

    flask = Flask("shop")
    Babel(flask)
    encode = made(gives_any).binding.codec.encode
    with flask.test_request_context(), force_locale("de"):
        for lazy, text in (
            (lazy_gettext("Hello, %(name)s!", name="Ada"), "Hello, Ada!"),
            (LazyString(lambda: get_locale().display_name), "Deutsch"),
            (LazyProxy(lambda: get_locale().display_name), "Deutsch"),
        ):
            for kind, value, expected in (
                (str, lazy, text),
                (str | None, lazy, text),
                (list[str], [lazy], [text]),
                (Any, lazy, text),
                (dict[str, Any], {"a": lazy}, {"a": text}),
            ):
                handler = made(lambda_of(kind))
                payload = handler.job(value).payload
                with force_locale("fr"):
                    assert expected == handler.bind(payload)[1]["value"]
                assert expected == decode(encode(value))
            assert text == returned(gives_any, lazy)


def gives_text(number: int, text: str) -> str: ...


def takes_json(
    number: int, *, tags: list[str] | None = None, sizes: dict[str, list[float]] = MappingProxyType({})
) -> bool: ...


@pytest.mark.parametrize(
    ("fn", "arguments", "result"),
    [
        (gives_text, {"number": 1, "text": "a"}, "a"),
        (takes_json, {"number": 1, "tags": ["a"], "sizes": {"a": [0.5]}}, True),
        (takes_json, {"number": 1}, True),
    ],
)
def test_the_conversions_cost_nothing_where_no_model_is_used(monkeypatch, fn, arguments, result):
    handler = made(fn)

    def convert(*_, **__):
        raise AssertionError("a value of JSON's own is looked at once more")

    for owner, name in ((Shape, "carries"), (Shape, "read"), (Binding, "_converted"), (Binding, "_compare")):
        monkeypatch.setattr(owner, name, convert)
    # One decoder reads all arguments at once, and one comparison tells that they arrive.
    assert ({}, True) == (handler.binding._writers, handler.binding._plain)
    assert ((), arguments) == handler.bind(handler.job(**arguments).payload)
    assert handler.encode_result(result)


def test_a_model_is_converted_and_looked_at():
    handler = made(lambda_of(User))
    assert (["value"], False) == (list(handler.binding._writers), handler.binding._plain)


class Lines(pydantic.BaseModel):
    """
    A model that pydantic reads as it goes.
    """

    lines: Iterable[int] | None = None


class Hooked(pydantic.BaseModel):
    """
    A model that no JSON is read as, unless its function may be missing.
    """

    hook: Callable[[], None]


class MaybeHooked(pydantic.BaseModel):
    hook: Callable[[], None] | None = None
    inner: Hooked | None = None


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Lines, "ends after one use; name it a list"),
        (dict[str, Lines], "ends after one use; name it a list"),
        (Hooked, "pydantic reads from no JSON"),
        (pydantic.SecretStr, "asterisks for a SecretStr; give it a PlainSerializer"),
        (dict[tuple[int, int], str], "JSON has no tuple for a key"),
        (set[list[int]], "a set cannot hold list, which has no hash"),
        (frozenset[User], "a frozenset cannot hold User, which has no hash"),
    ],
    ids=repr,
)
def test_what_no_value_fits_is_refused_at_decoration(kind, why):
    with pytest.raises(
        UsageError, match=f"parameter value is annotated with a type that cannot be .*: .*{why}"
    ):
        made(lambda_of(kind))


def test_what_some_value_fits_is_taken():
    handler = made(lambda_of(MaybeHooked))
    assert MaybeHooked() == handler.bind(handler.job(MaybeHooked()).payload)[1]["value"]


def test_what_is_refused_is_told_with_its_place_and_a_remedy():
    told = {
        ("Any", "User(name='Ada')"): "argument value is of type User and would arrive as dict; annotate it",
        ("dict[str, Any]", "{'a': [User(name='Ada')]}"): "argument value['a'][0] is of type User and would",
        ("list[Any]", "[(1, 2)]"): "argument value[0] is of type tuple and would arrive as list; annotate it",
        (
            "list[dict[str, Any]]",
            "[{'a': (1, 2)}]",
        ): "argument value[0]['a'] is of type tuple and would arrive",
        ("Any", "{1: 'a'}"): "argument value is of type dict and would arrive as a dict with other keys",
        ("User", "Admin(name='Ada', rights=['all'])"): "is of type Admin and would arrive as User",
        ("Login", "Login(password='x')"): "a SecretStr, for one, needs a serializer",
        ("dt.date | str", "'2030-01-02'"): "JSON says the same for a value of another type",
        ("'Nowhere'", "User(name='Ada')"): "annotated with what cannot be resolved (name 'Nowhere'",
        ("Strange", "Strange()"): "parameter value is annotated with a type that cannot be carried: Strange",
        ("typing.Annotated[int, Field(ge=0)]", "-7"): "value: Input should be greater than or equal to 0",
    }
    for (annotation, text), part in told.items():
        refused = carry(annotation, value_of(text)).refused
        assert part in refused
        assert "\n" not in refused


class Noted(pydantic.BaseModel):
    name: str = ""
    title: str = ""
    _note: str = pydantic.PrivateAttr(default="none")


def test_of_a_model_only_the_values_of_its_fields_arrive():
    given = Noted(name="Ada")
    given._note = "mine"
    handler = made(lambda_of(Noted))
    got = handler.bind(handler.job(given).payload)[1]["value"]
    assert ("Ada", "none", {"name", "title"}) == (got.name, got._note, got.model_fields_set)


def test_no_secret_is_told():
    refused = carry("Login", Login(password="hunter2")).refused
    assert refused
    assert "hunter2" not in refused
    with pytest.raises(UsageError) as told:
        made(lambda: None).binding.codec.encode(Login(password="hunter2"))
    assert "hunter2" not in str(told.value)


class Strict(pydantic.BaseModel, extra="forbid"):
    counts: dict[str, int] = {}
    by: dict[int, int] = {}
    kind: Literal["strict"] = "strict"


class Loose(pydantic.BaseModel):
    kind: Literal["loose"] = "loose"


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (Strict, '{"hunter2": 1}', "value: [...]: Extra inputs are not permitted"),
        (Strict, '{"counts": {"hunter2": "x"}}', "value: counts[...]: Input should be a valid integer"),
        (Strict, '{"by": {"hunter2": 1}}', "value: by[...].[key]: Input should be a valid integer"),
        (dict[str, Strict], '{"hunter2": {"by": 1}}', "value: [...].by: Input should be"),
        (list[Strict], '[{"kind": "hunter2"}]', "value: [0].kind: Input should be 'strict'"),
        (
            Annotated[Strict | Loose, pydantic.Field(discriminator="kind")],
            '{"kind": "hunter2"}',
            "value: Input tag is none of the expected tags",
        ),
        (Literal["a"], '"hunter2"', "Invalid enum value - at `$.value`"),
        (dict[str, int], '{"hunter2": "x"}', "Expected `int`, got `str` - at `$.value[...]`"),
        (int, '1, "hunter2": 2', "Object contains an unknown field; the handler takes value"),
    ],
)
def test_nothing_of_a_payload_is_told_neither_values_nor_keys(kind, value, says):
    with pytest.raises(Unreadable) as told:
        made(lambda_of(kind)).bind(b'{"value": %b}' % value.encode())
    assert says in str(told.value)
    assert "hunter2" not in str(told.value)


@dataclasses.dataclass
class Event:
    """
    A dataclass whose comparison leaves out a field.
    """

    number: int
    meta: Any = dataclasses.field(default=None, compare=False)


class ById:
    """
    A comparison by number only.
    """

    def __eq__(self, other):
        return isinstance(other, ById) and self.number == other.number

    __hash__ = None


@dataclasses.dataclass(eq=False)
class Order(ById):
    number: int
    extra: Any = None


@dataclasses.dataclass(eq=False)
class VipOrder(Order):
    discount: int = 0


@attrs.define(eq=False)
class AttrsOrder(ById):
    number: int
    extra: Any = None


class StructOrder(msgspec.Struct, eq=False):
    number: int
    extra: Any = None
    __eq__ = ById.__eq__
    __hash__ = None


class ModelOrder(ById, pydantic.BaseModel):
    number: int
    extra: Any = None


class VipModelOrder(ModelOrder):
    discount: int = 0


class On(enum.StrEnum):
    on = "on"


class Lit(enum.StrEnum):
    on = "on"


class Switch(pydantic.BaseModel):
    state: On | str


class Size(NamedTuple):
    w: int
    h: int
    extra: Any = None


class Place(NamedTuple):
    x: int
    y: int
    extra: Any = None


@dataclasses.dataclass(frozen=True)
class Tag:
    name: str
    extra: Any = dataclasses.field(default=None, compare=False)


DAY = date(2030, 1, 2)
Short = Annotated[str, pydantic.PlainSerializer(lambda text: text[:3])]
Rounded = Annotated[float, pydantic.PlainSerializer(lambda number: round(number, 1))]
Named = Annotated[int, pydantic.PlainSerializer(lambda number: f"number {number}")]
Doubled = Annotated[int, pydantic.AfterValidator(lambda number: number * 2)]

#: What would arrive as something that a comparison calls equal, or that is only of the same type.
UNEQUAL = [
    (Event, Event(1, User(name="Ada"))),
    (Event, Event(1, DAY)),
    (list[Event], [Event(1, DAY)]),
    (Order, Order(1, User(name="Ada"))),
    (Order, VipOrder(1, discount=50)),
    (dict[str, Order], {"a": VipOrder(1, discount=50)}),
    (AttrsOrder, AttrsOrder(1, DAY)),
    (StructOrder, StructOrder(1, DAY)),
    (ModelOrder, ModelOrder(number=1, extra=User(name="Ada"))),
    (ModelOrder, VipModelOrder(number=1, discount=50)),
    (On | Lit, Lit.on),
    (On | str, "on"),
    (On | str | User, On.on),
    (Switch, Switch(state=On.on)),
    (Size | Place, Place(3, 4)),
    (Place, Place(3, 4, DAY)),
    (set[int] | frozenset[int], frozenset({1})),
    (set[Tag], {Tag("a", DAY)}),
    (dict[On | Lit, int], {Lit.on: 1}),
    (dict[int, str], {True: "a"}),
    (int | User, True),
    (float, 2**53 + 1),
    (time, time(1, 2, tzinfo=ZoneInfo("Europe/Berlin"))),
    (User | dict[str, Any], {"name": "Ada", "more": 1}),
    (dict[str, Any] | User, {"name": "Ada", "more": 1}),
    (list[User | dict[str, Any]], [{"name": "Ada", "more": 1}]),
    (list[User] | list[dict[str, Any]], [{"name": "Ada", "more": 1}]),
    (Tag | dict[str, str], {"name": "Ada"}),
    (Tag | Mapping[str, str], {"name": "Ada"}),
    (Short, "abcdef"),
    (list[Short], ["abcdef"]),
    (Rounded, 9.99),
    (Named | str, 5),
    (Doubled, 10),
]


@pytest.mark.parametrize(("kind", "value"), UNEQUAL)
def test_a_value_that_only_seems_to_arrive_is_refused_as_an_argument_and_as_a_result(kind, value):
    fn = lambda_of(kind)
    fn.__annotations__["return"] = kind
    handler = made(fn)
    for send in (handler.job, handler.encode_result):
        with pytest.raises(UsageError, match=r"would arrive as|wrong arguments"):
            send(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Event, Event(1, {"a": [1, None]})),
        (Order, Order(1, "x")),
        (AttrsOrder, AttrsOrder(1, [2])),
        (ModelOrder, ModelOrder(number=1, extra={"a": 1})),
        (On | Lit | None, On.on),
        (set[Tag], {Tag("a", 1)}),
        (list[User] | dict[str, User], [{"name": "Ada"}]),
        (Short, "abc"),
        (Login, {"password": "x"}),
        (dict[str, Annotated[str, pydantic.StringConstraints(strip_whitespace=True)]], {"a": " x"}),
    ],
)
def test_a_value_that_arrives_in_all_its_parts_is_taken(kind, value):
    handler = made(lambda_of(kind))
    assert handler.job(value).payload


BERLIN = ZoneInfo("Europe/Berlin")
REPEATED = [datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1)]
SKIPPED = datetime(2030, 3, 31, 2, 30, tzinfo=BERLIN)


class Moment(datetime):
    """
    A datetime of a library's own.
    """


class Meeting(pydantic.BaseModel):
    at: datetime


@pytest.mark.parametrize("at", [*REPEATED, SKIPPED, datetime.min.replace(tzinfo=UTC)], ids=str)
def test_a_moment_within_a_change_of_the_clock_arrives(at):
    for kind, value in (
        (datetime, at),
        (list[datetime], [at]),
        (set[datetime], {at}),
        (dict[datetime, datetime], {at: at}),
        (datetime | date, at),
        (datetime, Moment.combine(at.date(), at.timetz()).replace(fold=at.fold)),
        (pydantic.AwareDatetime, at),
        (Meeting, Meeting(at=at)),
        (Meeting | None, Meeting(at=at)),
    ):
        fn = lambda_of(kind)
        fn.__annotations__["return"] = kind
        handler = made(fn)
        assert handler.encode_result(value)
        got = handler.bind(handler.job(value).payload)[1]["value"]
        while not isinstance(got, datetime):
            got = got.at if isinstance(got, Meeting) else next(iter(got))
        assert at.isoformat() == got.isoformat()


Number = TypeAliasType("Number", int)
Several = TypeAliasType("Several", list[T], type_params=(T,))
Plain = TypeAliasType("Plain", Annotated[int, pydantic.Field(ge=0)])


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        (Number, 1, "a"),
        (Number | None, 1, "a"),
        (list[Number], [1], ["a"]),
        (Several[int], [1], ["a"]),
        (dict[str, Several[Number]], {"a": [1]}, {"a": ["a"]}),
        (Plain, 1, -1),
        (Several[User], [User(name="Ada")], [1]),
    ],
    ids=str,
)
def test_an_alias_is_what_it_stands_for(kind, value, wrong):
    handler = made(lambda_of(kind))
    assert value == handler.bind(handler.job(value).payload)[1]["value"]
    with pytest.raises(UsageError, match="wrong arguments"):
        handler.job(wrong)


@attrs.define
class Private:
    _name: str


@attrs.define
class PartlyPrivate:
    name: str
    _seen: int = 0


def test_a_private_attribute_that_is_needed_is_refused_at_decoration():
    with pytest.raises(UsageError, match="Private needs its private attribute _name, which is not written"):
        made(lambda_of(Private))
    handler = made(lambda_of(PartlyPrivate))
    assert PartlyPrivate("a") == handler.bind(handler.job(PartlyPrivate("a")).payload)[1]["value"]
    with pytest.raises(UsageError, match=r"argument value\._seen is of type int and would arrive"):
        handler.job(PartlyPrivate("a", seen=1))


class Patch(msgspec.Struct):
    name: str | msgspec.UnsetType = msgspec.UNSET


@pytest.mark.parametrize("value", [Patch(), Patch("a")], ids=str)
def test_a_field_that_is_unset_stays_so(value):
    handler = made(lambda_of(Patch))
    assert value == handler.bind(handler.job(value).payload)[1]["value"]


class Recent(pydantic.BaseModel):
    names: collections.deque[str]


def test_a_deque_that_forgets_is_refused():
    handler = made(lambda_of(Recent))
    assert handler.job(Recent(names=collections.deque("ab"))).payload
    with pytest.raises(UsageError, match=r"argument value\.names is of type deque .*no maxlen: set it in"):
        handler.job(Recent(names=collections.deque("ab", maxlen=2)))


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (
            ModelOrder,
            ModelOrder(number=1, extra=(1, 2)),
            r"value\.extra is of type tuple and .* as list; annotate",
        ),
        (
            ModelOrder,
            ModelOrder(number=1, extra={"a": [DAY]}),
            r"value\.extra\['a'\]\[0\] is of type date and",
        ),
        (list[Order], [Order(1), Order(2, {1: 2})], r"value\[1\]\.extra is of type dict and .* other keys"),
        (tuple[int, Any], (1, (2, 3)), r"value\[1\] is of type tuple and would arrive as list"),
        (Place, Place(3, 4, DAY), r"value\.extra is of type date"),
        (
            ModelOrder,
            ModelOrder(number=1, extra=object()),
            r"'object'>, at payload\.value\.extra$",
        ),
        (Any, {"a": [1, object()]}, r"object has no form in JSON, at payload\.value\.a\[1\]$"),
    ],
)
def test_a_value_below_any_is_refused_with_its_place(kind, value, said):
    with pytest.raises(UsageError, match=said):
        made(lambda_of(kind)).job(value)


class Measured(pydantic.BaseModel):
    """
    A model whose numbers pydantic writes as constants, which are no JSON.
    """

    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
    value: float = 0
    note: str = "a, NaN"


class MeasuredAsText(Measured):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("within", [Measured, list[Measured], dict[str, Measured | None]], ids=str)
def test_a_number_that_json_lacks_is_refused_also_where_pydantic_writes_it(within, number):
    value = Measured(value=number)
    value = {Measured: value, list[Measured]: [value]}.get(within, {"a": value})
    fn = lambda_of(within)
    fn.__annotations__["return"] = within
    handler = made(fn)
    for send, place in ((handler.job, "argument value"), (handler.encode_result, "result")):
        with pytest.raises(
            UsageError, match=rf"values: {place} holds (NaN|-?Infinity), and JSON has no such.*strings"
        ):
            send(value)


def test_a_number_that_json_lacks_is_carried_as_text_where_pydantic_reads_that():
    handler = made(lambda_of(MeasuredAsText))
    sent = handler.job(MeasuredAsText(value=math.inf)).payload
    assert MeasuredAsText(value=math.inf) == handler.bind(sent)[1]["value"]


UNREADABLE = [
    "ipaddress.IPv4Address",
    "ipaddress.IPv6Network",
    "np.int64",
    "pd.Timestamp",
    "dt.date | dt.time",
    "OpenLogin",
    "pydantic.PositiveInt",
    "list[User]",
    "dict[str, User | Cat]",
]


@pytest.mark.parametrize("annotation", UNREADABLE)
@pytest.mark.parametrize("said", [b'"hunter2"', b'["hunter2"]', b'{"a":"hunter2"}'])
def test_what_cannot_be_read_is_not_repeated(annotation, said):
    with pytest.raises(Unreadable) as told:
        made(lambda_of(value_of(annotation))).bind(b'{"value":%s}' % said)
    assert "hunter2" not in str(told.value)


# -- annotations ------------------------------------------------------------------------------------------


def partly_known(user: User, other: "Imaginary", when: "datetime") -> "Imaginary": ...


def test_an_annotation_that_cannot_be_resolved_leaves_the_others_alone(caplog):
    handler = made(partly_known)
    user, noon = User(name="Ada", Id=7), datetime(2030, 1, 1, 12, tzinfo=UTC)
    _, got = handler.bind(handler.job(user, 5, noon).payload)
    assert {"user": user, "other": 5, "when": noon} == got
    told = [message.partition("(")[0] for message in sorted(caplog.messages)]
    assert [
        "handler of values: parameter other is annotated with what cannot be resolved ",
        "handler of values: the result is annotated with what cannot be resolved ",
    ] == told
    with pytest.raises(UsageError, match="argument other is of type User and would arrive as dict"):
        handler.job(user, user, noon)
    with pytest.raises(UsageError, match="wrong arguments"):
        handler.job(user, 5, "noon")


def test_classes_of_the_function_around_are_known():
    class Local(pydantic.BaseModel):
        x: int

    def fn(value: "Local") -> "Local": ...

    handler = made_here = Handlers().handler("values")(fn)
    assert Local(x=1) == handler.bind(handler.job(Local(x=1)).payload)[1]["value"]
    assert Local(x=1) == made_here.binding.decode_result(b'{"x":1}')


def test_the_type_parameters_of_a_function_are_known_by_their_names():
    N = TypeVar("N", bound=User)

    def fn(value: "N") -> "list[N]": ...

    fn.__type_params__ = (N,)  # as `def fn[N: User](…)` has them, from Python 3.12 on
    made_elsewhere = Binding(fn, "values")
    assert {"value": User(name="Ada")} == made_elsewhere.bind(b'{"value":{"name":"Ada"}}')[1]
    assert [User(name="Ada")] == made_elsewhere.decode_result(b'[{"name":"Ada"}]')


def test_an_instance_of_a_class_that_was_defined_again_is_told_from_that_of_the_handler():
    def cell(**fields):
        return pydantic.create_model("Local", __module__=__name__, **fields)

    handler = made(lambda_of(cell(x=(int, ...))))
    for again in (cell(x=(int, ...))(x=1), cell(x=(int, ...), y=(int, 2))(x=1), cell(y=(int, ...))(y=1)):
        with pytest.raises(
            UsageError, match=r"argument value is of type Local, which was defined again after"
        ):
            handler.job(again)


@pytest.mark.parametrize("kind", [datetime, Any, list[datetime], set[datetime]], ids=str)
def test_the_second_of_two_equal_times_needs_a_timezone(kind):
    second = datetime(2030, 10, 27, 2, 30, fold=1)  # noqa: DTZ001
    value = [second] if kind == list[datetime] else {second} if kind == set[datetime] else second
    with pytest.raises(UsageError, match="would arrive as"):
        made(lambda_of(kind)).job(value)


def test_what_the_second_of_two_equal_times_needs_is_told():
    with pytest.raises(UsageError, match="JSON has no fold: give it a timezone"):
        made(lambda_of(time)).job(time(2, 30, fold=1))


def holds_later(value: "list[LaterModel]"): ...


class LaterModel(pydantic.BaseModel):
    x: int


class Incomplete(pydantic.BaseModel):
    inner: "NotYet"  # noqa: F821  # said below


def test_a_model_may_be_completed_later():
    handler = made(holds_later)
    assert [LaterModel(x=1)] == handler.bind(handler.job([LaterModel(x=1)]).payload)[1]["value"]

    def fn(value: Incomplete): ...

    handler = made(fn)
    with pytest.raises(Unreadable):
        handler.bind(b'{"value":{"inner":{"x":1}}}')
    Incomplete.model_rebuild(_types_namespace={"NotYet": LaterModel})
    handler = made(fn)
    assert LaterModel(x=1) == handler.bind(b'{"value":{"inner":{"x":1}}}')[1]["value"].inner


def test_what_cannot_be_carried_may_be_left_out_where_there_is_a_default():
    def fn(number: int, strange: Strange | None = None, other: Strange = Strange()): ...  # noqa: B008

    handler = made(fn)
    assert {"number": 1} == handler.bind(handler.job(1).payload)[1]
    assert {"number": 1, "strange": None} == handler.bind(handler.job(1, None).payload)[1]
    for wrong in ({"other": {}}, {"other": Strange()}, {"strange": {}}):
        with pytest.raises(UsageError, match=r"has no form in JSON|cannot be read"):
            handler.job(1, **wrong)


def test_models_are_read_in_keyword_arguments_and_as_the_single_argument():
    def fn(first: User, second: int = 1, **rest: User): ...

    handler = made(fn)
    ada, bob = User(name="Ada"), User(name="Bob")
    assert {"first": ada, "other": bob} == handler.bind(handler.job(ada, other=bob).payload)[1]
    with pytest.raises(UsageError, match="argument other is of type Admin"):
        handler.job(ada, other=Admin(name="Eve", rights=["all"]))
    assert {"value": ada} == made(lambda_of(User)).bind(b'{"value":{"name":"Ada"}}')[1]
    assert (([ada],), {}) == made(lambda_of(list[User])).bind(b'[{"name":"Ada"}]')


class Grouped(annotated_types.GroupedMetadata):
    def __iter__(self):
        yield annotated_types.Ge(0)


class ByShape:
    __is_annotated_types_grouped_metadata__ = True

    def __iter__(self):
        yield annotated_types.Ge(0)


@pytest.mark.parametrize("constraint", [Grouped(), ByShape()], ids=lambda each: type(each).__name__)
def test_constraints_of_the_users_own_classes_are_checked(constraint):
    handler = made(lambda_of(Annotated[int, constraint]))
    assert {"value": 0} == handler.bind(handler.job(0).payload)[1]
    with pytest.raises(UsageError, match="greater than or equal to 0"):
        handler.job(-1)


FROM_ZERO = Annotated[int, msgspec.Meta(ge=0)]


@dataclasses.dataclass
class Sold:
    count: FROM_ZERO
    user: User


@pytest.mark.parametrize("kind", [Sold, FROM_ZERO | User, tuple[User, FROM_ZERO]], ids=str)
def test_a_constraint_of_msgspec_that_pydantic_would_pass_over_is_refused(kind):
    with pytest.raises(UsageError, match=r"parameter value .* does not check a msgspec.Meta; say it with"):
        made(lambda_of(kind))
    made(lambda_of(dict[str, FROM_ZERO]))
    made(lambda_of(User | Annotated[int, msgspec.Meta(description="of units")]))


class Shelf(msgspec.Struct):
    count: Annotated[int, pydantic.Field(ge=0)]


@pytest.mark.parametrize("kind", [Shelf, list[Shelf | None], Annotated[Money, pydantic.Field(ge=0)]], ids=str)
def test_a_constraint_of_pydantic_that_msgspec_would_pass_over_is_refused(kind):
    with pytest.raises(UsageError, match=r"parameter value .* does not check a Field; say it with msgspec"):
        made(lambda_of(kind), codec=CODEC)
    made(lambda_of(Annotated[Money, pydantic.Field(description="in cents")]), codec=CODEC)


def lambda_of(kind):
    def fn(value): ...

    fn.__annotations__ = {"value": kind}
    return fn


def test_a_request_is_told_which_field_is_wrong_and_not_what_was_sent():
    def fn(user: User, count: Annotated[int, pydantic.Field(ge=0)], users: list[User]) -> User | Cat: ...

    body = RequestBody(made(fn).binding)
    for said, field, detail in (
        (b'{"user":{"name":"Ada"},"count":-1,"users":[]}', "count", "greater than or equal to 0"),
        (b'{"user":{"name":["hunter2"]},"count":1,"users":[]}', "user.name", "valid string"),
        (b'{"user":{"name":"Ada"},"count":1,"users":[{}]}', "users[0].name", "Field required"),
    ):
        with pytest.raises(Problem) as told:
            body.read(said)
        assert (field, True) == (told.value.field, told.value.detail.startswith(f"{field}: "))
        assert detail in told.value.detail
        assert "hunter2" not in told.value.detail
    schema = schema_of(made(fn).binding.returns())
    assert ["User", "Cat"] == [each["title"] for each in schema["anyOf"]]


# -- results ----------------------------------------------------------------------------------------------


def gives_user() -> User: ...


def gives_user_or_waits() -> User | Snooze | Bury: ...


def gives_later() -> Awaitable[User]: ...


def gives_anything(): ...


@pytest.mark.parametrize("fn", [gives_user, gives_user_or_waits, gives_later])
def test_a_result_is_read_as_what_the_handler_returns(fn):
    assert User(name="Ada", Id=7) == returned(fn, User(name="Ada", Id=7))
    assert User(name="Ada", Id=7) == returned(fn, {"name": "Ada", "Id": 7})


@pytest.mark.parametrize(
    ("fn", "value"),
    [
        (gives_user, Admin(name="Ada", rights=["all"])),
        (gives_user, Parcel("book", date(2030, 1, 2))),
        (gives_user, Cat()),
        (gives_anything, User(name="Ada")),
        (gives_anything, {"users": [User(name="Ada")]}),
        (gives_anything, (1, 2)),
        (gives_anything, date(2030, 1, 2)),
        (gives_anything, Money(5)),
    ],
)
def test_a_result_that_would_come_back_as_something_else_is_refused(fn, value):
    with pytest.raises(UsageError, match="result"):
        returned(fn, value)


def test_a_result_that_contradicts_its_handler_is_told_to_the_caller_and_not_to_the_worker():
    handler = made(gives_user)
    for value in ({"nome": "Ada"}, 5, [1]):
        data = handler.encode_result(value)
        assert value == decode(data)
        with pytest.raises(Unreadable, match="the result of values is not what its handler says it returns"):
            handler.binding.decode_result(data)


def gives_user_or_none() -> User | None: ...


def gives_none() -> None: ...


def test_none_is_a_result_where_the_handler_says_so_and_is_told_to_the_caller_otherwise():
    app = Duly()
    app.handler("user")(gives_user)
    with pytest.raises(Unreadable, match="the result of user is not what its handler says it returns"):
        app.read_result("user", b"")
    for fn in (gives_user_or_none, gives_none, gives_anything):
        app.handler(fn.__name__)(fn)
        assert None is app.read_result(fn.__name__, b"")
    assert None is app.read_result("unknown", b"")


# -- the codec --------------------------------------------------------------------------------------------


class Plain:
    """
    A class without a comparison of its own.
    """

    def __init__(self, x):
        self.x = x


def test_a_registered_class_needs_no_comparison():
    codec = Codec()
    codec.register(Plain, encode=lambda plain: {"x": plain.x}, decode=lambda said: Plain(said["x"]))
    handler = made(lambda_of(list[Plain]), codec=codec)
    [plain] = handler.bind(handler.job([Plain(3)]).payload)[1]["value"]
    assert (Plain, 3) == (type(plain), plain.x)
    codec.register(Plain, encode=lambda plain: plain.x, decode=lambda said: Plain(said + 1))
    with pytest.raises(UsageError, match=r"argument value\[0\] is of type Plain and would arrive as another"):
        handler.job([Plain(3)])


def test_a_registered_form_comes_before_that_of_pydantic():
    codec = Codec()
    secret = pydantic.SecretStr
    codec.register(secret, encode=lambda value: value.get_secret_value(), decode=secret)
    handler = made(lambda_of(dict[str, secret] | None), codec=codec)
    assert {"a": secret("x")} == handler.bind(handler.job({"a": secret("x")}).payload)[1]["value"]


def test_apps_share_a_codec_or_have_their_own(tmp_path):
    codec = Codec()
    first, second, third = (
        Duly(data=tmp_path, codec=codec),
        Duly(data=tmp_path, codec=codec),
        Duly(data=tmp_path),
    )
    assert first.codec is codec is second.codec is not third.codec
    first.codec.register(Strange, encode=lambda _: "strange", decode=lambda _: Strange())
    second.handler("strange")(lambda_of(Strange))
    with pytest.raises(UsageError, match="register it first"):
        third.handler("strange")(lambda_of(Strange))
    with pytest.raises(UsageError, match=r"codec must be a duly\.Codec"):
        Duly(codec=decode)


@dataclasses.dataclass
class Cents:
    amount: int


@attrs.define
class Pence:
    amount: int


class Rows(list):
    pass


@pytest.mark.parametrize(
    "kind",
    [Cents, Pence, StructOrder, Colour, date, datetime, Decimal, UUID, bytes, set, tuple, Place, Rows],
)
def test_a_type_that_msgspec_writes_by_itself_is_not_registered(kind):
    with pytest.raises(UsageError, match=r"encode would not be called; register a plain class, or annotate"):
        Codec().register(kind, encode=str, decode=kind)


def test_another_form_of_such_a_type_is_said_with_pydantic():
    kind = Annotated[
        Cents,
        pydantic.PlainSerializer(lambda cents: cents.amount),
        pydantic.PlainValidator(Cents),
    ]
    handler = made(lambda_of(list[kind]))
    job = handler.job([Cents(5)])
    assert b'{"value":[5]}' == job.payload
    assert [Cents(5)] == handler.bind(job.payload)[1]["value"]


@pytest.mark.parametrize(
    ("kind", "options"), [(dict, {}), (str, {}), (list[int], {}), (Strange, {"encode": 5})]
)
def test_a_registration_that_makes_no_sense_is_refused(kind, options):
    with pytest.raises(UsageError):
        Codec().register(kind, **({"encode": str, "decode": str} | options))


def test_values_whose_meaning_is_clear_are_written_by_name_too():
    values = [Path("/tmp/a"), ipaddress.ip_address("192.0.2.1"), User(name="Ada", Id=7)]
    assert ["/tmp/a", "192.0.2.1", {"name": "Ada", "Id": 7}] == decode(Codec().encode(values))


@pytest.mark.parametrize("value", [User(name="Ada"), date(2030, 1, 2), (1, 2), {1: "a"}, [User(name="Ada")]])
def test_a_context_holds_what_json_has(value):
    job = made(gives_anything).job().options(context={"tenant": "acme", "odd": value})
    with pytest.raises(UsageError, match=r"must hold what JSON has, and .odd. would arrive as something"):
        job.order(Limits())


@pytest.mark.parametrize("action", ["always", "error"])
def test_what_is_wrong_in_a_model_is_told_without_its_value(action):
    wrong = User(name="Ada")
    wrong.id = "hunter2"
    handler = made(lambda user: user)

    def kept(user: User) -> User: ...

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter(action)
        for refuse in (
            lambda: handler.job(wrong),
            lambda: handler.encode_result(wrong),
            lambda: made(kept).job(wrong),
            lambda: made(kept).encode_result(wrong),
        ):
            with pytest.raises(UsageError, match="Id: Input should be a valid integer") as refused:
                refuse()
            assert "hunter2" not in str(refused.value)
    assert [] == warned


# -- decorators -------------------------------------------------------------------------------------------


def counted(fn: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """
    The common typed decorator: a plain function that returns what is to be awaited.
    """

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return fn(*args, **kwargs)

    return wrapper


async def greet(name: str) -> str:
    return f"hello {name}"


def later(name: str) -> Awaitable[str]:
    return greet(name)


class Greeter:
    async def __call__(self, name: str) -> str:
        return await greet(name)

    async def greet(self, name: str) -> str:
        return await greet(name)

    def say(self, name: str) -> str:
        return name

    @classmethod
    async def of(cls, name: str) -> str:
        return await greet(name)

    @staticmethod
    async def plainly(name: str) -> str:
        return await greet(name)


@pytest.mark.parametrize(
    ("place", "fn"),
    [
        ("thread", counted(greet)),
        ("thread", counted(counted(greet))),
        ("thread", functools.partial(counted(greet))),
        ("thread", counted(functools.partial(greet))),
        ("loop", later),
        ("loop", Greeter()),
        ("loop", Greeter().greet),
        ("loop", Greeter.of),
        ("loop", Greeter.plainly),
        ("loop", made(greet)),
    ],
)
def test_what_returns_an_awaitable_is_an_async_handler_with_the_types_of_its_function(place, fn):
    handler = made(fn)
    assert (AsyncHandler, place) == (type(handler), handler.run_in)
    assert "hello Ada" == asyncio.run(handler("Ada"))
    assert {"name": "Ada"} == handler.bind(handler.job("Ada").payload)[1]
    with pytest.raises(UsageError, match="Expected `str`, got `int`"):
        handler.job(5)
    assert str is handler.binding.returns()


def test_a_plain_wrapper_may_run_anywhere_and_an_async_function_on_the_loop_only():
    for place in ("loop", "thread", "process"):
        assert place == made(counted(greet), run_in=place).run_in
    for fn in (greet, later):
        with pytest.raises(UsageError, match="an async def runs on the event loop"):
            made(fn, run_in="thread")


def test_a_wrapper_that_runs_a_loop_of_its_own_is_called_as_it_is():
    @functools.wraps(greet)
    def blocking(name: str) -> str:
        return asyncio.run(greet(name))

    assert "hello Ada" == made(blocking)("Ada")


def test_one_function_serves_several_topics():
    handlers = Handlers()
    first = handlers.handler("first")(greet)
    second = handlers.handler("second")(first)
    assert (greet, greet) == (first.fn, second.fn)
    assert ["first", "second"] == handlers.topics()


class Counted:
    """
    A decorator that is a class.
    """

    def __init__(self, fn):
        functools.update_wrapper(self, fn)
        self.fn = fn

    def __call__(self, *args, **kwargs):
        return self.fn(*args, **kwargs)


@pytest.mark.parametrize(
    "fn",
    [
        Greeter.greet,
        Greeter.say,
        counted(Greeter.greet),
        functools.cache(Greeter.say),
        functools.lru_cache(maxsize=5)(Greeter.say),
        functools.lru_cache(counted(Greeter.say)),
        counted(functools.cache(Greeter.say)),
        Counted(Greeter.say),
        Counted(functools.cache(Greeter.greet)),
        functools.partial(Greeter.say, name="Ada"),
        functools.partial(functools.cache(Greeter.say)),
    ],
)
def test_a_method_is_refused_whatever_is_put_around_it(fn):
    with pytest.raises(UsageError, match=r"Greeter\.\w+ is a method, and its first argument cannot be sent"):
        made(fn)


@pytest.mark.parametrize(
    "fn",
    [
        functools.cache(Greeter().say),
        Counted(Greeter().say),
        counted(Greeter().say),
        functools.partial(Greeter.say, Greeter()),
        functools.cache(functools.partial(Greeter.say, Greeter())),
        functools.cache(staticmethod(Greeter.plainly)),
        staticmethod(Counted(Greeter.plainly)),
    ],
)
def test_a_method_whose_first_argument_is_given_is_a_handler_whatever_is_put_around_it(fn):
    assert b'{"name":"Ada"}' == made(fn).job("Ada").payload


def test_methods_are_refused_in_the_body_of_their_class():
    handlers = Handlers()
    with pytest.raises(UsageError, match="is a method"):

        class Service:
            @handlers.handler("a")
            async def run(self, x: int) -> None: ...

    with pytest.raises(UsageError, match="is a method"):

        class Odd:
            @handlers.handler("a")
            async def run(this, x: int) -> None: ...  # noqa: N805  # as some write it

    with pytest.raises(UsageError, match="it is a classmethod"):

        class Other:
            @handlers.handler("a")
            @classmethod
            async def run(cls, x: int) -> None: ...

    class Fine:
        @handlers.handler("a")
        @staticmethod
        async def outer(x: int) -> None: ...

        @staticmethod
        @handlers.handler("b")
        async def inner(x: int) -> None: ...

        @staticmethod
        @handlers.handler("c")
        async def bare(x): ...

        @handlers.handler("d")
        @functools.cache
        @staticmethod
        def half(x, y: int = 0): ...

    found = (Fine.outer, Fine.inner, Fine.bare, Fine.half)
    assert [b'{"x":1}'] * 4 == [each.job(1).payload for each in found]


def test_the_first_argument_of_a_method_without_annotations_may_have_another_name():
    # It looks as a staticmethod does.
    class Odd:
        @Handlers().handler("a")
        def run(this, x): ...  # noqa: N805  # as some write it

    assert b'{"this":1,"x":2}' == Odd.run.job(1, 2).payload


def test_a_plain_function_stays_plain():
    assert isinstance(made(Greeter().say), SyncHandler)
    assert not is_async(functools.wraps(Greeter.say)(lambda name: name))


def test_middleware_may_be_a_wrapper_of_an_async_function(tmp_path):
    app = Duly(data=tmp_path)

    async def around(job: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return await call_next()

    app.around_handler(counted(around))
    with pytest.raises(UsageError, match="takes an async function"):
        app.around_handler(lambda job, call_next: None)
