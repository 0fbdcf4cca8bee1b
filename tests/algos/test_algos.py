"""Properties of all on-policy algorithms of `ALGOS`."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tests.algos.experience import SMALL, collect, different, learned_net
from weft.algos import ALGOS
from weft.algos.on_policy import OnPolicy
from weft.envs import make
from weft.metrics import Mean
from weft.runtime import driver


@pytest.fixture(params=[name for name, kind in ALGOS.items() if issubclass(kind, OnPolicy)])
def kind(request):
    return ALGOS[request.param]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("spec", ["gymnax:CartPole-v1", "gymnax:Pendulum-v1"])
def test_an_iteration_keeps_the_shapes_and_types_of_the_state(kind, spec, shared, key):
    algo, env = kind(**SMALL, shared=shared), make(spec, SMALL["num_envs"])
    state = jax.eval_shape(lambda key: algo.init(env, key), key)
    after, metrics = jax.eval_shape(lambda state: algo.step(env, state), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.weak_type), state
    )
    assert all(isinstance(mean, Mean) and mean.total.shape == mean.count.shape == () for mean in metrics.values())
    assert {"policy_loss", "value_loss", "entropy", "episode_return", "episode_length"} <= set(metrics)


def test_trajectories_have_a_time_axis_and_an_environment_axis(kind, key):
    algo = kind(**SMALL)
    env = make("gymnax:CartPole-v1", SMALL["num_envs"])
    trajectory = jax.eval_shape(lambda key: collect(algo, env, algo.init(env, key)), key)
    assert all(leaf.shape[:2] == (SMALL["horizon"], SMALL["num_envs"]) for leaf in jax.tree.leaves(trajectory))


# Returns are at most 1, so gradients are small.
ADAM = {"optimiser": "adam", "optimiser_epsilon": 1e-5}


@pytest.mark.parametrize(
    ("name", "iterations", "settings"),
    [("reinforce", 200, {}), ("a2c", 500, ADAM), ("ppo", 60, {}), ("impala", 500, ADAM), ("appo", 60, {})],
)
def test_an_algorithm_learns(name, iterations, settings, key):
    algo = ALGOS[name](num_envs=16, horizon=32, lr=3e-3, **settings)
    env = make("gymnax:Catch-bsuite", algo.num_envs)
    run = jax.jit(lambda state: jax.lax.scan(lambda s, _: algo.step(env, s), state, length=iterations)[1])
    returns = run(algo.init(env, key))["episode_return"]
    first, last = (returns.total[part].sum() / returns.count[part].sum() for part in (slice(5), slice(-5, None)))
    assert first < -0.3 and last > 0.8


def test_rows_that_an_autoreset_inserted_do_not_change_the_result(kind, key):
    algo, env = kind(**SMALL), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = algo.init(env, key)
    trajectory = collect(algo, env, state)
    row = (10, 2)
    trajectory = dataclasses.replace(
        trajectory,
        terminated=trajectory.terminated.at[9, 2].set(True).at[-1].set(True),
        truncated=jnp.zeros_like(trajectory.truncated),
        valid=trajectory.valid.at[row].set(False),
    )
    garbled = dataclasses.replace(
        trajectory,
        obs=trajectory.obs.at[row].add(1.0),
        action=trajectory.action.at[row].set(1 - trajectory.action[row]),
        final_obs=trajectory.final_obs.at[row].add(1.0),
        reward=trajectory.reward.at[row].add(5.0),
    )
    counted = dataclasses.replace(garbled, valid=jnp.ones_like(trajectory.valid))
    assert not different(learned_net(algo, state, trajectory), learned_net(algo, state, garbled))
    assert different(learned_net(algo, state, garbled), learned_net(algo, state, counted))


def test_the_row_of_a_restarted_environment_does_not_change_the_result(kind, key):
    """The row is invalid and truncated, and no episode ended before it."""
    algo, env = kind(**SMALL), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = algo.init(env, key)
    trajectory = collect(algo, env, state)
    row = (10, 2)
    trajectory = dataclasses.replace(
        trajectory,
        terminated=trajectory.terminated.at[9, 2].set(False).at[row].set(False).at[-1].set(True),
        truncated=jnp.zeros_like(trajectory.truncated).at[row].set(True),
        valid=trajectory.valid.at[row].set(False),
    )
    garbled = dataclasses.replace(
        trajectory,
        obs=trajectory.obs.at[row].add(1.0),
        final_obs=trajectory.final_obs.at[row].add(1.0),
        reward=trajectory.reward.at[row].add(5.0),
    )
    assert not different(learned_net(algo, state, trajectory), learned_net(algo, state, garbled))


def test_the_step_size_decays_to_0_over_anneal_steps(kind):
    algo, env = kind(**SMALL, anneal_steps=1280), make("gymnax:CartPole-v1", SMALL["num_envs"])
    assert [float(algo.remaining(env, jnp.int32(i))) for i in (0, 5, 10, 20)] == [1.0, 0.5, 0.0, 0.0]
    assert float(kind(**SMALL).remaining(env, jnp.int32(20))) == 1.0


@pytest.mark.parametrize(
    "layout",
    [
        "seed:envs=2",
        "allreduce:workers=2",
        *(pytest.param(each, marks=pytest.mark.full) for each in ("fused", "fused:devices=2", "actors:actors=2")),
    ],
)
def test_the_step_size_decays_equally_fast_under_every_layout(layout):
    """To 0 after three iterations of all environments, for any number of replicas."""
    algo = ALGOS["a2c"](num_envs=4, horizon=8, hidden=(8,), anneal_steps=3 * 4 * 8)
    nets = [
        driver.train_in_memory(algo, "gymnax:CartPole-v1", layout=layout, steps=iterations * 32).state.net
        for iterations in (2, 3, 4)
    ]
    assert different(nets[0], nets[1]) and not different(nets[1], nets[2])


def test_after_annealing_the_network_stays_the_same(kind, key):
    algo, env = kind(**SMALL, anneal_steps=1), make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = dataclasses.replace(algo.init(env, key), iteration=jnp.int32(1))
    assert not different(algo.step(env, state)[0].net, state.net)
