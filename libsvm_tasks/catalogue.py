"""The datasets we know by name: shape, origin, and the address of the LIBSVM collection's copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

COLLECTION = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """What the whole of a dataset looks like. A copy that holds a part of its rows loads under the same name."""

    name: str
    rows: int
    features: int
    classes: int  # 0 for regression
    task: Literal["classification", "regression"]
    origin: str
    url: str | None = None  # the collection's copy, or its training part
    test_url: str | None = None  # the collection's test part: a fetched file holds both, in this order
    empty_features: int = 0  # the last columns, where they are 0 in every row
    recipe: str = ""  # how to make the file, where the collection has no copy

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the addresses whose contents, one after the other, are the dataset."""
        return tuple(url for url in (self.url, self.test_url) if url is not None)


_ENTRIES = (
    DatasetEntry(
        name="letter",
        rows=20_000,
        features=16,
        classes=26,
        task="classification",
        origin='UCI "Letter Recognition"',
        url=f"{COLLECTION}letter.scale",
        test_url=f"{COLLECTION}letter.scale.t",
    ),
    DatasetEntry(
        name="pendigits",
        rows=10_992,
        features=16,
        classes=10,
        task="classification",
        origin='UCI "Pen-Based Recognition of Handwritten Digits"',
        url=f"{COLLECTION}pendigits",
        test_url=f"{COLLECTION}pendigits.t",
    ),
    DatasetEntry(
        name="satimage",
        rows=6_435,
        features=36,
        classes=6,
        task="classification",
        origin='UCI "Statlog (Landsat Satellite)"',
        url=f"{COLLECTION}satimage.scale",
        test_url=f"{COLLECTION}satimage.scale.t",
    ),
    DatasetEntry(
        name="shuttle",
        rows=58_000,
        features=9,
        classes=7,
        task="classification",
        origin='UCI "Statlog (Shuttle)"',
        url=f"{COLLECTION}shuttle.scale",
        test_url=f"{COLLECTION}shuttle.scale.t",
    ),
    DatasetEntry(
        name="usps",
        rows=9_298,
        features=256,
        classes=10,
        task="classification",
        origin="USPS zip-code digits, 16×16 pixels",
        url=f"{COLLECTION}usps.bz2",
        test_url=f"{COLLECTION}usps.t.bz2",
    ),
    DatasetEntry(
        name="mnist",
        rows=70_000,
        features=784,
        classes=10,
        task="classification",
        origin="MNIST handwritten digits, 28×28 pixels",
        url=f"{COLLECTION}mnist.scale.bz2",
        test_url=f"{COLLECTION}mnist.scale.t.bz2",
        empty_features=4,
    ),
    DatasetEntry(
        name="sensorless",
        rows=58_509,
        features=48,
        classes=11,
        task="classification",
        origin='UCI "Dataset for Sensorless Drive Diagnosis"',
        url=f"{COLLECTION}Sensorless.scale",
    ),
    DatasetEntry(
        name="covtype",
        rows=581_012,
        features=54,
        classes=7,
        task="classification",
        origin='UCI "Covertype"',
        url=f"{COLLECTION}covtype.scale01.bz2",
    ),
    DatasetEntry(
        name="occupancy",
        rows=10_129,
        features=16,
        classes=4,
        task="classification",
        origin='UCI "Room Occupancy Estimation"',
        recipe="make it from Occupancy_Estimation.csv: the label is Room_Occupancy_Count, indices 1-16 are S1_Temp to "
        "S7_PIR in the order of the source, each scaled to [0, 1], in time order",
    ),
    DatasetEntry(
        name="airquality",
        rows=6_941,
        features=11,
        classes=0,
        task="regression",
        origin='UCI "Air Quality"',
        recipe="make it from AirQualityUCI.csv: leave out NMHC(GT), then rows with a missing value (-200); the label "
        "is CO(GT), indices 1-11 are the other columns from PT08.S1(CO) to AH, each scaled to [0, 1], in time order",
    ),
    DatasetEntry(
        name="appliances",
        rows=19_735,
        features=27,
        classes=0,
        task="regression",
        origin='UCI "Appliances Energy Prediction"',
        recipe="make it from energydata_complete.csv: the label is Appliances, indices 1-27 are lights to rv2 in the "
        "order of the source, each scaled to [0, 1], in time order",
    ),
    DatasetEntry(
        name="digits",
        rows=1_797,
        features=64,
        classes=10,
        task="classification",
        origin="UCI optical digits, 8×8 pixels, the test part, inside scikit-learn",
    ),
)

CATALOGUE: dict[str, DatasetEntry] = {entry.name: entry for entry in _ENTRIES}
