"""Limits and quotas from a file, the environment and options; where each value comes from."""

import pytest
from serving import serving
from typer.testing import CliRunner

from service import health
from service.cli import app
from service.cli.configuration import limits_and_quotas, read_all, read_file, values_of
from service.http.request import Limits
from service.rank.quotas import Quotas
from service.roles import supervisor

FILE = """
[serve]
port = 9001
access-log = true
allowed_host = ["a.example", "b.example"]
[limits]
actions = 10
batch = 20
[quotas]
actions = 30
users = 40
"""


def test_options_come_before_the_environment_that_before_the_file_and_that_before_defaults():
    tables = {"limits": {"actions": 1, "batch": 1, "slots": 1}}
    environment = {"FEDRES_LIMITS_ACTIONS": "2", "FEDRES_LIMITS_BATCH": "2", "FEDRES_QUOTAS_USERS": "2"}
    values = values_of(tables, "my.toml", environment, ["limits.actions=3"])
    limits, quotas = limits_and_quotas(values)
    assert (limits.actions, limits.batch, limits.slots, limits.updates) == (3, 2, 1, Limits().updates)
    assert (quotas.users, quotas.loops) == (2, Quotas().loops)
    sources = [values[f"limits.{name}"].source for name in ("actions", "batch", "slots", "updates")]
    assert sources == ["--set", "FEDRES_LIMITS_BATCH", "my.toml", "default"]


def test_every_limit_and_quota_can_be_set():
    for name, value in values_of({}, "", {}, ()).items():
        changed = values_of({}, "", {}, [f"{name}={2 * value.value or 1}"])
        groups = dict(zip(("limits", "quotas"), limits_and_quotas(changed), strict=True))
        group, _, field = name.partition(".")
        assert getattr(groups[group], field) == (2 * value.value or 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["limits.acttions=3"], "set: unknown name 'limits.acttions'; did you mean limits.actions?"),
        (["actions"], "set must be NAME=VALUE, such as limits.actions=1000, got 'actions'"),
        (["limits.actions=many"], "limits.actions must be a number, got 'many'"),
        (["limits.actions=0"], r"limits.actions must be an integer of at least 1, got 0 \(from --set\)"),
        (["limits.actions=1.5"], "limits.actions must be an integer"),
        (["limits.request_seconds=0"], "limits.request_seconds must be positive and finite"),
        (["limits.requests_per_second=-1"], "limits.requests_per_second must be at least 0"),
        (["quotas.users=nan"], "quotas.users must be an integer"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_source(options, message):
    with pytest.raises(ValueError, match=message):
        limits_and_quotas(values_of({}, "", {}, options))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits", "must be TOML"),
        ("[limit]", "unknown name 'limit'; did you mean limits?"),
        ("limits = 3", "limits must be a table, got 3"),
        ("[quotas]\nuser = 3", "unknown name 'quotas.user'; did you mean quotas.users?"),
        ('[quotas]\nusers = "3"', r"quotas.users must be an integer of at least 1, got '3' \(from .*my.toml\)"),
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path, text, message):
    path = tmp_path / "my.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        limits_and_quotas(read_all(path, ()))


def test_without_a_file_there_is_none_and_a_named_one_must_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_file(None) == {}
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "my.toml")
    (tmp_path / "fedres.toml").write_text(FILE)
    assert read_file(None)["limits"] == {"actions": 10, "batch": 20}


def shown(*words, **environment):
    done = CliRunner().invoke(app, ["config", "show", *words], env=environment)
    assert done.exit_code == 0, done.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.output.splitlines() if "│" in line]
    return {row[0]: tuple(row[1:]) for row in rows}


def test_config_show_names_the_source_of_each_value_and_hides_the_password(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fedres.toml").write_text(FILE)
    store = "postgresql://anna:secret@db.example/shop"
    values = shown("--rankers", "3", "--set", "limits.batch=21", FEDRES_LOG_LEVEL="debug", FEDRES_STORE=store)
    assert values["--rankers"] == ("3", "--rankers")
    assert values["--port"] == ("9001", "fedres.toml")
    assert values["--access-log"] == ("True", "fedres.toml")
    assert values["--allowed-host"] == ("a.example b.example", "fedres.toml")
    assert values["--log-level"] == ("debug", "FEDRES_LOG_LEVEL")
    assert values["--host"] == ("127.0.0.1", "default")
    assert (values["limits.actions"], values["quotas.actions"]) == (("10", "fedres.toml"), ("30", "fedres.toml"))
    assert values["limits.batch"] == ("21", "--set")
    assert "secret" not in str(values)
    assert values["--store"][1] == "FEDRES_STORE"


def test_a_wrong_option_in_the_file_is_refused(tmp_path):
    (tmp_path / "my.toml").write_text("[serve]\nprot = 1\n")
    done = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "my.toml")])
    assert done.exit_code == 2
    assert "did you mean serve.port?" in " ".join(done.output.replace("│", " ").split())


def test_serve_starts_with_what_the_file_has(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(supervisor, "serve", lambda config, **_: started.append(config))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fedres.toml").write_text(FILE)
    done = CliRunner().invoke(app, ["serve", "--set", "limits.batch=7"])
    assert done.exit_code == 0, done.output
    [config] = started
    assert (config.port, config.access_log, config.allowed_hosts) == (9001, True, ("a.example", "b.example"))
    assert (config.limits.actions, config.limits.batch) == (10, 7)
    assert (config.quotas.actions, config.quotas.users) == (30, 40)


def test_a_service_uses_its_limits_and_its_health_is_found_without_its_address(tmp_path, capsys):
    assert health.main([str(tmp_path)]) == 1
    words = ("--set", "limits.actions=2", "--set", "quotas.users=77", "--root-path", "/below")
    with serving(tmp_path, *words) as service:
        many = service.ask("/v1/rank", "POST", json={"actions": [{"id": name} for name in "abc"]})
        assert (many.status_code, many.json()["error"]["code"]) == (422, "too_many_actions")
        assert service.ask("/v1/status").json()["quotas"]["users"] == 77
        assert health.main([str(tmp_path)]) == 0
        assert health.main(["--ready", str(tmp_path)]) == 0
    assert health.main([str(tmp_path)]) == 1
    assert "no service runs" in capsys.readouterr().out
