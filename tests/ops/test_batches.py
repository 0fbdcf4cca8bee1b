import jax.numpy as jnp
import numpy as np
import pytest

from weft.errors import WeftError
from weft.ops.batches import fold_time, shuffled, take_rows


def test_each_epoch_visits_every_row_once_in_its_own_order(key):
    orders = shuffled(key, 60, epochs=3, minibatches=4)
    assert orders.shape == (12, 15)
    epochs = np.asarray(orders).reshape(3, 60)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(60), (3, 1)))
    assert len(np.unique(epochs, axis=0)) == 3 and (epochs != np.arange(60)).any()


def test_rows_that_do_not_divide_are_refused(key):
    with pytest.raises(WeftError, match="100 rows .* 8 equal minibatches"):
        shuffled(key, 100, epochs=1, minibatches=8)


def test_folding_time_keeps_rows_together():
    tree = {"a": jnp.arange(6).reshape(3, 2), "b": jnp.arange(12).reshape(3, 2, 2) // 2}
    rows = take_rows(fold_time(tree), jnp.array([5, 0]))
    assert rows["a"].tolist() == [5, 0] and rows["b"].tolist() == [[5, 5], [0, 0]]
