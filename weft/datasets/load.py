"""Reads a dataset by its path: a folder of Parquet files, or `minari:ID` for one of Minari's datasets."""

from pathlib import Path

from weft.datasets import minari, parquet
from weft.datasets.dataset import Dataset, Source

MINARI = "minari:"


def read(path: str | Path) -> Dataset:
    """The whole dataset."""
    if str(path).startswith(MINARI):
        return minari.read(str(path).removeprefix(MINARI))
    return parquet.read(path)


def describe(path: str | Path) -> tuple[Source, int]:
    """The environment of a dataset and its number of steps, without reading the steps."""
    if str(path).startswith(MINARI):
        return minari.describe(str(path).removeprefix(MINARI))
    return parquet.describe(path)
