"""
Signatures: as the specification says, and refused in every other case.
"""

from __future__ import annotations

import base64

import pytest

from duly.callbacks import WrongSignature, new_secret, sign, verify
from duly.callbacks.signature import SecretBook
from duly.errors import UsageError

#: The example of the specification's reference libraries.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, TIME, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(**changes):
    found = {"webhook-id": ID, "webhook-timestamp": str(TIME), "webhook-signature": SIGNATURE}
    return {name: value for name, value in (found | changes).items() if value is not None}


def check(body=BODY, secrets=SECRET, at=TIME, **changes):
    renamed = {name.replace("_", "-"): value for name, value in changes.items()}
    verify(headers(**renamed), body, secrets, now_s=at)


def test_the_example_of_the_specification_is_signed_and_verified():
    assert SIGNATURE == sign([SECRET], ID, TIME, BODY)
    check()


def test_names_of_headers_may_be_in_any_case():
    verify({name.title(): value for name, value in headers().items()}, BODY, SECRET, now_s=TIME)


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": BODY + b" "},
        {"webhook_id": "msg_other"},
        {"webhook_timestamp": str(TIME + 1)},
        {"webhook_signature": SIGNATURE.replace("v1,", "v1a,")},
        {"webhook_signature": SIGNATURE[:-4] + "AAA="},
        {"webhook_signature": ""},
        {"webhook_signature": "v1,é"},
        {"secrets": new_secret()},
        {"webhook_id": None},
        {"webhook_timestamp": None},
        {"webhook_signature": None},
        {"webhook_timestamp": "soon"},
        {"webhook_timestamp": "-5"},
        {"webhook_timestamp": 40 * "9"},
        {"at": TIME + 301},
        {"at": TIME - 301},
    ],
)
def test_whatever_does_not_fit_is_refused(wrong):
    with pytest.raises(WrongSignature):
        check(**wrong)


def test_a_message_is_accepted_within_the_tolerance_on_both_sides():
    check(at=TIME + 299)
    check(at=TIME - 299)


def test_while_secrets_change_old_and_new_receivers_both_accept():
    old, new = new_secret(), new_secret()
    both = sign([new, old], ID, TIME, BODY)
    check(webhook_signature=both, secrets=old)
    check(webhook_signature=both, secrets=new)
    check(webhook_signature=sign([new], ID, TIME, BODY), secrets=[old, new])
    with pytest.raises(WrongSignature):
        check(webhook_signature=sign([new], ID, TIME, BODY), secrets=old)


@pytest.mark.parametrize(
    "secret",
    [
        *("", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_???", "whsec_c2hvcnQ="),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
    ],
)
def test_what_is_no_secret_is_an_error_that_does_not_quote_it(secret):
    with pytest.raises(UsageError) as caught:
        sign([secret], ID, TIME, BODY)
    assert not secret or secret.removeprefix("whsec_") == "" or secret not in str(caught.value)


def test_no_secret_at_all_is_an_error():
    with pytest.raises(UsageError):
        sign([], ID, TIME, BODY)
    with pytest.raises(UsageError):
        check(secrets=[])


def test_topics_may_have_secrets_of_their_own():
    general, mail, pay = new_secret(), new_secret(), new_secret()
    book = SecretBook(f"{general}, mail.*:{mail},pay:{pay}")
    assert ([mail], [pay], [general]) == (book.of("mail.welcome"), book.of("pay"), book.of("payment"))
    assert general[6:] not in repr(book)
    with pytest.raises(UsageError, match="DULY_CALLBACK_SECRETS"):
        SecretBook(f"pay:{pay}").of("mail")
    with pytest.raises(UsageError):
        SecretBook(f"no topic:{pay}")
