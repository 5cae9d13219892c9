"""
Compare duly with other job queues, on the same server, work and machine.

    python -m bench.peers              # some hours: three rounds of everything
    python -m bench.peers --quick      # some minutes, to see whether all of it works
    python -m bench.peers --systems duly,bullmq --measures process-1,late --rounds 5

The environments of the systems are made by the first run, below bench/peers/.venvs and bench/peers/.node.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import RedisError

from bench.peers.environments import HERE, SYSTEMS, Unavailable, prepare
from bench.peers.measures import MEASURES, ONCE, QUICK, Sizes, Subject
from bench.peers.processes import Failed
from bench.peers.report import PROFILES, Findings, markdown
from bench.peers.server import OPTIONS, free_port, server
from duly.bench.report import machine

if TYPE_CHECKING:
    from collections.abc import Sequence


def compare(
    systems: Sequence[str],
    profiles: Sequence[str],
    measures: Sequence[str],
    rounds: int,
    sizes: Sizes,
) -> Findings:
    """
    Measure each system in turn, again and again, so that a slow minute does not fall on all rounds of one.
    """
    with tempfile.TemporaryDirectory(prefix="duly-peers-", ignore_cleanup_errors=True) as scratch:
        port = free_port()
        with server(port, Path(scratch, "server")) as one:
            version = one.version
        findings = Findings.begin(
            date=datetime.now(UTC).date().isoformat(),
            machine=machine(),
            server=version,
            options=OPTIONS,
            sizes=asdict(sizes),
            rounds=rounds,
        )
        subjects = {}
        for system in systems:
            try:
                environment = prepare(system)
                for profile in profiles:
                    subject = Subject(environment, profile, port, Path(scratch, system, profile))
                    subjects[system, profile] = subject
                    findings.add(system, profile, subject.about)
            except (Unavailable, Failed) as error:
                print(f"{system} is left out: {error}", file=sys.stderr)
        for turn in range(rounds):
            for measure in measures:
                if turn and measure in ONCE:
                    continue
                for (system, profile), subject in subjects.items():
                    began = time.monotonic()
                    try:
                        found = MEASURES[measure](subject, sizes)
                    except (Failed, RedisError, OSError) as error:
                        findings.fail(system, profile, measure, str(error))
                        told = f"failed: {error}"
                    else:
                        findings.note(system, profile, turn, found)
                        told = ", ".join(f"{name} {value:,.4g}" for name, value in found.items())
                    took = time.monotonic() - began
                    print(
                        f"{turn + 1}/{rounds} {measure} {system} {profile} ({took:.0f} s): {told}",
                        file=sys.stderr,
                    )
    return findings


def write(findings: Findings, stem: Path) -> list[Path]:
    """
    Write figures, tables and plots to files that begin with *stem*.
    """
    from bench.peers.plot import draw  # noqa: PLC0415  # the one part that needs matplotlib

    json_, tables = (stem.with_name(stem.name + ending) for ending in (".json", ".md"))
    json_.write_text(json.dumps(findings.summed(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    tables.write_text(markdown(findings), "utf-8")
    pictures = [stem.with_name(stem.name + ending) for ending in (".png", ".svg")]
    for picture in pictures:
        draw(findings, picture)
    return [json_, tables, *pictures]


def chosen(words: str, known: Sequence[str]) -> list[str]:
    """
    Some of the known, in their order.
    """
    asked = words.split(",")
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {','.join(known)}")
    return [one for one in known if one in asked]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and one round; figures mean little")
    parser.add_argument("--rounds", type=int, help="how often each is measured (3; with --quick 1)")
    for name, known in (("systems", SYSTEMS), ("profiles", PROFILES), ("measures", tuple(MEASURES))):
        parser.add_argument(
            f"--{name}",
            type=functools.partial(chosen, known=known),
            default=list(known),
            help=f"only these of {','.join(known)}",
        )
    parser.add_argument(
        "--out", type=Path, help="folder of the outputs (bench; with --quick bench/peers/.quick)"
    )
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="JSON", help="only write tables and plots again"
    )
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    if asked.source is not None:
        findings = Findings(json.loads(asked.source.read_text("utf-8")))
        print(*write(findings, asked.source.with_suffix("")), sep="\n")
        return 0

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)  # so that everything started is ended, as by Ctrl-C
    folder = asked.out or (HERE / ".quick" if asked.quick else HERE.parent)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = QUICK if asked.quick else Sizes()
    rounds = asked.rounds or (1 if asked.quick else 3)
    findings = compare(asked.systems, asked.profiles, asked.measures, rounds, sizes)
    about = findings.document["about"]
    stem = folder / f"peers-{about['date']}-{about['machine']['commit']}"
    files = write(findings, stem)
    print(markdown(findings))
    print(*files, sep="\n")
    failed = [one for one in findings.document["systems"].values() if any(one["failed"].values())]
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
