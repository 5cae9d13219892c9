"""
``duly serve``: the queue over HTTP.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click

from duly.cli.loading import load_app
from duly.cli.loop import run
from duly.cli.main import COMMANDS, OK
from duly.cli.options import app_of, own_server
from duly.extras import needed
from duly.logs import set_up
from duly.settings import SERVE_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("duly.serve")

_BYTES, _SECONDS = (click.IntRange(min=1024), "BYTES"), (click.FloatRange(min=0.1), "SECONDS")
_NUMBER = (click.IntRange(min=1), "N")

#: Settings of the service that are options of the same name, and variables; their defaults are the service's.
_LIMITS: dict[str, tuple[tuple[click.ParamType[Any], str], str]] = {
    "burst": (_NUMBER, "Requests at once above the rate."),
    "max_connections": (_NUMBER, "Connections at once; further ones are a 503."),
    "header_limit": (_BYTES, "Request line and headers together; more is a 431."),
    "header_timeout_s": (_SECONDS, "How long a client may take to send them."),
    "body_timeout_s": (_SECONDS, "How long it may send nothing of a body, or take nothing of an answer."),
    "body_rate": ((click.FloatRange(min=0.1), "BYTES"), "Bytes of a body a second; what is slower is a 408."),
    "idle_timeout_s": (_SECONDS, "How long a connection is kept between two requests."),
    "page_limit": (_BYTES, "Jobs on a page of a list; the rest is on the next."),
    "spool_limit": (_BYTES, "Answers to a batch that its client has not read yet."),
    "spool_total": (_BYTES, "The same of all batches together."),
    "body_limit": (_BYTES, "One request, or one line of a batch."),
    "batch_limit": (_BYTES, "A batch in one JSON array."),
    "max_wait_s": (_SECONDS, "The longest poll."),
    "max_streams": (_NUMBER, "Streams of events at once."),
    "max_stream_s": (_SECONDS, "The longest stream; clients come back where it ended."),
    "idempotency_s": (_SECONDS, "How long an Idempotency-Key counts; a day by default."),
}


def _limits(command: Callable[..., int]) -> Callable[..., int]:
    for name, ((kind, metavar), about) in reversed(_LIMITS.items()):
        word = name.removesuffix("_s")
        variable = f"DULY_SERVE_{word.upper()}"
        command = click.option(
            "--" + word.replace("_", "-"),
            name,
            type=kind,
            metavar=metavar,
            help=about,
            envvar=variable if variable in SERVE_VARIABLES else None,
            show_envvar=variable in SERVE_VARIABLES,
        )(command)
    return command


@click.command(
    short_help=COMMANDS["serve"][1],
    epilog="Example: duly serve --port 8420; then see http://127.0.0.1:8420/openapi.json",
)
@click.argument("app", metavar="[MODULE:APP]", required=False)
@own_server
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Another than this machine needs API keys."
)
@click.option(
    "--port", default=8420, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0.1),
    metavar="N",
    envvar="DULY_SERVE_RATE",
    show_envvar=True,
    help="Requests a second for each key or address.",
)
@click.option(
    "--cors-origin", "origins", multiple=True, metavar="ORIGIN", help="Let browsers there call; repeatable."
)
@click.option(
    "--require-keys",
    is_flag=True,
    help="Refuse requests without an API key, also while there is none; implied by another --host.",
)
@click.option("--root-path", default="", metavar="PATH", help="Where clients see it behind a proxy: /queue.")
@click.option(
    "--trusted-proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Believe X-Forwarded-For from this address or network; repeatable. Keys are required then.",
)
@_limits
@click.option("--log-format", default="text", show_default=True, type=click.Choice(["text", "json"]))
@click.option("--log-level", default="INFO", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]))
def serve(
    app: str | None,
    host: str,
    port: int,
    rate: float | None,
    origins: tuple[str, ...],
    require_keys: bool,
    root_path: str,
    proxies: tuple[str, ...],
    log_format: str,
    log_level: str,
    **limits: Any,
) -> int:
    """
    Serve the queue over HTTP until SIGTERM or Ctrl-C.

    With MODULE:APP the settings are those of that app. Callbacks are delivered, too, if there are secrets to
    sign them with: DULY_CALLBACK_SECRETS.
    """
    with needed("duly serve"):
        from duly.addresses import is_loopback
        from duly.http.api import api
        from duly.http.serve import allow_files, check_place, delivering, listen, server_of
        from duly.http.settings import ServiceSettings
    set_up(log_level, log_format)
    # Its start and end are told by our own lines.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # That a URL is one of duly serve is refused with a sentence of ours, not with a request before it.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    found = load_app(app) if app else app_of()
    settings = ServiceSettings(
        rate=rate,
        cors_origins=origins,
        require_keys=require_keys or not is_loopback(host),
        root_path=root_path,
        trusted_proxies=",".join(proxies),
        **{name: value for name, value in limits.items() if value is not None},
    )
    allow_files(settings.max_connections)
    application = api(found, settings)

    async def main() -> None:
        async with found:
            if not (require_keys or found.settings.require_keys):
                await check_place(host, await found.key_ring())
            with listen(host, port) as place:
                name = f"[{host}]" if ":" in host else host
                log.info("serving on http://%s:%d", name, place.getsockname()[1])
                server = server_of(application, found.settings.drain_grace_ms / 1000)
                async with delivering(found, server):
                    await server.serve([place])
        if failure := application.state.service.workplace.failure:
            raise failure
        log.info("ended")

    run(main())
    return OK
