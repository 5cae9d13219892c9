"""
Plant faults into copies of the project, one at a time, and see that the tests notice each of them.

    python -m tools.mutants                  # all of them, two at a time
    python -m tools.mutants --only token     # those with this word in their name or file
    python -m tools.mutants --table          # write docs/reference/mutants.md, if all were caught
    python -m tools.mutants --resume FILE    # note in FILE what is caught; try the others only
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tools.mutants.catalogue import ROOT, Unfit, mutants
from tools.mutants.trial import Copy, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tools.mutants.catalogue import Mutant

PAGE = ROOT / "docs/reference/mutants.md"
HEAD = """\
# Mutants

Faults that were planted into the code on purpose, and the test that noticed each. `make mutants` plants them
again and fails if one survives; `make test-long` does so, too. The list is
[tools/mutants/mutants.toml](../../tools/mutants/mutants.toml).

| with this fault | in | caught by |
|---|---|---|
"""


def page(verdicts: Iterable[Verdict]) -> str:
    """
    The table of mutants for the reference.
    """
    rows = [f"| {one.mutant.name} | `{one.mutant.file}` | `{one.by}` |\n" for one in verdicts]
    return HEAD + "".join(rows)


def read_verdicts(file: Path, chosen: Sequence[Mutant]) -> dict[Mutant, Verdict]:
    """
    What a run before has noted of mutants that are as they were then.
    """
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    by = {noted["digest"]: noted["by"] for noted in map(json.loads, lines)}
    digests = {mutant: mutant.digest() for mutant in chosen}
    return {
        mutant: Verdict(mutant, caught=True, by=by[digest])
        for mutant, digest in digests.items()
        if digest in by
    }


def note_verdict(file: Path, verdict: Verdict) -> None:
    """
    Note that a mutant was caught.
    """
    noted = {"mutant": verdict.mutant.name, "by": verdict.by, "digest": verdict.mutant.digest()}
    with file.open("a", encoding="utf-8") as notes:
        notes.write(json.dumps(noted) + "\n")


def try_all(chosen: Sequence[Mutant], at_once: int, resume: Path | None = None) -> list[Verdict]:
    """
    Try each mutant, in their order; not those that *resume* notes as caught.

    Raises:
        Unfit: One does not fit the code, or its tests fail without it.
    """
    caught = {} if resume is None else read_verdicts(resume, chosen)
    left = [mutant for mutant in chosen if mutant not in caught]
    if not left:
        return list(caught.values())
    with tempfile.TemporaryDirectory(prefix="duly-mutants-", ignore_cleanup_errors=True) as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(at_once):
            copies.put(Copy(Path(folder, str(number))))

        def without() -> None:
            copy = copies.get()
            told = copy.run_without(sorted({test for mutant in left for test in mutant.tests}))
            copies.put(copy)
            if told is not None:
                raise Unfit(f"these tests fail without any mutant, so they would catch none:\n{told}")

        def one(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                verdict = copy.try_out(mutant)
            finally:
                copies.put(copy)
            word = "caught" if verdict.caught else "SURVIVED"
            print(f"{word}: {mutant.name}: {verdict.by}", flush=True)
            if verdict.caught and resume is not None:
                note_verdict(resume, verdict)
            return verdict

        without()
        with ThreadPoolExecutor(at_once) as threads:
            tried = caught | dict(zip(left, threads.map(one, left), strict=True))
        return [tried[mutant] for mutant in chosen]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="a word in the name or the file")
    parser.add_argument("--at-once", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--table", action="store_true", help="write docs/reference/mutants.md")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="note in FILE what is caught, and try only the others"
    )
    asked = parser.parse_args()
    chosen = [one for one in mutants() if asked.only in one.name or asked.only in one.file]
    if not chosen:
        print(f"no mutant has {asked.only!r} in its name or file", file=sys.stderr)
        return 2
    try:
        verdicts = try_all(chosen, asked.at_once, asked.resume)
    except Unfit as error:
        print(error, file=sys.stderr)
        return 1
    survived = [verdict for verdict in verdicts if not verdict.caught]
    print(f"{len(verdicts) - len(survived)} caught, {len(survived)} survived")
    if asked.table and not survived and not asked.only:
        PAGE.write_text(page(verdicts), "utf-8")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
