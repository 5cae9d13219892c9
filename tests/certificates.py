"""
Certificates for tests of TLS: an authority that nobody knows, and a server's certificate signed by it.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def make(folder: Path) -> None:
    """
    Write ca.crt, s.crt and s.key, for localhost and 127.0.0.1.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate with")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    new = ("-newkey", "rsa:2048", "-nodes")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial")
    for command in (
        ("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=ca"),
        ("req", *new, "-keyout", "s.key", "-out", "s.csr", "-subj", "/CN=localhost"),
        ("x509", "-req", "-in", "s.csr", "-out", "s.crt", "-days", "2", "-extfile", "names", *signed),
    ):
        subprocess.run([openssl, *command], cwd=folder, check=True, capture_output=True)
