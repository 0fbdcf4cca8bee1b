"""The state is scattered over replicas and devices, and gathered again."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.toys import assert_same, on, projected, replicated, start_of, toy
from weft import Layout, Role
from weft.metrics import Mean
from weft.runtime.scatter import gather_state, scatter_state


def start(env: Any) -> dict[str, jax.Array]:
    n = env.num_envs
    return {
        "rows": jnp.arange(2.0 * n).reshape(n, 2),
        "columns": jnp.arange(3.0 * n).reshape(3, n),
        "w": jnp.arange(4.0),
        "keys": jax.random.split(jax.random.key(0), n),
    }


def loop(s: dict[str, jax.Array]) -> Any:
    rows, columns = on("a", lambda r, c, w, k: (r + w.sum(), c))(s["rows"], s["columns"], s["w"], s["keys"])
    return s | {"rows": rows, "columns": columns}, {"rows": Mean.of(rows)}


@pytest.mark.parametrize("layout", [replicated(a=1), replicated(a=4), Layout(Role("a", ("a",), devices=2))])
def test_gather_reverses_scatter(layout: Layout) -> None:
    algo = toy(start, loop)
    projection, state = projected(algo, layout), start_of(algo)
    assert_same(gather_state(projection, scatter_state(projection, state)), state)


def test_leaves_are_split_along_their_batch_axis_and_copied() -> None:
    algo = toy(start, loop)
    projection, state = projected(algo, replicated(a=2)), start_of(algo)
    names = projection.trace.state_names
    assert dict(zip(names, projection.batch_axes["a"], strict=True)) == {
        "state['columns']": 1,
        "state['keys']": 0,
        "state['rows']": 0,
        "state['w']": None,
    }
    second = {names[leaf]: array for leaf, array in scatter_state(projection, state)["a", 1].items()}
    np.testing.assert_array_equal(second["state['rows']"], state["rows"][2:])
    np.testing.assert_array_equal(second["state['columns']"], state["columns"][:, 2:])
    np.testing.assert_array_equal(second["state['w']"], state["w"])
    jax.tree.map(lambda array: array.delete(), second)
    np.testing.assert_array_equal(state["w"], jnp.arange(4.0))
