"""
The test run that this process belongs to, if any: tests reach servers for tests, and no configured queue.

What a test starts belongs to the run as well: it inherits the environment variable `VARIABLE`.  A run ends
with its process, because threads outlive their tests, and hooks of `atexit` run after the last one.

Django is looked for among the modules that are loaded: its project need not have installed duly as an app.

Imports next to nothing: pytest loads this module for everybody who has duly installed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from duly.settings import Settings

VARIABLE = "DULY_TESTS"  #: "on" and the URLs of servers for tests, in processes that tests start


class TestRun:
    """
    Which queues apps of this process may connect to.
    """

    __test__ = False  # not a test class, whatever its name suggests to pytest

    def __init__(self, environ: Mapping[str, str]) -> None:
        words = environ.get(VARIABLE, "").split()
        self._inherited = bool(words)  #: the process was started by tests
        self._begun = False
        self._opened = 0  #: how often `open` was called, and not `close`
        self._servers = set(words[1:])
        self._refuses = self._inherited  #: whether configured queues are refused, wherever Django is

    @property
    def watches(self) -> bool:
        """
        Whether apps have to ask at all; read for every job that is sent.
        """
        return self._refuses or in_django_tests()

    def begin(self) -> None:
        """
        Refuse configured queues until this process ends, in it and in those that it starts.
        """
        self._begun = self._refuses = True
        self.tell()

    def open(self) -> None:
        """
        Let apps connect to configured queues, until `close`.
        """
        self._opened += 1
        self.tell()

    def close(self) -> None:
        """
        End what `open` began.
        """
        self._opened -= 1
        self.tell()

    def add_server(self, url: str) -> None:
        """
        Let apps connect to a server for tests.
        """
        self._servers.add(url)
        self.tell()

    def settings_for(self, settings: Settings, private: Callable[[Settings], Settings]) -> Settings:
        """
        Return the settings that an app with these may connect with.

        In tests of Django these are what *private* makes of them.

        Raises:
            UsageError: They are those of a configured queue, and this is a test run.
        """
        if self._opened or settings.url in self._servers:
            return settings
        if in_django_tests():
            if VARIABLE not in os.environ:
                self.tell()  # a runner of the project's own is not known before
            return private(settings)
        self.check(settings)
        return settings

    def check(self, settings: Settings) -> None:
        """
        Refuse a configured queue in a test run.

        Raises:
            UsageError: It is one.
        """
        if self._opened or not self.watches or settings.url in self._servers:
            return
        from duly.errors import UsageError  # noqa: PLC0415  # see above

        if self._begun or in_django_tests():
            raise UsageError(
                f"tests do not reach a configured queue, and {_name_of(settings)} is one: use the fixture "
                "`duly` or a TestBed, or say `with duly.testing.real_queue():` if it is meant"
            )
        raise UsageError(
            "a test has started this process, and tests do not reach a configured queue, and "
            f"{_name_of(settings)} is one: give it the URL of a server for tests (fixture `duly_server`), or "
            "start it within `with duly.testing.real_queue():` if it is meant"
        )

    def tell(self) -> None:
        """
        Put into the environment what processes that are started from now on may reach.
        """
        environ: MutableMapping[str, str] = os.environ
        if not self._opened and (self.watches or is_django_test_command()):
            environ[VARIABLE] = " ".join(["on", *sorted(self._servers)])
        elif VARIABLE in environ:
            del environ[VARIABLE]


def in_django_tests() -> bool:
    """
    Return whether Django's test environment is set up: by its own runner, by one of another kind, or by hand.

    Looks at what `setup_test_environment` leaves, so it does not matter who calls that, or when.  A process
    of ``manage.py test`` does nothing else, so that there it also holds after the last test.
    """
    utils = sys.modules.get("django.test.utils")
    if utils is None:
        return False
    if is_django_test_command():
        return True
    state = getattr(utils, "_TestState", None)
    if state is None:
        # A Django that keeps its state elsewhere has an outbox during tests.
        return hasattr(sys.modules.get("django.core.mail"), "outbox")
    return hasattr(state, "saved_data")


def is_django_test_command() -> bool:
    """
    Return whether this process is ``manage.py test``, ``django-admin test`` or one that runs tests for these.
    """
    return sys.argv[1:2] == ["test"] and "django.core.management" in sys.modules


def _name_of(settings: Settings) -> str:
    """
    Name a queue without the password in its URL.
    """
    if settings.url is None:
        return f"the one in {settings.data}"
    scheme, _, rest = settings.url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _is_unittest() -> bool:
    """
    Return whether this process is ``python -m unittest``.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) == "unittest.__main__"


#: The one of this process.
TEST_RUN = TestRun(os.environ)
if _is_unittest():
    TEST_RUN.begin()
elif is_django_test_command():
    TEST_RUN.tell()  # its tests may start a program before they use an app
