"""The text that Prometheus reads."""

from service.http.metrics import BUCKETS, Requests, family


def test_requests_are_counted_by_route_method_and_status():
    requests = Requests()
    for status in (200, 200, 404):
        requests.count("/v1/rank", "POST", status, 0.001)
    lines = requests.text().splitlines()
    assert 'fedres_requests_total{path="/v1/rank",method="POST",status="200"} 2.0' in lines
    assert 'fedres_requests_total{path="/v1/rank",method="POST",status="404"} 1.0' in lines


def test_the_histogram_counts_all_that_took_no_longer():
    requests = Requests()
    requests.count("/a", "GET", 200, 0.0001)
    requests.count("/a", "GET", 200, BUCKETS[2], 100.0)
    lines = requests.text().splitlines()
    counts = [line.split()[-1] for line in lines if line.startswith("fedres_request_seconds_bucket")]
    assert counts == ["1", "1"] + ["2"] * (len(BUCKETS) - 2) + ["3"]
    assert 'fedres_request_seconds_count{path="/a"} 3' in lines
    assert 'fedres_request_seconds_sum{path="/a"} 100.0026' in lines


def test_labels_are_escaped():
    text = family("x", "gauge", "Help.", [({"loop": 'a"\\\n'}, 1.5), ({}, float("nan"))])
    assert text == '# HELP x Help.\n# TYPE x gauge\nx{loop="a\\"\\\\\\n"} 1.5\nx NaN\n'
