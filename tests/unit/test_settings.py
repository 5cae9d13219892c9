import dataclasses
import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from duly import Duly
from duly.backoff import Fixed
from duly.errors import UsageError
from duly.handlers import Limits
from duly.settings import KEYS, Settings, parse_size

#: For every setting: what to write, and what it becomes.  None of them is a default.
SAMPLES = {
    "url": ("redis://example:6379/1", "redis://example:6379/1"),
    "require_keys": ("yes", True),
    "root_path": ("/queue", "/queue"),
    "trusted_proxies": ("127.0.0.1,10.0.0.0/8", "127.0.0.1,10.0.0.0/8"),
    "idempotency": ("1h", 3_600_000),
    "idempotency_bytes": ("1MiB", 1024 * 1024),
    "api_key": ("duly_abc_0123456789", "duly_abc_0123456789"),
    "data": ("/var/lib/duly", Path("/var/lib/duly")),
    "durability": ("everysec", "everysec"),
    "record_away": ("stop", "stop"),
    "namespace": ("tenant-1", "tenant-1"),
    "shards": ("16", 16),
    "concurrency": ("50", 50),
    "role": ("leader", "leader"),
    "max_attempts": ("8", 8),
    "backoff": ('{"kind": "fixed", "delay": 5}', Fixed(5)),
    "ttr": ("10m", 600_000),
    "lease": ("30s", 30_000),
    "timer_scan": ("500ms", 500),
    "recover_scan": ("2s", 2_000),
    "block": ("2", 2_000),
    "socket_timeout": ("20s", 20_000),
    "callback_secrets": ("whsec_a,mail.*:whsec_b", "whsec_a,mail.*:whsec_b"),
    "callback_allow": ("10.0.0.0/8,*.internal", "10.0.0.0/8,*.internal"),
    "callback_ca": ("/etc/duly/ca.pem", Path("/etc/duly/ca.pem")),
    "drain_grace": ("1m", 60_000),
    "stall": ("5m", 300_000),
    "payload_limit": ("64KiB", 65_536),
    "result_limit": ("1000", 1_000),
    "context_limit": ("4 KiB", 4_096),
    "keep_succeeded": ("1h", 3_600_000),
    "keep_succeeded_bytes": ("1GiB", 1_073_741_824),
    "keep_dead": ("30d", 2_592_000_000),
    "keep_dead_bytes": ("128MiB", 134_217_728),
    "record_schema": ("jobs", "jobs"),
    "record_pool_size": ("3", 3),
    "record_max_overflow": ("2", 2),
    "record_listen": ("postgresql://duly@db/shop", "postgresql://duly@db/shop"),
    "record": ("sqlite:///r.db", "sqlite:///r.db"),
    "horizon": ("2h", 7_200_000),
    "record_keep": ("7d", 604_800_000),
    "events_rows": ("1000", 1_000),
    "events_bytes": ("1MiB", 1_048_576),
}


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(text, name="duly.toml"):
    path = Path(name)
    path.write_text(text)
    return path


def loaded(path=None, environ=None, **flags):
    return Settings.load(path, environ or {}, **flags)


def test_the_samples_name_every_setting_and_differ_from_the_defaults():
    assert SAMPLES.keys() == KEYS.keys()
    assert {field.name for field in dataclasses.fields(Settings)} == {name for name, _ in KEYS.values()}
    for key, (_, value) in SAMPLES.items():
        assert value != getattr(Settings(), KEYS[key][0])


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_is_reachable_in_every_layer(key):
    text, value = SAMPLES[key]
    field, _ = KEYS[key]
    assert value == getattr(loaded(written(f"{key} = {json.dumps(text)}")), field)
    assert value == getattr(loaded(environ={f"DULY_{key.upper()}": text}), field)
    Path("duly.toml").unlink()
    assert value == getattr(loaded(**{key: text}), field)
    assert value == getattr(Settings(**{field: value}), field)


def test_without_any_layer_the_defaults_of_the_documentation_hold():
    settings = loaded()
    assert Settings() == settings
    assert (None, Path(".duly"), "duly", 1) == (
        settings.url,
        settings.data,
        settings.namespace,
        settings.shards,
    )
    assert (15_000, 5_000) == (settings.lease_ms, settings.heartbeat_ms)
    assert (1_000, 1_000, 1_000) == (settings.timer_scan_ms, settings.recover_scan_ms, settings.block_ms)
    assert (5_000, 25_000, 60_000) == (settings.socket_timeout_ms, settings.drain_grace_ms, settings.stall_ms)
    assert Limits() == settings.limits
    assert (86_400_000, 268_435_456) == (settings.keep_succeeded_ms, settings.keep_succeeded_bytes)
    assert (1_209_600_000, 268_435_456) == (settings.keep_dead_ms, settings.keep_dead_bytes)
    assert (1_000_000, 268_435_456) == (settings.events_rows, settings.events_bytes)
    assert ("always", 16, "auto") == (
        settings.durability,
        settings.concurrency,
        settings.role,
    )


def test_flags_win_over_the_environment_and_that_over_the_file():
    path = written('lease = "20s"\nshards = 2\nconcurrency = 4')
    settings = loaded(path, {"DULY_LEASE": "30s", "DULY_SHARDS": "3"}, lease=40, role=None)
    assert (40_000, 3, 4, "auto") == (
        settings.lease_ms,
        settings.shards,
        settings.concurrency,
        settings.role,
    )


def test_the_file_in_the_working_directory_is_read_if_there_is_one():
    assert 1 == loaded().shards
    written("shards = 4")
    assert 4 == loaded().shards


def test_a_file_that_was_named_must_exist():
    with pytest.raises(UsageError, match=r"other\.toml: no such file"):
        loaded("other.toml")


def test_values_in_the_file_may_be_numbers():
    settings = loaded(written("lease = 20\ntimer_scan = 0.5\npayload_limit = 1000"))
    assert (20_000, 500, 1_000) == (settings.lease_ms, settings.timer_scan_ms, settings.payload_limit)


def test_flags_may_be_the_objects_themselves():
    settings = loaded(lease=timedelta(seconds=20), data=Path("/x"), shards=4)
    assert (20_000, Path("/x"), 4) == (settings.lease_ms, settings.data, settings.shards)


def test_an_empty_variable_is_not_set():
    assert Settings() == loaded(environ={"DULY_URL": "", "DULY_LEASE": ""})


def test_variables_of_others_are_none_of_our_business():
    assert Settings() == loaded(
        environ={"PATH": "/bin", "duly_lease": "1", "DULYX": "1", "DULY_API_KEYS": "k"}
    )


@pytest.mark.parametrize(
    ("path", "environ", "flags", "told"),
    [
        ('leese = "5s"', {}, {}, r"duly\.toml: unknown setting leese; did you mean lease\?"),
        ("[worker]\nlease = 5", {}, {}, r"duly\.toml: unknown setting worker"),
        ("lease_ms = 5000", {}, {}, r"did you mean lease\?"),
        (None, {}, {"leese": 5}, r"flags: unknown setting leese; did you mean lease\?"),
        ("lease = ", {}, {}, r"duly\.toml: "),
        ('lease = "5 parsecs"', {}, {}, r"duly\.toml: lease: '5 parsecs' is no duration; write 500ms"),
        ("lease = true", {}, {}, "lease: a duration must be seconds"),
        ("lease = -5", {}, {}, "lease: -5 must be zero or more"),
        ("url = 5", {}, {}, "url: 5 is no text"),
        ("shards = 1.5", {}, {}, "shards: 1.5 is no whole number"),
        ("shards = true", {}, {}, "shards: True is no whole number"),
        (None, {"DULY_SHARDS": "many"}, {}, "the environment: shards: 'many' is no whole number"),
        (None, {"DULY_PAYLOAD_LIMIT": "1MB"}, {}, "payload_limit: '1MB' is no size; write bytes, 256KiB"),
        ("payload_limit = -1", {}, {}, "payload_limit: -1 is no size"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(path, environ, flags, told):
    with pytest.raises(UsageError, match=told):
        loaded(written(path) if path else None, environ, **flags)


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("DULY_LEESE", "DULY_LEESE is ignored: unknown variable; did you mean DULY_LEASE?"),
        ("DULY_APIKEYS", "did you mean DULY_API_KEYS?"),
        ("DULY_Lease", "DULY_Lease is ignored: unknown variable"),
        ("DULY_ZZZZZZZ", "known are DULY_API_KEY, DULY_API_KEYS"),
        ("DULY_PORT_RANGE", "unknown variable"),
    ],
)
def test_an_unknown_variable_is_warned_about_once_and_sets_nothing(caplog, monkeypatch, variable, told):
    monkeypatch.setattr("duly.settings._warned", set())
    for _ in range(2):
        assert Settings() == loaded(environ={variable: "5s"})
    [line] = [record.getMessage() for record in caplog.records]
    assert told in line


SERVICE_LINKS = {
    "DULY_SERVICE_HOST": "10.0.0.7",
    "DULY_SERVICE_PORT": "80",
    "DULY_SERVICE_PORT_HTTP": "80",
    "DULY_PORT": "tcp://10.0.0.7:80",
    "DULY_PORT_80_TCP": "tcp://10.0.0.7:80",
    "DULY_PORT_80_TCP_PROTO": "tcp",
    "DULY_PORT_80_TCP_PORT": "80",
    "DULY_PORT_80_TCP_ADDR": "10.0.0.7",
    "DULY_REDIS_SERVICE_HOST": "10.0.0.8",
    "DULY_REDIS_PORT": "tcp://10.0.0.8:6379",
    "DULY_REDIS_PORT_6379_TCP_ADDR": "10.0.0.8",
}


def test_what_kubernetes_sets_for_a_service_named_duly_is_ignored(caplog):
    assert Settings(lease_ms=5_000) == loaded(environ=SERVICE_LINKS | {"DULY_LEASE": "5s"})
    assert [] == caplog.records


def test_a_file_that_is_no_text_is_told():
    Path("duly.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        loaded()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"namespace": ""}, "namespace"),
        ({"namespace": "a:b"}, "namespace"),
        ({"namespace": "{a}"}, "namespace"),
        ({"namespace": "x" * 51}, "namespace"),
        ({"shards": 0}, "from 1 to 256"),
        ({"shards": 257}, "from 1 to 256"),
        ({"url": "localhost"}, "redis://"),
        ({"durability": "never"}, "always, everysec"),
        ({"role": "boss"}, "auto, leader, follower"),
        ({"record_away": "wait"}, "work, stop"),
        ({"concurrency": 0}, "at least 1"),
        ({"block_ms": 0}, "at least 10"),
        ({"timer_scan_ms": 1}, "at least 10"),
        ({"lease_ms": 50}, "at least 100"),
        ({"socket_timeout_ms": 50}, "use at least 100"),
        ({"block_ms": 40_000}, "use at least 80000"),
        ({"stall_ms": 1_999}, "use at least 2000"),
        ({"payload_limit": 2 * 1024 * 1024}, "does not fit into a script call"),
        ({"result_limit": 2 * 1024 * 1024}, "does not fit into a script call"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused_with_advice(changes, told):
    with pytest.raises(UsageError, match=re.escape(told)):
        Settings(**changes)


def test_a_password_is_not_shown():
    shown = repr(Settings(url="redis://:secret@host"))
    assert "secret" not in shown
    with pytest.raises(UsageError) as told:
        Settings(url="secret")
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("value", ["", "5KB", "5kib", "1.5MiB", "-1", -1, True, 1.5, None])
def test_what_is_no_size_is_refused(value):
    with pytest.raises(UsageError, match="no size"):
        parse_size(value)


def test_callback_secrets_may_be_a_list_and_are_never_shown():
    settings = loaded(written('callback_secrets = ["whsec_a", "whsec_b"]'))
    assert "whsec_a,whsec_b" == settings.callback_secrets
    assert "whsec_" not in repr(settings)
    with pytest.raises(UsageError, match="callback_secrets: it must be text") as caught:
        loaded(written('callback_secrets = ["whsec_a", 5]'))
    assert "whsec_" not in str(caught.value)


def test_a_key_is_never_shown():
    assert "topsecret" not in repr(loaded(environ={"DULY_API_KEY": "topsecret"}))
    for path, wrong in ((written("api_key = 987654321"), {}), (None, {"api_key": "top secret"})):
        with pytest.raises(UsageError, match="api_key") as caught:
            loaded(path, **wrong)
        assert not re.search("987654321|top secret", str(caught.value))


@pytest.mark.parametrize("wrong", [{"a": 1}, {}, 0, "redis://localhost", Settings], ids=repr)
def test_an_app_takes_no_other_settings(wrong):
    with pytest.raises(UsageError, match=r"settings must be a duly.Settings"):
        Duly(settings=wrong)
