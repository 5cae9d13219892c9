"""
What becomes of values on their way: an annotation and a value, and what both ends get.
"""

# ruff: noqa: F401, TC003  # the rows use all of these names

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import pathlib
import re
import typing
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import attrs
import msgspec
import numpy as np
import pandas as pd
import pydantic
from django.utils.functional import lazystr
from django.utils.safestring import SafeString
from markupsafe import Markup
from pydantic import Field

from duly import UsageError
from duly.codec import Codec
from duly.handlers import Handlers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.docs.reference import Table


class User(pydantic.BaseModel):
    """
    A model of pydantic, with an alias and a constraint.
    """

    name: str
    id: int = Field(1, alias="Id", ge=0)


class Admin(User):
    rights: list[str] = []


class Cat(pydantic.BaseModel):
    kind: typing.Literal["cat"] = "cat"
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: typing.Literal["dog"] = "dog"
    tricks: int = 0


Pet = typing.Annotated[Cat | Dog, Field(discriminator="kind")]


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class OpenLogin(Login):
    @pydantic.field_serializer("password")
    def reveal(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


@dataclasses.dataclass
class Parcel:
    name: str
    sent: dt.date


@dataclasses.dataclass
class Letter:
    sender: User


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


class Pair(NamedTuple):
    left: int
    right: str


class Movie(typing.TypedDict):
    title: str
    seen: dt.date


class Colour(enum.Enum):
    red = "r"


class Level(enum.IntEnum):
    low = 1


Masked = typing.Annotated[str, pydantic.PlainSerializer(lambda text: "*" * len(text))]


class Money:
    """
    A class that nothing is known of before it is registered.
    """

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and self.cents == other.cents

    def __hash__(self) -> int:
        return hash(self.cents)

    def __repr__(self) -> str:
        return f"Money({self.cents})"


class Strange:
    """
    A class that nothing is known of.
    """

    def __repr__(self) -> str:
        return "Strange()"


@pydantic.dataclasses.dataclass
class Address:
    """
    A dataclass of pydantic.
    """

    street: str
    since: dt.date


@pydantic.dataclasses.dataclass(config={"extra": "allow"})
class OpenAddress:
    street: str


@pydantic.dataclasses.dataclass
class Priced:
    cents: int
    rate: dataclasses.InitVar[int] = 0

    def __post_init__(self, rate: int) -> None:
        self.total = self.cents + rate


class Tags(pydantic.RootModel[list[str]]):
    """
    A model that is written as a list.
    """


T = typing.TypeVar("T")


class Page(pydantic.BaseModel, typing.Generic[T]):
    items: list[T]


class Note(pydantic.BaseModel, extra="allow"):
    text: str


class DatedNote(Note):
    __pydantic_extra__: dict[str, dt.date]


class Square(pydantic.BaseModel, extra="forbid"):
    side: int

    @pydantic.computed_field
    @property
    def area(self) -> int:
        return self.side**2


class Renamed(pydantic.BaseModel):
    name: str = Field("", validation_alias="read", serialization_alias="written")


class Aliased(pydantic.BaseModel):
    name: str = Field("", validation_alias=pydantic.AliasChoices("a", "b"), serialization_alias="b")


class Hidden(pydantic.BaseModel):
    name: str
    note: str = Field("", exclude=True)


@attrs.define
class Box:
    """
    A class of attrs, with a private attribute.
    """

    name: str
    sent: dt.date
    _seal: str = "none"


#: What becomes of a value of the table, said in each row.
CARRIED, REFUSED = "carried", "refused"

UserId = typing.NewType("UserId", int)

_MODULES = re.compile(
    r"\b(?:collections\.abc|collections|datetime|decimal|dt|ipaddress|pathlib|pydantic|typing|uuid)\."
)

CODEC = Codec()
CODEC.register(Money, encode=lambda money: money.cents, decode=Money)

#: Annotation and value: both ends get an equal value of the same type, or the value is refused.
EXACT = [
    ("int", "7", CARRIED),
    ("int", "True", REFUSED),
    ("int", "2**70", CARRIED),
    ("str", "'ä'", CARRIED),
    ("float", "0.1", CARRIED),
    ("float", "float('nan')", REFUSED),
    ("bool", "True", CARRIED),
    ("bytes", "b'\\x00\\xff'", CARRIED),
    ("None", "None", CARRIED),
    ("Any", "{'a': [1, None, 'x', 1.5]}", CARRIED),
    ("Any", "(1, 2)", REFUSED),
    ("list[Any]", "[(1, 2)]", REFUSED),
    ("list", "[(1, 2)]", REFUSED),
    ("Any", "{1: 'a'}", REFUSED),
    ("Any", "dt.date(2030, 1, 2)", REFUSED),
    ("Any", "User(name='Ada')", REFUSED),
    ("Any", "Parcel('book', dt.date(2030, 1, 2))", REFUSED),
    ("list[int]", "[1, 2]", CARRIED),
    ("tuple[int, str]", "(1, 'a')", CARRIED),
    ("list[int] | tuple[int, ...]", "(1, 2)", REFUSED),
    ("collections.abc.Iterable[int]", "[1, 2]", CARRIED),
    ("collections.abc.Iterable[User]", "[User(name='Ada')]", CARRIED),
    ("collections.abc.Iterable[User]", "[Admin(name='Ada', rights=['all'])]", REFUSED),
    ("collections.abc.Collection[User]", "[User(name='Ada')]", CARRIED),
    ("dict[str, collections.abc.Iterable[User]]", "{'a': [User(name='Ada')]}", CARRIED),
    ("collections.abc.Iterator[User]", "[User(name='Ada')]", REFUSED),
    ("collections.abc.Generator[User, None, None]", "[User(name='Ada')]", REFUSED),
    ("typing.Callable[[], int]", "7", REFUSED),
    ("set[str]", "{'a'}", CARRIED),
    ("frozenset[int]", "frozenset({1})", CARRIED),
    ("set[int] | frozenset[int]", "frozenset({1})", REFUSED),
    ("dict[int, str]", "{1: 'a'}", CARRIED),
    ("dict[uuid.UUID, dt.date]", "{uuid.UUID(int=1): dt.date(2030, 1, 2)}", CARRIED),
    ("dict[str, Any]", "{'user': User(name='Ada')}", REFUSED),
    ("dict[str, User]", "{'user': User(name='Ada')}", CARRIED),
    ("collections.deque[int]", "collections.deque([1])", REFUSED),
    ("dt.datetime", "dt.datetime(2030, 1, 2, 3, 4, 5, 6)", CARRIED),
    ("dt.datetime", "dt.datetime(2030, 10, 27, 2, 30, fold=1)", REFUSED),
    ("dt.time", "dt.time(2, 30, fold=1)", REFUSED),
    ("dt.datetime", "dt.datetime(2030, 1, 2, tzinfo=dt.UTC)", CARRIED),
    ("dt.datetime", "dt.datetime(2030, 1, 2, tzinfo=ZoneInfo('Europe/Berlin'))", CARRIED),
    ("dt.date", "dt.date(2030, 1, 2)", CARRIED),
    ("dt.time", "dt.time(12, 30)", CARRIED),
    ("dt.time", "dt.time(12, 30, tzinfo=ZoneInfo('Europe/Berlin'))", REFUSED),
    ("dt.timedelta", "dt.timedelta(hours=1, microseconds=5)", CARRIED),
    ("dt.datetime | dt.date", "dt.datetime(2030, 1, 2)", CARRIED),
    ("dt.datetime | dt.date", "dt.date(2030, 1, 2)", CARRIED),
    ("list[dt.datetime | dt.date]", "[dt.date(2030, 1, 2), dt.datetime(2030, 1, 2)]", CARRIED),
    ("dt.date | str", "dt.date(2030, 1, 2)", CARRIED),
    ("dt.date | str", "'tomorrow'", CARRIED),
    ("dt.date | str", "'2030-01-02'", REFUSED),
    ("decimal.Decimal", "decimal.Decimal('1.50')", CARRIED),
    ("uuid.UUID", "uuid.UUID(int=1)", CARRIED),
    ("uuid.UUID | int", "7", CARRIED),
    ("uuid.UUID | str", "uuid.UUID(int=1)", CARRIED),
    ("Colour", "Colour.red", CARRIED),
    ("Colour | str", "Colour.red", CARRIED),
    ("Colour | str", "'blue'", CARRIED),
    ("Level", "Level.low", CARRIED),
    ("Level | int", "1", REFUSED),
    ("typing.Literal['a', 'b']", "'a'", CARRIED),
    ("typing.Literal['a', 'b']", "'c'", REFUSED),
    ("UserId", "UserId(7)", CARRIED),
    ("typing.Annotated[int, msgspec.Meta(ge=0)]", "7", CARRIED),
    ("typing.Annotated[int, msgspec.Meta(ge=0)]", "-7", REFUSED),
    ("pathlib.Path", "pathlib.Path('/tmp/a')", CARRIED),
    ("pathlib.Path | None", "None", CARRIED),
    ("ipaddress.IPv4Address", "ipaddress.IPv4Address('192.0.2.1')", CARRIED),
    ("ipaddress.IPv4Address | ipaddress.IPv6Address", "ipaddress.IPv6Address('2001:db8::1')", CARRIED),
    ("ipaddress.IPv4Network", "ipaddress.IPv4Network('192.0.2.0/24')", CARRIED),
    ("Markup", "Markup('<b>')", CARRIED),
    ("np.int64", "np.int64(7)", CARRIED),
    ("pd.Timestamp", "pd.Timestamp('2030-01-02T03:04:05.123456789')", CARRIED),
    ("Parcel", "Parcel('book', dt.date(2030, 1, 2))", CARRIED),
    ("Parcel | str", "Parcel('book', dt.date(2030, 1, 2))", CARRIED),
    ("Parcel | Point", "Parcel('book', dt.date(2030, 1, 2))", CARRIED),
    ("Parcel | Point", "Point(1)", CARRIED),
    ("Letter", "Letter(User(name='Ada'))", CARRIED),
    ("Point", "Point(1, 2.5)", CARRIED),
    ("Pair", "Pair(1, 'a')", CARRIED),
    ("Movie", "{'title': 'Ran', 'seen': dt.date(2030, 1, 2)}", CARRIED),
    ("User", "User(name='Ada', Id=7)", CARRIED),
    ("User", "Admin(name='Ada', rights=['all'])", REFUSED),
    ("User | None", "User(name='Ada')", CARRIED),
    ("User | None", "None", CARRIED),
    ("User | str", "User(name='Ada')", CARRIED),
    ("User | str", "'Ada'", CARRIED),
    ("User | Parcel", "User(name='Ada')", CARRIED),
    ("User | Parcel", "Parcel('book', dt.date(2030, 1, 2))", CARRIED),
    ("User | dict[str, int]", "{'a': 1}", CARRIED),
    ("User | dict[str, Any]", "{'name': 'Ada', 'more': 1}", REFUSED),
    ("list[User]", "[User(name='Ada')]", CARRIED),
    ("list[User | dt.date]", "[User(name='Ada'), dt.date(2030, 1, 2)]", CARRIED),
    ("Cat | Dog", "Dog(tricks=2)", CARRIED),
    ("Pet", "Cat(lives=3)", CARRIED),
    ("list[Pet]", "[Cat(), Dog()]", CARRIED),
    ("typing.Annotated[int, Field(ge=0)]", "7", CARRIED),
    ("typing.Annotated[int, Field(ge=0)]", "-7", REFUSED),
    ("pydantic.PositiveInt", "0", REFUSED),
    ("Masked", "'hunter2'", REFUSED),
    ("pydantic.HttpUrl", "pydantic.HttpUrl('https://example.org/')", CARRIED),
    ("pydantic.SecretStr", "pydantic.SecretStr('x')", REFUSED),
    ("Login", "Login(password='x')", REFUSED),
    ("OpenLogin", "OpenLogin(password='x')", CARRIED),
    ("Address", "Address('Main St', dt.date(2030, 1, 2))", CARRIED),
    ("OpenAddress", "OpenAddress('Main St')", CARRIED),
    ("OpenAddress", "OpenAddress('Main St', floor=2)", REFUSED),
    ("OpenAddress", "OpenAddress('Main St', floor=None)", REFUSED),
    ("Priced", "Priced(5)", CARRIED),
    ("Priced", "Priced(5, 2)", REFUSED),
    ("Tags", "Tags(['a'])", CARRIED),
    ("Tags | list[str]", "['a']", REFUSED),
    ("Page[User]", "Page[User](items=[User(name='Ada')])", CARRIED),
    ("Page[int]", "Page(items=[1])", REFUSED),
    ("Page", "Page(items=[dt.date(2030, 1, 2)])", REFUSED),
    ("Note", "Note(text='a', more=1)", CARRIED),
    ("Note", "Note(text='a', at=dt.date(2030, 1, 2))", REFUSED),
    ("DatedNote", "DatedNote(text='a', at=dt.date(2030, 1, 2))", CARRIED),
    ("Square", "Square(side=2)", CARRIED),
    ("Renamed", "Renamed(read='Ada')", REFUSED),
    ("Aliased", "Aliased(a='Ada')", CARRIED),
    ("Hidden", "Hidden(name='Ada', note='mine')", REFUSED),
    ("Box", "Box('book', dt.date(2030, 1, 2))", CARRIED),
    ("Box", "Box('book', dt.date(2030, 1, 2), 'wax')", REFUSED),
    ("Box | str", "Box('book', dt.date(2030, 1, 2))", CARRIED),
    ("Money", "Money(5)", CARRIED),
    ("list[Money]", "[Money(5)]", CARRIED),
    ("User | Money", "Money(5)", CARRIED),
    ("Strange", "Strange()", REFUSED),
    ("Strange | int", "7", CARRIED),
    ("Strange | int", "Strange()", REFUSED),
    ("str", "uuid.UUID(int=1)", REFUSED),
    ("dict", "User(name='Ada')", REFUSED),
    ("'Nowhere'", "[1]", CARRIED),
    ("'Nowhere'", "User(name='Ada')", REFUSED),
]

#: Values of another type than the annotation's, whose meaning is clear: both ends get the annotation's type.
READ = [
    ("float", "7", CARRIED),
    ("dt.datetime", "'2030-01-02T00:00:00Z'", CARRIED),
    ("uuid.UUID", "'00000000-0000-0000-0000-000000000001'", CARRIED),
    ("list[int]", "(1, 2)", CARRIED),
    ("collections.abc.Sequence[int]", "(1, 2)", CARRIED),
    ("dict[str, int]", "collections.Counter('aab')", CARRIED),
    ("Parcel", "{'name': 'book', 'sent': '2030-01-02'}", CARRIED),
    ("User", "{'name': 'Ada', 'Id': 7}", CARRIED),
    ("typing.Annotated[str, pydantic.StringConstraints(to_lower=True)]", "'Ada'", CARRIED),
    ("Address", "{'street': 'Main St', 'since': '2030-01-02'}", CARRIED),
    ("Tags", "['a']", CARRIED),
    ("str", "SafeString('<b>')", CARRIED),
    ("str", "Markup('<b>')", CARRIED),
    ("str", "lazystr('hello')", CARRIED),
    ("Any", "SafeString('<b>')", CARRIED),
    ("Any", "Level.low", CARRIED),
    ("int", "np.int64(7)", CARRIED),
    ("float", "np.float32(0.5)", CARRIED),
    ("bool", "np.True_", CARRIED),
    ("dt.datetime", "pd.Timestamp('2030-01-02T03:04:05.123456')", CARRIED),
    ("dt.datetime", "pd.Timestamp('2030-01-02T03:04:05.123456789')", REFUSED),
    ("str", "pathlib.Path('/tmp/a')", REFUSED),
]


class Carried(NamedTuple):
    """
    What became of a value: at the handler, and at the caller that waits for the result.
    """

    refused: str = ""  #: where, and why
    got: Any = None
    back: Any = None


def carry(annotation: str, value: Any) -> Carried:
    """
    Send a value to a handler with this annotation, which returns it.
    """

    def fn(value):
        return value

    fn.__annotations__ = {"value": annotation, "return": annotation}
    try:
        handler = Handlers(codec=CODEC).handler("values")(fn)
    except UsageError as error:
        return Carried(f"at decoration: {error}")
    try:
        payload = handler.job(value).payload
    except UsageError as error:
        return Carried(f"at `.job()`: {error}")
    _, arguments = handler.bind(payload)
    got = handler.fn(**arguments)
    data = handler.encode_result(got)
    return Carried(got=got, back=handler.binding.decode_result(data) if data else None)


def value_of(text: str) -> Any:
    """
    The value that a row of the table writes.
    """
    return eval(text)  # noqa: S307  # of our own rows


def values_table(table: Table, rows: Iterable[tuple[str, str, str]]) -> str:
    lines = []
    for annotation, text, _ in rows:
        carried = carry(annotation, value_of(text))
        if carried.refused:
            got = f"refused {carried.refused.partition(': ')[0]}"
            back = ""
        else:
            got, back = (f"`{shown(end)}`" for end in (carried.got, carried.back))
        lines.append((f"`{_without_modules(annotation)}`", f"`{_without_modules(text)}`", got, back))
    return table(["annotation", "value", "the handler gets", "the caller gets back"], lines)


def shown(value: Any) -> str:
    return _without_modules(repr(value)).replace("PosixPath", "Path")


def _without_modules(text: str) -> str:
    return _MODULES.sub("", text)
