"""
``duly keys``: who may do what over HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from duly.apikeys import SCOPES, ApiKey, KeyRing
from duly.audit import Change
from duly.cli.audit import note
from duly.cli.loop import run
from duly.cli.main import COMMANDS, NO, OK
from duly.cli.options import app_of, as_json, own_server
from duly.cli.output import print_json, print_json_line, print_table
from duly.durations import say_time
from duly.job import moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


@click.group(short_help=COMMANDS["keys"][1])
def keys() -> None:
    """
    API keys for `duly serve`.  As soon as there is one, every request needs one.
    """


def _with_ring(
    work: Callable[[KeyRing], Awaitable[T]],
    changes: Callable[[T], list[Change]] = lambda _: [],
    *,
    existing: bool = True,
) -> T:
    app = app_of(existing=existing)

    async def main() -> T:
        async with app:
            done = await work(await app.key_ring())
            await note(app, *changes(done))
            return done

    return run(main())


def _created(made: tuple[str, ApiKey]) -> list[Change]:
    _, key = made
    details = {"name": key.name, "scopes": list(key.scopes), "topics": list(key.topics)}
    return [Change(action="create-key", key=key.id, details=details)]


def _revoked(gone: list[ApiKey]) -> list[Change]:
    return [Change(action="revoke-key", key=key.id, details={"name": key.name}) for key in gone]


def _document(key: ApiKey) -> dict[str, object]:
    created = moment(key.created_ms)
    return {
        "id": key.id,
        "name": key.name,
        "scopes": list(key.scopes),
        "topics": list(key.topics) or None,
        "created_at": say_time(created) if created else None,
    }


@keys.command(epilog="Example: duly keys create shop --scope enqueue --scope read --topic 'mail.*'")
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES), help="Repeatable."
)
@click.option(
    "--topic", "topics", multiple=True, metavar="PATTERN", help="Only these, * for any; repeatable."
)
@own_server
@as_json
def create(name: str, scopes: tuple[str, ...], topics: tuple[str, ...], as_json: bool) -> int:
    """
    Make a key called NAME and print it, this once: only its hash is stored.
    """
    text, key = _with_ring(lambda ring: ring.create(name, scopes, topics), _created, existing=False)
    if as_json:
        print_json(_document(key) | {"key": text})
    else:
        click.echo(text)
        click.echo("Keep it: it is not shown again.  Send it as  Authorization: Bearer KEY", err=True)
    return OK


@keys.command("ls", epilog="Example: duly keys ls --json")
@own_server
@as_json
def list_(as_json: bool) -> int:
    """
    List the keys, without their secrets.
    """
    found = _with_ring(lambda ring: ring.all())
    if as_json:
        for key in found:
            print_json_line(_document(key))
        return OK
    rows = [
        (
            key.id,
            key.name,
            " ".join(key.scopes),
            " ".join(key.topics) or "every",
            _document(key)["created_at"] or "environment",
        )
        for key in found
    ]
    print_table(["id", "name", "scopes", "topics", "created"], rows)
    return OK


@keys.command(epilog="Example: duly keys revoke shop")
@click.argument("name")
@click.option("--force", is_flag=True, help="Also the last key: services that require keys then refuse all.")
@own_server
@as_json
def revoke(name: str, force: bool, as_json: bool) -> int:
    """
    Forget the key with the id or the name NAME; services notice within seconds.
    """
    gone = [_document(key) for key in _with_ring(lambda ring: ring.revoke(name, force=force), _revoked)]
    if as_json:
        for key in gone:
            print_json_line(key)
    elif gone:
        click.echo(f"revoked {', '.join(str(key['id']) for key in gone)}")
    if not gone:
        click.echo(f"duly: there is no stored key {name}; see duly keys ls", err=True)
    return OK if gone else NO
