import asyncio
import json
import logging
import sys

import pytest

from duly.logs import JsonFormatter, place_of


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


def test_an_error_is_named_without_its_message():
    with pytest.raises(ValueError) as caught:
        int("s3cr3t")
    name = place_of(caught.value)
    assert name.startswith("ValueError at ")
    assert "test_logs.py:" in name
    assert "s3cr3t" not in name
    assert "asyncio.exceptions.CancelledError" == place_of(asyncio.CancelledError())
