"""
Packages that need not be there: each belongs to an extra, and a missing one is a sentence.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from duly import UsageError
from duly.extras import EXTRAS, ExtraMissing, install, installed, missing, need, needed

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_every_package_of_an_extra_is_known():
    extras = PROJECT["optional-dependencies"]
    named = {
        extra: {re.match(r"[A-Za-z0-9-]+", line)[0].lower() for line in extras[extra]}
        for extra in extras.keys() - {"dev", "all"}
    }
    # What they are imported as.
    modules = {"prometheus-client": "prometheus_client", "opentelemetry-api": "opentelemetry"}
    for extra, packages in named.items():
        assert {modules.get(name, name) for name in packages} <= set(EXTRAS[extra])
    assert EXTRAS.keys() == named.keys()


def test_what_is_missing_is_a_sentence_with_the_remedy():
    with pytest.raises(ExtraMissing) as caught, needed("duly serve"):
        raise ModuleNotFoundError("no module named starlette.routing", name="starlette.routing")
    sentence = "duly serve needs starlette, which is not installed: pip install 'duly[server]'"
    assert (sentence, "starlette", None) == (str(caught.value), caught.value.name, caught.value.__cause__)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, ImportError)


def test_what_is_there_and_broken_is_not_called_missing():
    error = ImportError("cannot import name 'x' from 'pyarrow'", name="pyarrow.lib")
    assert (
        "a pipeline needs pyarrow, which cannot be imported (cannot import name 'x' from 'pyarrow'): "
        in str(missing(error, "a pipeline"))
    )


def test_what_belongs_to_no_extra_stays_as_it_is():
    for error in (ModuleNotFoundError("no module named shop", name="shop"), ImportError("circular")):
        with pytest.raises(ImportError) as caught, needed("duly work"):
            raise error
        assert error is caught.value


def test_a_sentence_is_not_wrapped_again():
    with pytest.raises(ExtraMissing, match=r"^inner needs") as caught, needed("outer"), needed("inner"):
        raise ModuleNotFoundError(name="httpx")
    assert "httpx" == caught.value.name


def test_packages_are_looked_for_without_importing_them(monkeypatch):
    assert installed("json", "click")
    monkeypatch.setitem(__import__("sys").modules, "watchfiles", None)
    assert not installed("json", "watchfiles")
    with pytest.raises(ExtraMissing, match=r"^--reload needs watchfiles, .*'duly\[reload\]'$"):
        need("--reload", "watchfiles")


def test_several_extras_are_installed_at_once():
    assert "pip install 'duly[spark,java]'" == install("spark", "java")
