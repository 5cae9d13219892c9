"""
A certificate authority for one test run, made with openssl.
"""

from __future__ import annotations

import ssl
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DAYS = "2"


class Authority:
    """
    Signs certificates for host names.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "ca.pem"
        self._key = folder / "ca.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", self._key, "-out", self.file, "-days", DAYS, "-subj", "/CN=duly test authority"),
            *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"),
        )

    def server_for(self, *names: str, expired: bool = False) -> ssl.SSLContext:
        """
        What a server needs to be believed to be *names*.
        """
        stem = names[0].replace("*", "any").replace(":", "_") + ("-expired" if expired else "")
        key, request, certificate = (self._folder / f"{stem}.{end}" for end in ("key", "csr", "pem"))
        kinds = ["IP" if name.replace(".", "").isdigit() else "DNS" for name in names]
        extensions = self._folder / f"{stem}.ext"
        extensions.write_text(
            "subjectAltName=" + ",".join(f"{kind}:{name}" for kind, name in zip(kinds, names, strict=True))
        )
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", request, "-subj", "/CN=receiver"),
        )
        until = ("-days", "-1") if expired else ("-days", DAYS)
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key, "-CAcreateserial"),
            *("-out", certificate, "-extfile", extensions, *until),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
