"""
What Spark says when something is wrong, in a sentence.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duly import errors
from duly.errors import DulyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The last line of the traceback of a worker, in the middle of what the JVM says.
_OURS = re.compile(r"^(?:\w+ )*duly\.errors\.(\w+): (.+)$", re.MULTILINE)


def explain(error: BaseException) -> DulyError:
    """
    The error of ours that a worker raised, or one with the first sentence of Spark's own.
    """
    if found := _OURS.findall(str(error)):
        name, text = found[-1]
        kind = getattr(errors, name, DulyError)
        return kind(text.strip()) if issubclass(kind, DulyError) else DulyError(text)
    return UsageError(f"Spark: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """
    What Spark says, without the frames of its own code below it.
    """
    lines = (line.strip() for line in str(error).splitlines())
    said = (
        line for line in lines if line and not line.startswith(("at ", "An error occurred while calling"))
    )
    # ": org.apache.spark.SomeException: what it is" of the JVM.
    return re.sub(r"^:? *(?:[\w$]+\.)+[\w$]+: ", "", next(said, type(error).__name__))


@contextmanager
def explained() -> Iterator[None]:
    """
    Turn what Spark raises into errors of ours.

    Raises:
        DulyError: In the place of what was raised.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415  # a package that need not be there
    from pyspark.errors import PySparkException  # noqa: PLC0415  # slow, and rarely needed

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise explain(error) from error
