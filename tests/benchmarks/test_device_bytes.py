"""The bytes that devices send are counted on the way, and are of the order that the formulas say."""


def test_bytes_on_the_wire_are_counted_and_learners_reach_the_target(run_benchmark):
    size = ["--devices", "2", "--rounds", "20", "--target", "0.6", "--learners", "fedres-adagrad,fedogd"]
    size += ["--test-rows", "60"]  # each is a request
    one, tenth, gradients = run_benchmark("device_bytes", *size)
    for row in (one, tenth, gradients):
        assert (row["accuracy"] >= 0.6) == (row["rounds"] is not None)
    assert one["rounds"] is not None
    assert tenth["bytes_up"] / tenth["played"] < one["bytes_up"] / one["played"]
    for row in (one, tenth):
        assert row["bytes_up"] / row["formula_up"] > 0.5  # names and headers, less what gzip saves
    assert 0.02 < gradients["bytes_up"] / gradients["formula_up"] < 1.5  # mostly zeros, compressed
