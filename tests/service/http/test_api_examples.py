"""The examples of the API's description are requests that a service takes, and replies that it gives."""

import importlib
import json
import re
from pathlib import Path

import jsonschema_rs
import pytest

from service.http.examples import recorded
from service.http.openapi import shortened

DOCS = Path(__file__).parents[3] / "docs"
NATIVE = {"decide", "manage", "evaluate", "devices", "operate"}
BYTES = {"application/octet-stream"}  # bodies and replies that JSON cannot show


@pytest.fixture(scope="module")
def document(client):
    return client.get("/openapi.json").json()


@pytest.fixture(scope="module")
def recorder(client):
    """Return the module that records the examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        yield importlib.import_module("api_examples")


@pytest.fixture(scope="module")
def played(client, recorder):
    """Return the examples, played against an empty service."""
    return recorder.play(client)


@pytest.fixture(scope="module")
def stored(recorder):
    return json.loads(recorder.FILE.read_text(encoding="utf-8"))


def operation_of(document, example):
    method, path = example["route"].split(" ")
    return document["paths"][path][method.lower()]


def native_operations(document):
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if NATIVE.intersection(operation["tags"])
    ]


def test_a_service_takes_the_requests_and_replies_as_recorded(played, stored):
    def request(example):
        return {name: value for name, value in example.items() if name != "reply"}

    assert [request(example) for example in played] == [request(example) for example in stored]
    for new, old in zip(played, stored, strict=True):
        assert type(new.get("reply")) is type(old.get("reply")), new["route"]
        if isinstance(new.get("reply"), dict):
            assert new["reply"].keys() == old["reply"].keys(), new["route"]


def test_requests_and_replies_are_valid_by_the_schemas(document, played, stored):
    n_checked = 0
    for example in [*played, *stored]:
        operation = operation_of(document, example)
        reply = operation["responses"][str(example["status"])]
        for name, described in (("body", operation.get("requestBody", {})), ("reply", reply)):
            [schema] = [content.get("schema") for content in described.get("content", {}).values()] or [None]
            is_right = name == "reply" or example["status"] < 400
            if schema is not None and name in example and is_right:
                whole = {**schema, "components": document["components"]}
                jsonschema_rs.validator_for(whole).validate(example[name])
                n_checked += 1
    assert n_checked > 100


def test_every_native_route_has_a_summary_a_description_and_examples(document):
    operations = native_operations(document)
    assert len(operations) > 70
    for name, operation in operations:
        assert operation["summary"], name
        assert operation["description"], name
        for parameter in operation.get("parameters", ()):
            assert "example" in parameter or parameter["in"] == "header", f"{name}: {parameter['name']}"
        replies = [reply for status, reply in operation["responses"].items() if status.startswith("2")]
        for described in (operation.get("requestBody", {}), *replies):
            for kind, content in described.get("content", {}).items():
                assert kind in BYTES or content.get("examples"), f"{name}: {kind}"


def test_every_field_of_a_native_type_has_an_example_that_is_valid(document):
    schemas = document["components"]["schemas"]
    todo = re.findall(r"#/components/schemas/(\w+)", json.dumps(native_operations(document)))
    names = set()
    while todo:
        name = todo.pop()
        if name in names:
            continue
        names.add(name)
        todo += re.findall(r"#/components/schemas/(\w+)", json.dumps(schemas[name].get("properties", {})))
        for field, schema in schemas[name].get("properties", {}).items():
            assert schema.get("examples"), f"{name}.{field}"
            whole = {**schema, "components": document["components"]}
            for example in schema["examples"]:
                assert jsonschema_rs.validator_for(whole).is_valid(example), f"{name}.{field}: {example}"


def test_the_page_of_the_api_begins_with_rank_and_reward(document):
    first, second, *_ = shortened(document)["paths"]
    assert (first, second) == ("/v1/rank", "/v1/events/{event_id}/reward")


def test_an_example_of_a_loops_route_stands_at_both_of_its_paths(document):
    for path in ("/v1/rank", "/v1/loops/{loop}/rank"):
        examples = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["examples"]
        right = {example.summary for example in recorded()["POST /v1/rank"] if example.status == 200}
        assert set(examples) == right
