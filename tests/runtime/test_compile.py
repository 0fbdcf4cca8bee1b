"""The fused layout lowers to the plain loop, without anything of weft."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.toys import Toy, env_of, layout_of, on, projected, replicated, toy
from weft import Layout, Role, all_mean, all_sum, fragment, per_replica, replica
from weft.errors import WeftError
from weft.metrics import Mean
from weft.project.program import Compute, walk
from weft.project.project import Projection
from weft.runtime.compile import lower_compute
from weft.runtime.devices import Devices
from weft.runtime.interpreter import ReplicaContext
from weft.runtime.local import LocalEngine


def toy_loop(mark: Any, mean: Any, numbers: Any) -> Toy:
    """A loop with nested fragments, merges, loops and branches. Parameters decide whether it has weft's marks.

    It has no dead code, which tracing would drop but jit leaves to XLA.
    """

    def gradient(w, xs):
        return jax.value_and_grad(lambda w: jnp.mean((mark("predict", lambda x: jnp.tanh(x * w))(xs) - 1) ** 2))(w)

    def learn(w, xs):
        def epoch(w, _):
            loss, g = mark("gradient", gradient)(w, xs)
            return mark("update", lambda w, g: w - 0.1 * g)(w, mean(g)), loss

        return lax.scan(epoch, w, length=2)

    def loop(s):
        def tick(carry, _):
            x, key = carry
            key, key_act = jax.random.split(key)
            noise = mark("act", lambda k, x: jax.random.normal(k, x.shape) * numbers()[1])(key_act, x)
            x = mark("env", lambda x, a: lax.cond(jnp.sum(a) > 0, jnp.add, jnp.subtract, x, a))(x, noise)
            return (x, key), x

        (x, key), xs = lax.scan(tick, (s["x"], s["key"]), length=3)
        w, losses = mark("learn", learn)(s["w"], xs)
        w = jax.checkpoint(lambda w: mark("clip", jnp.clip)(w, -1.0, 1.0) + numbers()[0])(w)
        return {"x": x, "w": w, "key": key}, {"loss": Mean.of(losses)}

    start = {"x": jnp.zeros(4), "w": jnp.float32(0.5), "key": jax.random.key(0)}
    return toy(start, loop)


def marked() -> Toy:
    return toy_loop(lambda name, fn: on(name, fn), all_mean, replica)


def unmarked() -> Toy:
    return toy_loop(lambda name, fn: fn, lambda tree: tree, lambda: (jnp.int32(0), jnp.int32(1)))


def lower_by_hand(algo: Toy, length: int) -> Any:
    """Lowers the loop as one jitted function of flat arrays, without weft. The state is donated."""
    state = jax.eval_shape(lambda: algo.init(env_of(4), jax.random.key(7)))
    leaves, tree = jax.tree.flatten(state)

    def run(*leaves: Any) -> Any:
        def step(carry, _):
            return algo.step(env_of(4), carry)

        return jax.tree.leaves(lax.scan(step, jax.tree.unflatten(tree, leaves), length=length))

    return jax.jit(run, donate_argnums=range(len(leaves)), keep_unused=True).lower(*leaves)


def only_compute(projection: Projection) -> Compute:
    (program,) = projection.programs.values()
    (compute,) = program.steps
    assert isinstance(compute, Compute)
    return compute


def normalised(lowered: Any) -> str:
    """The text of a lowered program, without locations and names of functions, arguments and results."""
    text = re.sub(r"\s*loc\([^)]*\)|#loc.*", "", lowered.as_text())
    text = re.sub(r'\{?jax\.result_info = "[^"]*"\}?|mhlo\.\w+ = [^,}]*,?|module @\w+', "", text)
    names: dict[str, str] = {}
    return re.sub(r"@[\w.]+", lambda match: names.setdefault(match.group(), f"@f{len(names)}"), text)


@pytest.mark.parametrize("length", [1, 8])
def test_the_fused_layout_lowers_to_the_plain_loop(length: int) -> None:
    compute = only_compute(projected(marked(), layout_of(all="*"), length))
    lowered = lower_compute(compute, ReplicaContext(), frozenset(compute.inputs))
    assert normalised(lowered) == normalised(lower_by_hand(unmarked(), length))


def test_the_comparison_finds_a_difference() -> None:
    compute = only_compute(projected(marked(), layout_of(all="*"), 8))
    assert normalised(lower_compute(compute, ReplicaContext())) != normalised(lower_by_hand(unmarked(), 9))
    assert "fragment" not in normalised(lower_compute(compute, ReplicaContext()))


def test_fragments_have_barriers_only_on_request() -> None:
    compute = only_compute(projected(toy({"x": jnp.zeros(4)}, lambda s: {"x": on("a")(s["x"])}), layout_of(all="*")))
    assert "optimization_barrier" not in lower_compute(compute, ReplicaContext()).as_text()
    assert lower_compute(compute, ReplicaContext(barriers=True)).as_text().count("stablehlo.optimization_barrier") == 2


def test_donated_inputs_are_marked_as_donated() -> None:
    def loop(s):
        return {"x": on("a")(s["x"]), "y": s["y"] * 2}

    compute = only_compute(projected(toy({"x": jnp.zeros(4), "y": jnp.zeros(5)}, loop), layout_of(all="*")))
    text = lower_compute(compute, ReplicaContext(), frozenset(compute.inputs[:1])).as_text()
    assert text.count("tf.aliasing_output") + text.count("jax.buffer_donor") == 1


def test_a_role_over_devices_is_one_program_with_collectives() -> None:
    @fragment(name="a")
    def step(x):
        return x + all_sum(jnp.sum(x)) + all_mean(per_replica(jnp.max(x)))

    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs)}, lambda s: {"x": step(s["x"])})
    compute = only_compute(projected(algo, Layout(Role("a", ("a",), devices=4))))
    text = lower_compute(compute, ReplicaContext(0, 4, "devices", 4), devices=Devices(4)).as_text()
    assert text.count("stablehlo.all_reduce") == 2


def test_too_many_devices_are_an_error_before_the_run() -> None:
    algo = toy(lambda env: {"x": jnp.zeros(env.num_envs)}, lambda s: {"x": on("a")(s["x"])}, num_envs=8)
    with pytest.raises(WeftError, match="asks for 8 devices, but this machine has 4 of kind cpu: ask for at most 4"):
        LocalEngine(projected(algo, Layout(Role("a", ("a",), devices=8))))


def test_every_compute_has_an_executable() -> None:
    algo = toy({"x": jnp.zeros(4)}, lambda s: {"x": on("b")(on("a")(s["x"]))})
    projection = projected(algo, replicated(a=1, b=1))
    for (role, _), executables in LocalEngine(projection).executables.items():
        computes = {step for step, _ in walk(projection.programs[role].steps) if isinstance(step, Compute)}
        assert set(executables) == computes
