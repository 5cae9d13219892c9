"""
The mutants: faults that somebody could make, each with the tests that must notice it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
CATALOGUE = Path(__file__).with_name("mutants.toml")


class Unfit(Exception):
    """
    A mutant that no longer fits the code.
    """


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    One fault: a text of a file, what stands there instead, and the tests that must fail then.
    """

    name: str  #: what the code does wrong with it
    file: str
    old: str
    new: str
    tests: tuple[str, ...]  #: as pytest names them

    def planted_in(self, source: str) -> str:
        """
        The source with the fault in it.

        Raises:
            Unfit: The text is not there, or more than once.
        """
        found = source.count(self.old)
        if found != 1:
            raise Unfit(f"{self.name}: {self.file} has {self.old!r} {found} times, and it must be there once")
        return source.replace(self.old, self.new)

    def catches(self, test: str) -> bool:
        """
        Return whether a test, with or without its values, is one of those that must fail.
        """
        return test.partition("[")[0] in {each.partition("[")[0] for each in self.tests}

    def digest(self) -> str:
        """
        Return what is another once this mutant, its file or a file of its tests is another.
        """
        files = {self.file, *(test.partition("::")[0] for test in self.tests)}
        texts = [(ROOT / file).read_text("utf-8") for file in sorted(files)]
        return sha256(repr((self, texts)).encode()).hexdigest()


def mutants(path: Path = CATALOGUE) -> list[Mutant]:
    """
    Read the catalogue.
    """
    with path.open("rb") as file:
        found = tomllib.load(file)["mutant"]
    return [Mutant(**{**one, "tests": tuple(one["tests"])}) for one in found]
