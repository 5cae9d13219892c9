"""
Frameworks are imported by who uses them.
"""

from __future__ import annotations

import subprocess
import sys


def test_duly_imports_no_framework():
    code = """
import importlib, pkgutil, sys
import duly

for module in pkgutil.walk_packages(duly.__path__, "duly."):
    if not module.name.startswith(("duly.contrib.", "duly.http.")) and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(sorted({"django", "flask", "fastapi", "starlette", "asgiref"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert ("[]\n", "") == (done.stdout, done.stderr)


def test_a_worker_can_ask_for_its_request_without_a_framework():
    code = """
import sys
from duly.http import AsyncRequest, current_request

print(sorted({"fastapi", "starlette"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert ("[]\n", "") == (done.stdout, done.stderr)


def test_what_is_missing_for_an_endpoint_is_said_with_how_to_get_it():
    code = """
import sys
sys.modules["starlette"] = None
try:
    from duly.http import async_endpoint
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert "needs starlette" in done.stdout
    assert "pip install 'duly[server]'" in done.stdout
    assert "" == done.stderr
