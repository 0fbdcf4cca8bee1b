"""Columns of steps as those of Arrow: arrays are flattened, and what is empty takes no room."""

from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.replay.nested import Column


def arrow() -> tuple[Any, Any]:
    """The package that reads and writes Parquet, in its two parts."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise WeftError("datasets need another package: pip install 'weft[offline]'") from None
    return pyarrow, pyarrow.parquet


def to_arrow(column: Column, leaf: np.ndarray, empty: np.ndarray | None) -> Any:
    """A column of as many rows as a leaf [N, ...], empty where that is said."""
    pa, _ = arrow()
    leaf = np.ascontiguousarray(leaf.astype(column.dtype, copy=False))
    if not column.shape:
        return pa.array(leaf, mask=empty)
    values, mask = pa.array(leaf.reshape(-1)), None if empty is None else pa.array(empty)
    return pa.FixedSizeListArray.from_arrays(values, leaf[0].size, mask=mask)


def from_arrow(column: Column, found: Any) -> np.ndarray:
    """The rows of a column that are not empty."""
    array = found.combine_chunks()
    array = array.flatten() if column.shape else array.drop_null()
    values = array.to_numpy(zero_copy_only=False).astype(column.dtype, copy=False)
    return values.reshape(-1, *column.shape)
