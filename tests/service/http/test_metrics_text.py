"""The text that Prometheus reads."""

import math
import uuid

from service import metrics


def lines_of(text):
    return dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))


def test_requests_are_counted_by_route_method_and_status():
    path = f"/{uuid.uuid4()}"  # the figures are the process's
    for status in (200, 200, 404):
        metrics.count_request(path, "POST", status, 0.001)
    metrics.flush_requests()
    figures = lines_of(metrics.text({}))
    assert figures[f'fedres_requests_total{{method="POST",path="{path}",status="200"}}'] == "2.0"
    assert figures[f'fedres_requests_total{{method="POST",path="{path}",status="404"}}'] == "1.0"


def test_the_histogram_counts_all_that_took_no_longer():
    path = f"/{uuid.uuid4()}"
    for seconds in (0.0001, metrics.BUCKETS[2], 100.0):
        metrics.count_request(path, "GET", 200, seconds)
    metrics.flush_requests()
    metrics.flush_requests()  # nothing is counted twice
    figures = lines_of(metrics.text({}))
    counts = [
        value for name, value in figures.items() if name.startswith("fedres_request_seconds_bucket") and path in name
    ]
    assert counts == ["1.0", "1.0"] + ["2.0"] * (len(metrics.BUCKETS) - 2) + ["3.0"]
    assert figures[f'fedres_request_seconds_count{{path="{path}"}}'] == "3.0"
    assert math.isclose(float(figures[f'fedres_request_seconds_sum{{path="{path}"}}']), 100.0026)


def test_labels_are_escaped_and_what_is_not_known_is_no_number():
    figures = lines_of(metrics.text({'a"\\\n': {"ranks": 3}}))
    assert figures['fedres_decisions_total{loop="a\\"\\\\\\n"}'] == "3.0"
    assert figures['fedres_policy_reward{loop="a\\"\\\\\\n"}'] == "NaN"


def test_every_process_has_its_age_and_its_restarts():
    one = {"role": "ranker", "number": 1, "pid": 42, "uptime_seconds": 1.5, "restarts": 2}
    figures = lines_of(metrics.text({}, [one]))
    assert figures['fedres_process_up_seconds{pid="42",role="ranker"}'] == "1.5"
    assert figures['fedres_process_restarts_total{number="1",role="ranker"}'] == "2.0"
