"""
What a data directory may look like.
"""

import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile

import pytest
import redis

from duly.embedded import keeper
from duly.errors import StoreUnavailable
from tests.embedded.helpers import always, eventually, living_in, pids


def answers(url):
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return client.set("key", "value") and "value" == client.get("key")


def test_a_new_directory_is_private_and_ignored_by_git(data, embedded):
    embedded().start()
    assert 0o700 == stat.S_IMODE(data.stat().st_mode)
    assert 0o700 == stat.S_IMODE((data / keeper.SOCKET).stat().st_mode)
    assert "*\n" == (data / ".gitignore").read_text()


def test_a_directory_that_was_there_keeps_its_mode_and_gets_no_gitignore(data, embedded):
    data.mkdir()
    data.chmod(0o755)
    embedded().start()
    assert 0o755 == stat.S_IMODE(data.stat().st_mode)
    assert not (data / ".gitignore").exists()


def test_files_left_behind_do_not_matter(data, embedded):
    data.mkdir()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in (keeper.KEEPER_LOCK, keeper.SERVER_LOCK, keeper.USERS_LOCK, keeper.STRICT_LOCK):
        (data / name).write_text(f"{dead.pid}\n")
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(data / keeper.SOCKET))
    assert answers(embedded().start())


def test_a_path_too_long_for_a_socket_works(data, embedded, monkeypatch):
    # The temporary directory of a test run is not that of another one, and may itself be long.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        deep = data.joinpath(*["a-rather-long-name"] * 10)
        server = embedded(path=deep)
        for _ in range(2):
            assert answers(server.start())
        shutil.rmtree(f"{short}/duly-{os.getuid()}")  # as a cleaner of temporary files would
        server.ensure()
        assert answers(server.url)
        server.close()
        eventually(lambda: not living_in(deep))


def test_the_temporary_directory_may_be_too_long_as_well(data, embedded, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(data.joinpath(*["another-long-name"] * 10)))
    deep = data.joinpath(*["a-rather-long-name"] * 10)
    server = embedded(path=deep)
    assert answers(server.start())
    assert str(server.url).startswith("unix:///tmp/")
    server.close()
    eventually(lambda: not living_in(deep))


def test_a_short_link_is_not_made_where_others_could_change_it(data, embedded, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        os.mkdir(f"{short}/duly-{os.getuid()}")  # noqa: PTH102
        os.chmod(f"{short}/duly-{os.getuid()}", 0o777)  # noqa: PTH101, S103
        with pytest.raises(StoreUnavailable, match="choose a shorter data directory"):
            embedded(path=data.joinpath(*["a-rather-long-name"] * 10)).start()


def test_a_path_may_hold_any_character(data, embedded):
    odd = data / "a b?c#d%20'é\"\\{x}"
    server = embedded(path=odd)
    assert answers(server.start())
    server.close()
    eventually(lambda: not living_in(odd))


def test_a_relative_path_means_where_the_program_was_then(data, embedded, monkeypatch):
    monkeypatch.chdir(data.parent)
    server = embedded(path="data")
    monkeypatch.chdir("/")
    server.start()
    assert (data / keeper.SOCKET).exists()


@pytest.mark.parametrize("below", ["", "below/it"])
def test_a_file_in_the_place_of_the_directory_is_a_clear_error(tmp_path, embedded, below):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match=r"file.*: (it is not|Not) a directory"):
        embedded(path=tmp_path / "file" / below).start()


@pytest.mark.skipif(0 == os.getuid(), reason="root may write anywhere")
def test_a_directory_that_is_not_ours_is_a_clear_error(data, embedded):
    data.mkdir(mode=0o500)
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        embedded().start()


def test_a_directory_removed_below_the_server_ends_it_and_is_made_anew(data, embedded):
    server = embedded()
    server.start()
    old = pids(data)
    shutil.rmtree(data)
    eventually(lambda: not any(map(os.path.exists, (f"/proc/{pid}/exe" for pid in old))))
    server.ensure()
    assert answers(server.url)
    new = pids(data)
    always(lambda: new == pids(data), for_s=2 * keeper.PROBE_S)  # its keeper sees that it is used


def test_start_up_says_where_the_data_is(data, embedded, caplog):
    with caplog.at_level(logging.INFO, logger="duly.embedded"):
        embedded().start()
    assert [f"embedded Valkey: data in {data}, durability always"] == caplog.messages
