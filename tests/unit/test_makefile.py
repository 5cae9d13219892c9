"""
What `make demo` would do as the first command in a clone: it sets up what it runs, and nothing besides.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib

import pytest

from tests.docs.pages import ROOT

LOCKS = {
    "demo.lock": ("server", "client"),
    "report.lock": ("server", "client", "spark", "java"),
}
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ \\;]+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def planned(*words: str) -> str:
    """
    What make would run in a clone without any environment.
    """
    if shutil.which("make") is None:
        pytest.skip("no make here: apt-get install make")
    command = [
        "make",
        "--dry-run",
        "--no-print-directory",
        "VENV=none",
        "DEMO_VENV=none-demo",
        "demo",
        *words,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


@pytest.mark.parametrize(
    ("words", "installs", "run"),
    [
        (
            (),
            [
                "-r requirements/build.lock",
                "--no-binary pyspark --no-build-isolation -r requirements/report.lock",
            ],
            "-m duly demo",
        ),
        (("REPORT=no",), ["-r requirements/demo.lock"], "-m duly demo --no-report"),
    ],
)
def test_the_demo_installs_what_it_runs_and_no_system_package(words, installs, run):
    plan = planned(*words)
    assert [] == re.findall(r"apt-get|requirements\.lock|none/bin|hatchling|node|postgres|mariadb", plan)
    # Wheels only, apart from pyspark, of which there is none: what that is built with is locked, too.
    strict = "none-demo/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes"
    found = [" ".join(line.split()) for line in plan.splitlines() if "pip install" in line]
    assert [f"{strict} --only-binary :all: {each}" for each in installs] == found
    assert plan.rstrip().endswith(run)


def test_the_size_of_spark_is_said_before_it_is_downloaded():
    plan = planned()
    said, _, rest = plan.partition("pip install")
    assert "half a gigabyte" in said
    assert "make demo REPORT=no" in said
    assert rest
    assert "gigabyte" not in planned("REPORT=no")


def test_a_working_copy_that_is_set_up_is_used_as_it_is(tmp_path):
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / ".installed").touch()
    plan = planned(f"VENV={venv}")
    assert "pip install" not in plan
    assert f"{venv}/bin/python -m duly demo" in plan


@pytest.mark.parametrize("name", LOCKS)
def test_the_locks_of_the_demo_are_parts_of_the_one_lock(name):
    whole = dict(_PIN.findall((ROOT / "requirements.lock").read_text("utf-8")))
    part = dict(_PIN.findall((ROOT / "requirements" / name).read_text("utf-8")))
    assert part.items() <= whole.items(), "they differ: make lock"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [each for extra in LOCKS[name] for each in project["optional-dependencies"][extra]]
    wanted = {_NAME.match(each)[0] for each in (*project["dependencies"], *extras)}
    assert set() == wanted - part.keys(), "they lack something: make lock"
    assert set() == {"pytest", "mypy", "ruff", "hypothesis", "sqlalchemy", "django"} & part.keys()
