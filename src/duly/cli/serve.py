"""
``duly serve``: the queue over HTTP.
"""

from __future__ import annotations

import logging

import click

from duly.cli.loading import load_app
from duly.cli.loop import run
from duly.cli.main import COMMANDS, OK
from duly.cli.options import app_of, server
from duly.errors import UsageError
from duly.logs import set_up

log = logging.getLogger("duly.serve")


@click.command(
    short_help=COMMANDS["serve"][1],
    epilog="Example: duly serve --port 8420; then see http://127.0.0.1:8420/openapi.json",
)
@click.argument("app", metavar="[MODULE:APP]", required=False)
@server
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Another than this machine needs API keys."
)
@click.option(
    "--port", default=8420, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."
)
@click.option(
    "--rate", type=click.FloatRange(min=0.1), metavar="N", help="Requests a second for each key or address."
)
@click.option(
    "--burst", default=100, show_default=True, type=click.IntRange(min=1), help="Requests at once above it."
)
@click.option(
    "--cors-origin", "origins", multiple=True, metavar="ORIGIN", help="Let browsers there call; repeatable."
)
@click.option("--log-format", default="text", show_default=True, type=click.Choice(["text", "json"]))
@click.option("--log-level", default="INFO", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]))
def serve(
    app: str | None,
    host: str,
    port: int,
    rate: float | None,
    burst: int,
    origins: tuple[str, ...],
    log_format: str,
    log_level: str,
) -> int:
    """
    Serve the queue over HTTP until SIGTERM or Ctrl-C.

    With MODULE:APP the settings are those of that app. Callbacks are delivered, too, if there are secrets to
    sign them with: DULY_CALLBACK_SECRETS.
    """
    try:
        from duly.http.api import api
        from duly.http.serve import check_place, delivering, listen, server_of
        from duly.http.settings import ServiceSettings
    except ModuleNotFoundError as error:
        raise UsageError(f"duly serve needs {error.name}: pip install 'duly[server]'") from error
    set_up(log_level, log_format)
    # Its start and end are told by our own lines.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    found = load_app(app) if app else app_of()
    settings = ServiceSettings(rate=rate, burst=burst, cors_origins=origins)
    application = api(found, settings)

    async def main() -> None:
        async with found:
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
