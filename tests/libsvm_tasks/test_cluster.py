"""Grids on Ray and on Dask: the bytes that processes of this machine give. Needs the extras ``ray`` and ``dask``."""

import json
from importlib.util import find_spec
from math import sqrt as work  # known to workers that another test has started somewhere else

import pytest
from needs import lacks

from libsvm_tasks.grid import BACKENDS, cluster, run


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore")  # of Ray and Dask
def test_results_do_not_depend_on_where_the_pieces_run(backend, tmp_path):
    package = {"ray": "ray", "dask": "distributed"}.get(backend)
    if package is not None and find_spec(package) is None:
        lacks(f"the package {package}", f"pip install 'fedres[{backend}]'")
    seen = []
    with cluster(backend, jobs=2):
        results = run(work, range(7), jobs=2, journal=tmp_path / "j", progress=lambda *done: seen.append(done))
    assert json.dumps(results) == json.dumps([work(item) for item in range(7)])
    assert seen[-1] == (7, 7)
    assert len((tmp_path / "j").read_text().splitlines()) == 7


def test_an_address_needs_a_cluster_and_a_cluster_needs_a_job():
    with (
        pytest.raises(ValueError, match="address must come with the backend ray or dask, got 'tcp://x'"),
        cluster(address="tcp://x"),
    ):
        pass
    with pytest.raises(ValueError, match="backend must be one of dask, loky, ray, got 'mpi'"), cluster("mpi"):
        pass
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"), cluster("dask", jobs=0):
        pass
