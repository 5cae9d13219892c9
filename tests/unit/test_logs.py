import asyncio
import json
import logging
import re
import sys

import pytest

from duly.logs import BRIEF, MESSAGE_CHARS, JsonFormatter, TextFormatter, describe


def line(message="hello %s", *args, exc_info=None, **extra):
    record = logging.LogRecord("shop", logging.INFO, "shop.py", 1, message, args, exc_info)
    vars(record).update(extra)
    return json.loads(JsonFormatter().format(record))


def test_a_line_is_one_object_with_the_fields_it_was_given():
    record = logging.LogRecord("shop", logging.WARNING, "shop.py", 1, "a\nb %d", (7,), None)
    record.created, record.topic = 0.0025, "mail"
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert {
        "time": "1970-01-01T00:00:00.002+00:00",
        "level": "WARNING",
        "logger": "shop",
        "message": "a\nb 7",
        "topic": "mail",
    } == json.loads(text)


class Broken:
    def __repr__(self):
        raise ValueError("no")

    __str__ = __repr__


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (object, repr(object)),
        (float("nan"), None),
        ({1, 2}, [1, 2]),
        ("\ud800", "?"),
        (2**70, 2**70),
        (Broken(), "(cannot be shown)"),
    ],
    ids=["object", "nan", "set", "surrogate", "large", "broken"],
)
def test_no_value_of_a_field_loses_the_line(value, written):
    told = line("hello %s", "you", value=value)
    assert ("hello you", written) == (told["message"], told["value"])


def test_an_exception_that_was_asked_for_is_a_field():
    try:
        {}["gone"]
    except KeyError:
        told = line("oh %s", "no", exc_info=sys.exc_info())
    assert told["exception"].endswith("KeyError: 'gone'")


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_an_error_is_described_by_type_place_and_message():
    assert re.fullmatch(
        r"ValueError at test_logs\.py:\d+: no such user", describe(raised(ValueError("no such user")))
    )
    assert "asyncio.exceptions.CancelledError" == describe(asyncio.CancelledError())
    assert "ValueError: (its message cannot be shown)" == describe(ValueError(Broken()))


def test_a_message_is_one_line_of_a_bounded_length_and_steers_no_terminal():
    told = describe(ValueError("a\n2026-01-01 ERROR shop: forged\r\n\x1b[31mred\x00"))
    assert "ValueError: a 2026-01-01 ERROR shop: forged [31mred" == told
    long = describe(ValueError("x" * 100_000))
    assert ("ValueError: x", "…", MESSAGE_CHARS + len("ValueError: ")) == (long[:13], long[-1], len(long))


def test_a_brief_line_has_no_traceback_although_its_record_has_the_exception():
    error = raised(ValueError("no such user"))
    record = logging.LogRecord(
        "shop", logging.ERROR, "shop.py", 1, "dead", (), (ValueError, error, error.__traceback__)
    )
    whole = [form.format(record) for form in (TextFormatter(), JsonFormatter())]
    assert all("Traceback" in text for text in whole)
    vars(record).update(BRIEF)
    # Another formatter was there first, and has left what it made on the record.
    assert record.exc_text

    class Costly(AssertionError): ...

    def refuse(*_):
        raise Costly

    for form in (TextFormatter(), JsonFormatter()):
        form.formatException = refuse
        text = form.format(record)
        assert 1 == len(text.splitlines())
        assert "Traceback" not in text
        assert "_brief" not in text
    assert record.exc_info[1] is error
    assert record.exc_text
