import math
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.codec import (
    ASKING,
    DEFAULT_CODEC,
    MAX_DEPTH,
    Envelope,
    Unreadable,
    check_depth,
    check_json,
    decode,
    decode_envelope,
    encode,
    encode_envelope,
    is_same,
)
from duly.errors import UsageError
from duly.failure import error_document, reason_document, signature
from duly.job import TOPIC

LIMIT = 10_000

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Model(pydantic.BaseModel):
    colour: str = "red"
    at: datetime | None = None
    x: float = 0


@dataclass
class Address:
    street: str
    since: datetime


@given(json_values)
def test_what_json_can_say_survives(value):
    assert value == decode(encode(value, limit=10**9))


def test_dataclasses_structs_datetimes_and_models_are_written():
    value = {
        "address": Address("Main", datetime(2024, 1, 2, tzinfo=UTC)),
        "id": UUID(int=1),
        "price": Decimal("1.50"),
        "model": Model(colour="red", at=datetime(2024, 1, 2, tzinfo=UTC)),
        "envelope": Envelope(max_attempts=3),
    }
    assert {
        "address": {"street": "Main", "since": "2024-01-02T00:00:00Z"},
        "id": "00000000-0000-0000-0000-000000000001",
        "price": "1.50",
        "model": {"colour": "red", "at": "2024-01-02T00:00:00Z", "x": 0.0},
        "envelope": {"max_attempts": 3},
    } == decode(encode(value, limit=LIMIT))


def test_a_real_pydantic_model_is_written():
    model = pydantic.create_model("Order", number=(int, ...), at=(datetime, ...))
    written = encode([model(number=3, at=datetime(2024, 1, 2, tzinfo=UTC))], limit=LIMIT)
    assert [{"number": 3, "at": "2024-01-02T00:00:00Z"}] == decode(written)


class Colour:
    pass


def test_what_has_no_form_in_json_is_named():
    with pytest.raises(UsageError, match=r"^context cannot be written as JSON: .*Colour has no form in JSON"):
        encode({"deep": [Colour()]}, what="context", limit=LIMIT)


def in_a_circle():
    value = []
    value.append(value)
    return value


class BrokenModel(pydantic.BaseModel):
    @pydantic.model_serializer
    def fail(self) -> dict:
        raise ValueError("half filled")


@pytest.mark.parametrize(
    "value",
    [
        Colour,
        Model,
        Colour(),
        BrokenModel(),
        {(1, 2): 3},
        "\ud800",
        in_a_circle(),
        lambda: 1,
        1j,
        {"a": {b"\xff": Colour}},
    ],
)
def test_what_cannot_be_written_is_the_callers_mistake(value):
    with pytest.raises(UsageError, match="payload cannot be written as JSON"):
        encode(value, limit=LIMIT)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused_with_their_place(number):
    with pytest.raises(UsageError, match=r"payload\.rows\[1\]\.x is -?(nan|inf)"):
        encode({"rows": [None, {"x": number}]}, limit=LIMIT)
    with pytest.raises(UsageError, match="result is"):
        encode(number, what="result", limit=LIMIT)
    with pytest.raises(UsageError, match="pydantic cannot read Model from what it writes of it: x: "):
        encode(Model(x=number), limit=LIMIT)


def test_null_is_written_where_it_was_meant():
    assert b'{"a":null,"b":"null"}' == encode({"a": None, "b": "null"}, limit=LIMIT)
    assert b"null" == encode(None, limit=LIMIT)


def test_what_is_too_large_is_refused_with_both_sizes():
    assert 100 == len(encode("x" * 98, limit=100))
    with pytest.raises(UsageError) as told:
        encode("x" * 99, limit=100)
    expected = "payload is 101 bytes, the limit is 100; store it elsewhere and send a reference"
    assert expected == str(told.value)


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":"\xff"}', b"[1] 2", b"NaN", b"[" * 100_000])
def test_what_is_no_json_is_unreadable(data):
    with pytest.raises(Unreadable):
        decode(data)


def test_an_envelope_that_says_nothing_takes_no_space():
    assert b"" == encode_envelope(Envelope())
    assert Envelope() == decode_envelope(b"")


@given(
    st.builds(
        Envelope,
        st.none() | st.from_regex(TOPIC, fullmatch=True),
        st.none() | st.integers(1, 1_000),
        st.none() | st.dictionaries(st.text(), st.integers(0, 9)),
        st.none() | st.dictionaries(st.text(), json_values, max_size=3),
    )
)
def test_an_envelope_survives(envelope):
    assert envelope == decode_envelope(encode_envelope(envelope))


@given(st.builds(Envelope, st.none() | st.from_regex(TOPIC, fullmatch=True), st.none() | st.just(3)))
def test_an_envelope_that_asks_for_a_reply_begins_with_that(envelope):
    # The server's scripts look there.
    assert encode_envelope(envelope).startswith(ASKING) == (envelope.reply_to is not None)


def test_an_envelope_writes_only_what_it_says():
    assert b'{"max_attempts":3}' == encode_envelope(Envelope(max_attempts=3))


def test_an_envelope_of_a_later_version_is_read():
    assert Envelope(max_attempts=2) == decode_envelope(b'{"max_attempts":2,"later":true}')


@pytest.mark.parametrize("data", [b"x", b"[]", b'{"max_attempts":"2"}'])
def test_what_is_no_envelope_is_unreadable(data):
    with pytest.raises(Unreadable, match="envelope"):
        decode_envelope(data)


def test_an_envelope_whose_context_cannot_be_written_is_refused():
    with pytest.raises(UsageError, match="context"):
        encode_envelope(Envelope(context={"a": Colour()}))


def test_an_error_document_names_type_and_message():
    assert {"type": "ValueError", "message": "boom"} == decode(error_document(ValueError("boom")))
    assert "test_codec.Colour" not in decode(error_document(UsageError("x")))["type"]
    assert "duly.errors.UsageError" == decode(error_document(UsageError("x")))["type"]


def raised(exc):
    try:
        raise exc  # noqa: TRY301
    except BaseException as caught:  # noqa: BLE001
        return caught


def test_an_error_document_holds_a_traceback_only_when_asked():
    error = raised(ValueError("boom"))
    assert "traceback" not in decode(error_document(error))
    assert decode(error_document(error, traceback=True))["traceback"].endswith("ValueError: boom\n")


def test_an_error_document_is_bounded_and_keeps_the_end_of_the_traceback():
    document = decode(error_document(raised(ValueError("x" * 5_000 + "end")), traceback=True))
    assert 2_000 == len(document["message"])
    assert 8_000 >= len(document["traceback"])
    assert document["traceback"].endswith("end\n")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("cannot speak")


@pytest.mark.parametrize(
    "error", [Mute(), ValueError("\udcff"), ValueError("\x00\n"), KeyError(), BaseException()]
)
def test_every_error_can_be_documented(error):
    document = decode(error_document(raised(error), traceback=True))
    assert {"type", "message", "traceback"} == document.keys()
    assert signature(error)


@given(st.text())
def test_any_message_can_be_documented_and_signed(text):
    error = ValueError(text)
    assert isinstance(decode(error_document(error))["message"], str)
    assert isinstance(decode(reason_document("crashed", text))["message"], str)
    line = signature(error)
    assert line.startswith("ValueError")
    assert 120 >= len(line)
    assert line.isprintable()
    assert 1 == len(line.splitlines())


def test_a_reason_document_has_the_shape_of_an_error_document():
    assert {"type": "crashed", "message": "3 times"} == decode(reason_document("crashed", "3 times"))
    assert {"type": "expired", "message": ""} == decode(reason_document("expired"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("user 42 not found", "user 7 not found"),
        ("timeout after 1.5 s", "timeout after 30 s"),
        ("object at 0x7f3aa0", "object at 0xdeadbeef"),
        ("job 123e4567-e89b-12d3-a456-426614174000 gone", "job 00000000-0000-0000-0000-00000000000F gone"),
        ("commit 9fceb02d0ae598e95dc970b7 lost", "commit 1a410efbd13591db07496601 lost"),
        ("id 01ARZ3NDEKTSV4RRFFQ69G5FAV", "id 01BX5ZZKBKACTAV9WEVGEMMVRZ"),
        ("id 0Vb8nPLl83GiIpi8b35q1H", "id 0Vb8nPMa7QwErTyUiOpAsD"),
        ("10.0.0.1:6379 refused\n\tthe call", "10.0.0.22:6380 refused the call"),
    ],
)
def test_failures_that_differ_in_numbers_and_ids_have_one_signature(one, other):
    assert signature(ValueError(one)) == signature(ValueError(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ValueError("user not found"), ValueError("order not found")),
        (ValueError("boom"), TypeError("boom")),
    ],
)
def test_different_failures_have_different_signatures(one, other):
    assert signature(one) != signature(other)


def test_a_signature_reads_as_one_line():
    assert "ValueError: user # not found" == signature(ValueError("user 42\n not\tfound"))
    assert "TimeoutError" == signature(TimeoutError())


def test_words_are_not_mistaken_for_ids():
    assert "ValueError: internationalisation is defaced" == signature(
        ValueError("internationalisation is defaced")
    )


def test_an_envelope_cannot_be_changed():
    with pytest.raises(AttributeError):
        Envelope().max_attempts = 3
    assert issubclass(Envelope, msgspec.Struct)


def deep(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_what_one_process_can_write_every_other_can_read():
    assert deep(MAX_DEPTH) == decode(encode(deep(MAX_DEPTH)))
    with pytest.raises(UsageError, match=f"payload is nested {MAX_DEPTH + 1} levels deep, the limit is"):
        encode(deep(MAX_DEPTH + 1))
    with pytest.raises(UsageError, match="context is nested"):
        encode_envelope(Envelope(context={"a": deep(MAX_DEPTH)}))
    assert encode_envelope(Envelope(context={"a": deep(MAX_DEPTH - 1)}))


def below(frames, fn, *args):
    return below(frames - 1, fn, *args) if frames else fn(*args)


def test_a_value_of_all_levels_is_compared_far_down_the_stack():
    lists, dicts = deep(MAX_DEPTH), {}
    for _ in range(MAX_DEPTH - 1):
        dicts = {"a": dicts}
    for value in (lists, dicts):
        same = partial(is_same, value, decode(encode(value)), DEFAULT_CODEC)
        assert below(350, same)
    assert not below(350, is_same, lists, [*deep(MAX_DEPTH - 1), 1], DEFAULT_CODEC)
    assert not below(350, is_same, [dicts, 1], [dicts, True], DEFAULT_CODEC)


def test_a_null_far_inside_is_told_from_a_number_that_json_lacks():
    def around(value):
        for _ in range(MAX_DEPTH):
            value = [value]
        return value

    assert around(None) == decode(below(350, encode, around(None)))
    with pytest.raises(UsageError, match=r"payload(\[0\])+ is nan, and JSON has no such number"):
        below(350, encode, around(math.nan))


class Loop:
    def __init__(self):
        self.self = self

    __attrs_attrs__ = (SimpleNamespace(name="self"),)


def test_the_comparison_of_what_holds_itself_ends():
    assert not is_same(Loop(), Loop(), DEFAULT_CODEC)


@given(json_values, st.integers(0, 3))
def test_brackets_in_texts_are_no_levels(value, more):
    text = msgspec.json.encode([value, '[{"\\' * MAX_DEPTH])
    check_json(text)
    outer = MAX_DEPTH - 20 + more
    check_depth(b"[" * outer + text + b"]" * outer)
    with pytest.raises(UsageError, match="levels deep"):
        check_depth(b"[" * MAX_DEPTH + text + b"]" * MAX_DEPTH)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'"\xff"', "payload is no JSON: 'utf-8' codec"),
        (b"[1", "payload is no JSON: "),
        (b"1e999", "payload has a value that workers cannot read \\(number out of range\\): send it as text"),
        (b"9" * 5_000, "payload has a value that workers cannot read \\(integer value out of range\\)"),
    ],
)
def test_json_that_workers_cannot_read_is_refused_in_one_sentence(data, reason):
    with pytest.raises(UsageError, match=reason):
        check_json(data)
