"""Files for operators: rules and dashboard name metrics that exist, and Prometheus's own tool accepts them."""

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from needs import needs_program

from service import metrics

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
needs_promtool = needs_program("promtool", "prometheus")


def documented():
    """Return the metrics of the service."""
    shown = metrics.text({}, log=dict.fromkeys(metrics.LOG_FIGURES, 0.0)).decode()
    return set(re.findall(r"# HELP (fedres_\w+)", shown))


def named(text):
    return {re.sub(r"_(bucket|sum|count)$", "", name) if name != "fedres_reward_sum" else name for name in text}


@pytest.mark.parametrize("file", ["alerts.yml", "grafana/dashboard.json"])
def test_only_metrics_that_the_service_has_are_asked_for(file):
    metric_names = named(re.findall(r"fedres_\w+", (DEPLOY / file).read_text(encoding="utf-8")))
    assert len(metric_names) > 5
    assert metric_names <= documented()


def test_the_guide_to_monitoring_asks_for_metrics_that_the_service_has():
    metric_names = named(
        re.findall(r"fedres_\w+", (ROOT / "docs" / "operate" / "monitor.md").read_text(encoding="utf-8"))
    )
    assert len(metric_names) > 5
    assert metric_names <= documented()


@needs_promtool
@pytest.mark.parametrize("words", ["check rules alerts.yml", "test rules alerts_test.yml"])
def test_promtool_accepts_the_rules_and_their_tests(words):
    done = subprocess.run(["promtool", *words.split()], cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_configuration(tmp_path):
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(DEPLOY / name, tmp_path)
    (tmp_path / "read.key").write_text("a key")
    done = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout


@needs_promtool
def test_every_expression_of_the_dashboard_is_one(tmp_path):
    """As a recording rule, as promtool checks no single expression."""
    board = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"].replace("$loop", ".*") for panel in board["panels"] for target in panel["targets"]]
    rules = [{"record": f"r{k}", "expr": expression} for k, expression in enumerate(expressions)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yml"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert len(expressions) >= 8


def test_files_that_the_compose_file_and_the_dockerfile_name_are_there():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert {"fedres", "postgres", "prometheus", "grafana"} == set(services)
    mounted = [volume.partition(":")[0] for service in services.values() for volume in service["volumes"]]
    for path in (path for path in mounted if path.startswith("./") and path != "./read.key"):
        assert (DEPLOY / path).exists(), path
    assert (DEPLOY / services["fedres"]["build"]["context"] / services["fedres"]["build"]["dockerfile"]).exists()
    for path in re.findall(r"/src/([\w./]+)", (DEPLOY / "Dockerfile").read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


def test_the_image_has_a_numeric_user_and_the_version_of_the_project():
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert re.findall(r"^USER (.*)", text, re.MULTILINE) == ["10001:10001"]
    assert "--uid 10001 " in text
    assert f'image.version="{project["version"]}"' in text


def test_the_image_installs_dependencies_before_it_copies_the_sources():
    """A change of a source file must not install the dependencies again."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied, _, rest = text.partition("COPY . /src")
    assert "--requirement /requirements.txt" in copied
    assert "--no-deps" in rest


def test_the_dependencies_of_the_image_are_those_of_the_extras():
    command = [sys.executable, ROOT / "tools" / "requirements.py", "serve", "postgres"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = {re.match(r"[\w-]+", line)[0] for line in lines}
    assert {"httpx", "msgspec", "numba", "fastapi", "psycopg"} <= names
    assert not [name for name in names if name.startswith("fedres") or name in ("pytest", "vowpalwabbit")]


def test_the_commands_of_the_containers_are_those_of_the_command_line():
    from typer.testing import CliRunner

    from service.cli import app

    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    described = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for word in services["fedres"]["command"]:
        assert not word.startswith("--") or word in described, word


def test_a_container_gets_time_to_stop_and_room_for_models():
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["fedres"]
    assert (service["stop_grace_period"], service["shm_size"]) == ("105s", "2gb")
    assert "password" not in " ".join(service["command"])
    assert service["environment"]["FEDRES_STORE"].startswith("postgresql://")


def test_the_systemd_unit_starts_the_service_in_its_folder_and_lets_the_supervisor_end_the_others():
    unit = configparser.RawConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / "fedres.service", encoding="utf-8")
    service = unit["Service"]
    assert service["ExecStart"] == "/opt/fedres/bin/fedres serve"
    assert (service["KillMode"], service["UMask"], service["Restart"]) == ("mixed", "0077", "always")
    assert int(service["TimeoutStopSec"]) >= 105


def test_the_health_check_of_the_image_needs_no_port_and_the_containers_have_few_rights():
    check = re.search(r"HEALTHCHECK .*?CMD (\[.*?\])", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.DOTALL)
    assert json.loads(check[1]) == ["python", "-m", "service.health", "/data"]
    for name, service in yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert "build" in service or re.search(r":v?\d+\.\d+", service["image"]), name


@needs_program("systemd-analyze", "systemd")
def test_systemd_rates_the_unit_as_little_exposed():
    command = ["systemd-analyze", "security", "--offline=true", DEPLOY / "fedres.service"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert float(re.search(r"exposure level for fedres.service: ([\d.]+)", done.stdout)[1]) <= 2.5, done.stdout


@needs_program("systemd-analyze", "systemd")
def test_systemd_accepts_the_unit(tmp_path):
    """It complains of what it does not know, and of a command that does not exist; here it is that of the tests."""
    text = (DEPLOY / "fedres.service").read_text(encoding="utf-8")
    installed = str(Path(sys.executable).with_name("fedres"))
    for changed, complains in ((text, False), (text.replace("Restart=always", "Restart=sometimes"), True)):
        (tmp_path / "fedres.service").write_text(changed.replace("/opt/fedres/bin/fedres", installed), encoding="utf-8")
        command = ["systemd-analyze", "verify", tmp_path / "fedres.service"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (str(tmp_path) in done.stderr) == complains, done.stderr
