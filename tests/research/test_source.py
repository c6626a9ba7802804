"""Commands whose code is part of the source and not of the package."""

import sys

import pytest

from libsvm_tasks.cli import source


def test_a_module_of_the_source_is_found_in_a_clone():
    assert source.of_the_source("research.reproduce.registry").FIGURES
    assert source.of_the_source("service_load", "benchmarks").__name__ == "service_load"


@pytest.mark.parametrize(
    ("module", "folder", "said"),
    [("research.fair.table", "", "research/ is part of the source"), ("service_load", "benchmarks", "benchmarks/ is")],
)
def test_an_installed_package_says_where_it_is(monkeypatch, tmp_path, module, folder, said):
    monkeypatch.setattr(source, "ROOT", tmp_path)
    before = list(sys.path)
    with pytest.raises(ValueError, match=f"{said}.*run `fedres` of a clone"):
        source.of_the_source(module, folder)
    assert sys.path == before
