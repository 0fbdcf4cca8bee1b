"""Subroles: parts of a role that depend on each other only by order tokens become independent roles."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.toys import assert_same, on, plain, projected, run, start_of, toy
from weft import Layout, Role
from weft.errors import WeftError
from weft.host import host_call, new_token
from weft.runtime.local import LocalEngine

ONE = jax.ShapeDtypeStruct((), jnp.float32)


class Shelf:
    """A thread-safe host object: a list of numbers."""

    def __init__(self, patience: int = 1) -> None:
        self.numbers: list[float] = []
        self.condition = threading.Condition()
        self.patience = patience
        self.changed = self.sampled = 0

    def insert(self, token: Any, rows: Any) -> Any:
        with self.condition:
            self.numbers.append(float(rows.sum()))
            self.condition.notify_all()
            return np.float32(len(self.numbers))

    def sample(self, token: Any) -> Any:
        """Returns number `n` at the n-th call, after `patience` more numbers were inserted."""
        with self.condition:
            asked, self.sampled = self.sampled, self.sampled + 1
            assert self.condition.wait_for(lambda: len(self.numbers) >= asked + self.patience, 10)
            return np.float32(self.numbers[asked])

    def change(self, token: Any, error: Any) -> Any:
        self.changed += 1
        return np.float32(0)


def replaying(shelf: Shelf, tie: Callable[[Any, Any], Any] = lambda size, sampled: sampled) -> Any:
    """Act, insert, sample, learn, update priorities: the loop of every algorithm with replay."""

    def start(env: Any) -> Any:
        return {"net": jnp.float32(0), "rows": jnp.zeros(env.num_envs), "token": new_token(env.num_envs)}

    def loop(s: Any) -> Any:
        rows = on("act", lambda rows: rows + 1)(s["rows"])
        token, size = host_call(shelf.insert, ONE, s["token"], rows, name="replay.insert")
        token, sampled = host_call(shelf.sample, ONE, token, name="replay.sample")
        net = on("learn", lambda net, sampled: net + sampled)(s["net"], tie(size, sampled))
        token, _ = host_call(shelf.change, ONE, token, net, name="replay.change")
        return {"net": net, "rows": rows, "token": token}

    return toy(start, loop)


def layout(apart: bool) -> Layout:
    return Layout(Role("actor", ("act",)), Role("replay", ("replay",), apart=apart), Role("learner", ("learn",)))


def test_parts_connected_only_by_a_token_become_roles() -> None:
    assert list(projected(replaying(Shelf()), layout(False)).programs) == ["actor", "replay", "learner"]
    parts = ["actor", "replay.insert", "replay.sample", "replay.change", "learner"]
    assert list(projected(replaying(Shelf()), layout(True)).programs) == parts


def test_subroles_compute_the_same_as_the_whole_role() -> None:
    ended = [run(replaying(Shelf()), layout(apart), iterations=6) for apart in (False, True)]
    assert_same(*ended)
    assert_same(ended[0], plain(replaying(Shelf()), 6))
    assert ended[0][0]["token"].tolist() == [18] * 4


def test_subroles_run_at_their_own_pace() -> None:
    # Sampling waits for three more numbers: as one role with inserting, it would wait for itself.
    shelf = Shelf(patience=3)
    engine = LocalEngine(projected(replaying(shelf), layout(True)), stuck_after=20.0)
    state, times = start_of(replaying(shelf)), 6
    shelf.numbers += [0.0, 0.0]
    end = engine.run(state, times)
    assert end["net"] == sum(shelf.numbers[:times])
    assert shelf.changed == times and len(shelf.numbers) == times + 2


def test_parts_that_exchange_values_stay_together() -> None:
    def again(s: Any) -> Any:
        token, size = host_call(lambda token: np.float32(1), ONE, s["token"], name="replay.size")
        token, more = host_call(lambda token, x: x + 1, ONE, token, jnp.sqrt(size), name="replay.more")
        token, last = host_call(lambda token, x: x + 1, ONE, token, s["last"], name="replay.last")
        total = on("replay.keep", lambda total, last: total + last)(s["total"], last)
        return {"token": token, "last": on("learn")(more), "total": total}

    def start(env: Any) -> Any:
        return {"token": new_token(env.num_envs), "last": jnp.float32(0), "total": jnp.float32(0)}

    roles = projected(
        toy(start, again), Layout(Role("replay", ("replay",), apart=True), Role("learner", ("*",)))
    ).layout
    assert [role.runs for role in roles.roles] == [
        ("replay.size", "replay.more"),
        ("replay.last", "replay.keep"),
        ("*",),
    ]


def test_parts_that_share_an_array_of_the_state_stay_together() -> None:
    def loop(s: Any) -> Any:
        token, one = host_call(lambda token, x: x + 1, ONE, s["token"], s["x"], name="replay.one")
        token, two = host_call(lambda token: np.float32(2), ONE, token, name="replay.two")
        x = on("replay.join", lambda one, two: one + two)(one, on("learn")(two))
        return {"token": token, "x": x}

    def start(env: Any) -> Any:
        return {"token": new_token(env.num_envs), "x": jnp.float32(0)}

    roles = projected(toy(start, loop), Layout(Role("replay", ("replay",), apart=True), Role("learner", ("*",)))).layout
    assert [set(role.runs) for role in roles.roles] == [{"replay.one", "replay.join"}, {"replay.two"}, {"*"}]


def apex(actors: int) -> Layout:
    return Layout(
        Role("actor", ("act",), replicas=actors),
        Role("replay", ("replay",), apart=True, take=1),
        Role("learner", ("learn",), free=True),
        registers=[("learner", "actor")],
    )


def reading(shelf: Shelf) -> Any:
    """Like `replaying`, but the actors read the learned parameters."""

    def start(env: Any) -> Any:
        zero = jnp.float32(0)
        return {
            "net": zero,
            "rows": jnp.zeros(env.num_envs),
            "versions": jnp.zeros(env.num_envs),
            "token": new_token(1),
        }

    def loop(s: Any) -> Any:
        rows, versions = on("act", lambda net, rows: (rows + 1, jnp.full_like(rows, net)))(s["net"], s["rows"])
        token, _ = host_call(shelf.insert, ONE, s["token"], rows, name="replay.insert")
        token, sampled = host_call(shelf.sample, ONE, token, name="replay.sample")
        net = on("learn", lambda net, sampled: net + jnp.sign(sampled))(s["net"], sampled)
        token, _ = host_call(shelf.change, ONE, token, net, name="replay.change")
        return {"net": net, "rows": rows, "versions": versions, "token": token}

    return toy(start, loop)


def test_a_subrole_that_exchanges_values_with_a_free_role_is_free_and_the_other_is_the_consumer() -> None:
    layout = projected(reading(Shelf()), apex(2)).layout
    roles = {role.name: (role.take, role.lanes_per_replica, role.free) for role in layout.roles}
    assert roles == {
        "actor": (None, 1, False),
        "replay.insert": (1, 2, False),
        "replay.sample": (None, 1, True),
        "replay.change": (None, 1, True),
        "learner": (None, 1, True),
    }


def test_lanes_and_a_free_role_each_complete_all_iterations() -> None:
    for actors in (1, 2, 4):
        shelf, times = Shelf(), 12
        engine = LocalEngine(projected(reading(shelf), apex(actors)), stuck_after=20.0)
        state = start_of(reading(shelf))
        end = engine.run(state, times)
        assert len(shelf.numbers) == times * actors and shelf.changed == times
        assert end["net"] == times
        assert end["rows"].sum() == times * 4
        # Each lane acted with a version that the learner had published by then.
        assert (end["versions"] <= times).all() and end["versions"].max() >= times - 6


def test_a_message_from_a_lane_to_a_free_role_is_refused() -> None:
    def loop(s: Any) -> Any:
        rows = on("act", lambda rows: rows + 1)(s["rows"])
        net = on("learn", lambda net, rows: net + rows.sum())(s["net"], rows)
        token, _ = host_call(lambda token, rows: np.float32(0), ONE, s["token"], rows, name="replay.insert")
        return {"net": net, "rows": rows, "token": token}

    def start(env: Any) -> Any:
        return {"net": jnp.float32(0), "rows": jnp.zeros(env.num_envs), "token": new_token(1)}

    with pytest.raises(WeftError, match="act.* goes from actor to learner .* but learner has free=True"):
        projected(toy(start, loop), apex(2))


def test_one_part_cannot_be_both_the_consumer_and_free() -> None:
    def loop(s: Any) -> Any:
        rows = on("act", lambda rows: rows + 1)(s["rows"])
        table = on("replay.insert", lambda table, rows: table + rows.sum())(s["table"], rows)
        net = on("learn", lambda net, x: net + x)(s["net"], on("replay.sample", lambda table: 2 * table)(table))
        return {"net": net, "rows": rows, "table": table}

    def start(env: Any) -> Any:
        return {"net": jnp.float32(0), "rows": jnp.zeros(env.num_envs), "table": jnp.float32(0)}

    with pytest.raises(WeftError, match="role replay .* depend on each other through an array of the state"):
        projected(toy(start, loop), apex(2))
