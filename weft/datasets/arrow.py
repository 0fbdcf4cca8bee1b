"""Converts columns of steps between NumPy and Arrow: an array per step becomes a flat list of fixed size."""

from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.replay.nested import Column


def import_arrow() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`, which are optional dependencies."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise WeftError("datasets need another package: pip install 'weft[offline]'") from None
    return pyarrow, pyarrow.parquet


def to_arrow(column: Column, leaf: np.ndarray, null: np.ndarray | None) -> Any:
    """A leaf [N, ...] as an Arrow array of N rows; rows where `null` is true are null and take no space."""
    pa, _ = import_arrow()
    leaf = np.ascontiguousarray(leaf.astype(column.dtype, copy=False))
    if not column.shape:
        return pa.array(leaf, mask=null)
    values, mask = pa.array(leaf.reshape(-1)), None if null is None else pa.array(null)
    return pa.FixedSizeListArray.from_arrays(values, leaf[0].size, mask=mask)


def from_arrow(column: Column, chunks: Any) -> np.ndarray:
    """The rows of a chunked Arrow array that are not null."""
    array = chunks.combine_chunks()
    array = array.flatten() if column.shape else array.drop_null()
    values = array.to_numpy(zero_copy_only=False).astype(column.dtype, copy=False)
    return values.reshape(-1, *column.shape)
