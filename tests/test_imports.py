"""What importing the core loads, and what it offers."""

import subprocess
import sys

import pytest

import fedres
import fedres.client
import fedres_client

HEAVY = ("numpy", "numba", "scipy", "vowpalwabbit", "httpx", "service", "bandits")
OF_EXTRAS = ("vowpalwabbit", "fastapi", "uvicorn", "typer", "psycopg", "sklearn", "joblib", "matplotlib")
SHARED = set(fedres.client.__all__) & set(fedres_client.__all__)
NOT_FOR_DEVICES = ("scipy.special", "scipy.optimize", "service", "bandits", "libsvm_tasks")


def loaded(statement, names):
    code = f"import sys\n{statement}\nprint([name for name in {names} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("package", ["fedres", "fedres.client", "fedres_client"])
def test_importing_a_package_loads_nothing_heavy(package):
    assert loaded(f"import {package}", HEAVY) == "[]"


def test_importing_the_clients_of_a_service_loads_nothing_heavy():
    assert loaded("from fedres_client import AsyncClient, Client, Decision", (*HEAVY, "sqlite3")) == "[]"


def test_a_device_loads_no_other_package_and_no_extra():
    assert loaded("from fedres.client import DeviceClient", NOT_FOR_DEVICES + OF_EXTRAS) == "[]"


def test_public_names_load_no_extra():
    assert loaded("from fedres import *", OF_EXTRAS) == "[]"


@pytest.mark.parametrize("package", [fedres, fedres.client, fedres_client])
def test_every_public_name_is_found_where_it_is_said_to_be(package):
    assert set(package._HOME) == set(package.__all__) - (SHARED if package is fedres.client else set())
    for name in package._HOME:
        thing = getattr(package, name)
        assert (thing.__module__, thing.__name__) == (f"{package.__name__}.{package._HOME[name]}", name)


def test_the_clients_of_both_distributions_are_the_same_objects():
    assert set(fedres_client.__all__) == SHARED
    for name in SHARED:
        assert getattr(fedres.client, name) is getattr(fedres_client, name)


@pytest.mark.parametrize("package", [fedres, fedres.client, fedres_client])
def test_an_unknown_name_is_an_attribute_error(package):
    assert not hasattr(package, "nothing")
