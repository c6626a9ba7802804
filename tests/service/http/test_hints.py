"""What a complaint about a request says beyond what is wrong: the values allowed, and the name that was meant."""

import pytest


@pytest.mark.parametrize(
    ("method", "path", "sent", "said"),
    [
        ("PATCH", "/v1/settings", {"policy": "eps-greedy"}, "it must be one of epsilon-greedy, "),
        ("PATCH", "/v1/settings", {"epsillon": 0.2}, "unknown field `epsillon`; did you mean `epsilon`?"),
        ("PATCH", "/v1/settings", {"control": {"shar": 0.2}}, "did you mean `share`?"),
        ("PATCH", "/v1/settings", {"colour": 1}, "; the fields are "),
        ("POST", "/v1/rank", {"actions": [{"id": "a", "feature": {}}]}, "did you mean `features`?"),
        ("POST", "/v1/rank", {"actions": [{"id": "a"}], "contxt": {}}, "did you mean `context`?"),
        ("POST", "/v1/rank/batch", {"requests": [{"actions": [{"id": "a"}], "usr": "a"}]}, "did you mean `user`?"),
        ("POST", "/v1/events/e/reward", {"valeu": 1}, "did you mean `value`?"),
    ],
)
def test_a_complaint_names_what_is_allowed(client, method, path, sent, said):
    reply = client.request(method, path, json=sent)
    assert reply.status_code == 422
    assert said in reply.json()["error"]["message"]
