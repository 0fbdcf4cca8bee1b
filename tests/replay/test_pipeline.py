"""Pipeline operations match NumPy, pipelines convert to and from JSON, and invalid ones are rejected."""

import contextlib
import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from weft.errors import WeftError
from weft.replay.pipeline import OPERATIONS, Pipeline


def batch():
    rng = np.random.default_rng(0)
    return {
        "obs": {"a": rng.random((4, 3, 2)), "b": rng.random((4, 3, 1))},
        "reward": rng.integers(0, 5, (4, 3)).astype(np.int32),
        "done": rng.random((4, 3)) < 0.5,
    }


CASES = {
    "concat": (
        Pipeline().concat(("obs/a", "obs/b"), into="x"),
        "x",
        lambda d: np.concatenate([d["obs"]["a"], d["obs"]["b"]], -1),
    ),
    "stack": (
        Pipeline().stack(("reward", "done"), into="x", axis=2),
        "x",
        lambda d: np.stack([d["reward"], d["done"]], 2),
    ),
    "slice": (Pipeline().slice("reward", 1, None), "reward", lambda d: d["reward"][:, 1:]),
    "slice of another axis": (
        Pipeline().rename("obs/a", "a").slice("a", -1, None, axis=2),
        "a",
        lambda d: d["obs"]["a"][..., -1:],
    ),
    "transpose": (
        Pipeline().rename("obs/a", "a").transpose("a", 1, 0, 2),
        "a",
        lambda d: d["obs"]["a"].transpose(1, 0, 2),
    ),
    "sum": (Pipeline().reduce("reward", "sum"), "reward", lambda d: d["reward"].sum(1, dtype=np.int32)),
    "count": (Pipeline().reduce("done", "sum"), "done", lambda d: d["done"].sum(1)),
    "any": (Pipeline().reduce("done", "any", axis=-1), "done", lambda d: d["done"].any(1)),
    "mean": (Pipeline().reduce("reward", "mean"), "reward", lambda d: d["reward"].mean(1)),
    "cast": (Pipeline().cast("done", np.float32), "done", lambda d: d["done"].astype(np.float32)),
}


@pytest.mark.parametrize("case", CASES)
def test_operations_match_numpy(case):
    pipeline, name, expected = CASES[case]
    found = Pipeline.from_json(pipeline.to_json())(batch())[name]
    np.testing.assert_array_equal(found, expected(batch()))
    assert found.dtype == expected(batch()).dtype


def test_keep_and_drop_select_columns():
    assert list(Pipeline().drop("reward", "obs/b")(batch())) == ["obs", "done"]
    assert list(Pipeline().keep("done", "obs/b")(batch())["obs"]) == ["b"]


def test_a_pipeline_does_not_modify_its_input():
    data = batch()
    pipeline = Pipeline().reduce("reward", "sum")
    longer = pipeline.drop("done").cast("reward", np.float64)
    longer(data)
    assert len(pipeline.stages) == 1 and len(longer.stages) == 3
    np.testing.assert_array_equal(data["reward"], batch()["reward"])
    assert list(data) == ["obs", "reward", "done"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["reward", "obs/a", "sum", "<f4", "O", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "axis", "into"]), inner),
    max_leaves=4,
)
ARGUMENTS = st.sampled_from(["name", "names", "into", "axis", "axes", "start", "stop", "how", "dtype"])
STAGES = st.lists(st.tuples(st.sampled_from([*OPERATIONS, "other"]), st.dictionaries(ARGUMENTS, JSON)), max_size=3)


@given(STAGES | JSON)
def test_arbitrary_json_is_a_pipeline_or_rejected(given):
    """Every input gives a batch or a WeftError."""
    with contextlib.suppress(WeftError):
        Pipeline.from_json(json.dumps(given))(batch())


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: Pipeline().reduce("reward", "prod"), "how='prod'"),
        (lambda: Pipeline().cast("reward", object), r"dtype='\|O'"),
        (lambda: Pipeline().drop("other")(batch()), "no column 'other'; the columns are obs/a"),
        (lambda: Pipeline().reduce("reward", "sum", axis=5)(batch()), "reduce of name='reward'.* failed"),
        (lambda: Pipeline().concat(("obs/a", "reward"), into="x")(batch()), "concat of .* failed"),
        (lambda: Pipeline().rename("reward", "obs")(batch()), "one is nested in the other"),
        (lambda: Pipeline.from_json("no"), "expected JSON"),
        (lambda: Pipeline.from_json('[["drp", {}]]'), "did you mean 'drop'"),
        (lambda: Pipeline.from_json('[["drop", {}]]'), r"expected \['names'\]"),
    ],
)
def test_impossible_operations_are_rejected(call, why):
    with pytest.raises(WeftError, match=why):
        call()


def test_repeated_concatenation_cannot_exhaust_memory():
    doubled = Pipeline()
    for _ in range(40):
        doubled = doubled.concat(("x", "x"), into="x")
    with pytest.raises(WeftError, match=r"2 columns of [\d,]+ bytes in total: expected at most 4,294,967,296"):
        doubled({"x": np.broadcast_to(np.zeros(()), (1 << 29, 1))})
