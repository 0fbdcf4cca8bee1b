"""Host code in a loop is called in order, once per step, on the role that it is placed on."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.toys import layout_of, on, projected, replicated, run, toy
from weft import Layout, Role, WeftError
from weft.host import HostObjects, host_call, new_token, objects, own_objects
from weft.project.program import HostCall, walk
from weft.runtime.jit_with_host import jit_with_host

LENGTH = 3
LAYOUTS = {
    "fused": layout_of(all="*"),
    "apart": layout_of(one="world", two="learn *"),
    "whole": layout_of(one="act *", two="world"),
}


class Recorder:
    """Host code with state: it records every call, and its result depends on the number of calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], list[float]]] = []
        self.threads: set[str] = set()

    def __call__(self, token: np.ndarray, x: np.ndarray) -> np.ndarray:
        self.calls.append((token.tolist(), x.tolist()))
        self.threads.add(threading.current_thread().name)
        return x + len(self.calls)


def walking(recorder: Any, num_envs: int = 4) -> Any:
    """A rollout with host code in every step, between device code."""

    def start(env: Any) -> dict[str, Any]:
        return {"x": jnp.arange(float(env.num_envs)), "token": new_token(env.num_envs), "w": jnp.float32(0)}

    def loop(s: dict[str, Any]) -> dict[str, Any]:
        def tick(carry: Any, _: Any) -> Any:
            token, x = carry
            result = jax.ShapeDtypeStruct(x.shape, x.dtype)
            token, x = host_call(recorder, result, token, on("act", lambda x: x * 2)(x), name="world")
            return (token, jnp.mod(x, 17)), x

        (token, x), xs = lax.scan(tick, (s["token"], s["x"]), length=LENGTH)
        return {"x": x, "token": token, "w": on("learn", lambda w, xs: w + xs.sum())(s["w"], xs)}

    return toy(start, loop, num_envs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_host_code_is_called_in_order_under_every_layout(layout: str) -> None:
    recorder, alone = Recorder(), Recorder()
    algo = walking(recorder)
    ended, _ = run(algo, LAYOUTS[layout], iterations=2)
    expected, _ = run(walking(alone), LAYOUTS["fused"], iterations=2)
    assert recorder.calls == alone.calls
    assert [token for token, _ in recorder.calls] == [[n] * 4 for n in range(2 * LENGTH)]
    assert jax.tree.all(jax.tree.map(np.array_equal, ended, expected))
    assert ended["token"].tolist() == [2 * LENGTH] * 4


def test_host_code_runs_in_the_thread_of_its_role() -> None:
    recorder = Recorder()
    run(walking(recorder), LAYOUTS["apart"])
    assert recorder.threads == {"one[0]"}


def test_each_replica_calls_host_code_with_its_own_rows() -> None:
    recorded: dict[str, list[list[float]]] = {}

    def notes(token: np.ndarray, x: np.ndarray) -> np.ndarray:
        recorded.setdefault(threading.current_thread().name, []).append(x.tolist())
        return x

    layout = Layout(Role("world", ("world", "act"), replicas=2), Role("learner", ("*",)))
    ended, _ = run(walking(notes), layout, iterations=1)
    assert {name: calls[0] for name, calls in recorded.items()} == {"world[0]": [0.0, 2.0], "world[1]": [4.0, 6.0]}
    assert ended["token"].tolist() == [LENGTH] * 4


def test_a_role_over_several_devices_calls_host_code_once_per_device() -> None:
    recorded = []

    def notes(token: np.ndarray, x: np.ndarray) -> np.ndarray:
        recorded.append(x.tolist())
        return x + 1

    algo = toy(
        lambda env: {"x": jnp.arange(float(env.num_envs)), "token": new_token(env.num_envs)},
        lambda s: dict(
            zip(
                ("token", "x"),
                host_call(notes, jax.ShapeDtypeStruct(s["x"].shape, s["x"].dtype), s["token"], s["x"], name="world"),
                strict=True,
            )
        ),
    )
    ended, _ = run(algo, Layout(Role("all", ("*",), devices=2)), iterations=1)
    assert recorded == [[0.0, 1.0], [2.0, 3.0]]
    assert ended["x"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_host_code_is_never_part_of_a_compiled_segment() -> None:
    program = projected(walking(Recorder()), LAYOUTS["fused"]).programs["all"]
    assert [times for step, times in walk(program.steps) if isinstance(step, HostCall)] == [LENGTH]
    assert program.multi_segment and not program.communicates


def test_host_code_is_called_even_if_its_result_is_unused() -> None:
    recorder = Recorder()

    def loop(s: dict[str, Any]) -> dict[str, Any]:
        x = s["x"]
        token, _ = host_call(recorder, jax.ShapeDtypeStruct(x.shape, x.dtype), s["token"], x, name="world")
        return {"x": on("act")(x), "token": token}

    run(toy(lambda env: {"x": jnp.zeros(4), "token": new_token(4)}, loop), layout_of(one="act", two="*"), iterations=2)
    assert len(recorder.calls) == 2


def test_results_of_another_shape_or_dtype_than_declared_are_refused() -> None:
    def wrong(result: Any) -> Any:
        def call(x: jax.Array) -> Any:
            return host_call(lambda token, x: result, jax.typeof(x), new_token(2), x, name="world")[1]

        return jit_with_host(call, jnp.zeros(2))(jnp.zeros(2))

    with pytest.raises(WeftError, match=r"host code 'world' returned float32\[3\] where it declares float32\[2\]"):
        wrong(np.zeros(3, np.float32))
    with pytest.raises(WeftError, match=r"returned float64\[2\] where it declares float32\[2\]"):
        wrong(np.zeros(2))
    with pytest.raises(WeftError, match=r"returned float32\[2, 2\] where it declares float32\[2\]"):
        wrong((np.zeros(2, np.float32),) * 2)


def test_a_result_of_another_structure_than_declared_is_refused() -> None:
    def call(x: jax.Array) -> Any:
        return host_call(lambda token, x: x, (jax.typeof(x),) * 2, new_token(2), x, name="world")[1]

    with pytest.raises(WeftError, match=r"host code 'world' returned PyTreeDef\(\*\), but it declares"):
        jit_with_host(call, jnp.zeros(2))(jnp.zeros(2))


def test_a_branch_around_host_code_is_refused() -> None:
    def loop(s: dict[str, Any]) -> dict[str, Any]:
        x = s["x"]

        def called(x: jax.Array) -> jax.Array:
            return host_call(Recorder(), jax.ShapeDtypeStruct(x.shape, x.dtype), new_token(4), x, name="world")[1]

        return {"x": lax.cond(x.sum() > 0, called, lambda x: x, x)}

    with pytest.raises(WeftError, match=r"a `cond` holds host code \(world\)"):
        projected(toy({"x": jnp.zeros(4)}, loop), layout_of(one="*"))


def test_an_error_in_host_code_names_the_role() -> None:
    def breaks(token: np.ndarray, x: np.ndarray) -> np.ndarray:
        raise OSError("no such simulator")

    with pytest.raises(Exception, match=r"role one\[0\] failed: OSError: no such simulator"):
        run(walking(breaks), LAYOUTS["apart"])


def test_outside_weft_a_host_call_is_a_callback() -> None:
    recorder = Recorder()
    x = jnp.ones(2)
    call = jax.jit(
        lambda x: host_call(recorder, jax.ShapeDtypeStruct((2,), jnp.float32), new_token(2), x, name="world")
    )
    assert call(x)[1].tolist() == [2.0, 2.0]


class Thing:
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_objects_belong_to_their_run_and_are_closed_at_its_end() -> None:
    outside = objects()
    with own_objects() as registry:
        thing = objects().add("thing", Thing())
        assert registry.get("thing") is thing and outside.get("thing") is None
    assert thing.closed == 1 and objects() is outside


def test_all_objects_are_closed_even_if_one_raises() -> None:
    class Stubborn(Thing):
        def close(self) -> None:
            raise OSError("busy")

    registry = HostObjects()
    registry.add(0, Stubborn())
    thing = registry.add(1, Thing())
    with pytest.raises(OSError, match="busy"):
        registry.close()
    assert thing.closed == 1


def test_replicas_share_the_objects_of_their_run() -> None:
    found = []

    def looks(token: np.ndarray, x: np.ndarray) -> np.ndarray:
        found.append(objects())
        return x

    with own_objects() as registry:
        run(walking(looks), replicated(act=1, world=2, learn=1), iterations=1)
    assert set(found) == {registry}
