"""Algorithms that learn from a dataset, without environment steps."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.recorded import CONTINUOUS, ENV, record
from weft import WeftError, check, train
from weft.algos.bc import BC
from weft.algos.continuous_cql import ContinuousCQL
from weft.algos.cql import CQL
from weft.algos.off_policy import OffPolicy
from weft.envs import make
from weft.runtime import driver

SMALL: dict[str, Any] = {"num_envs": 4, "hidden": (8,), "batch_size": 16, "updates": 2}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return record(tmp_path_factory.mktemp("played") / "data")


@pytest.fixture(scope="module")
def continuous(tmp_path_factory: pytest.TempPathFactory) -> str:
    return record(tmp_path_factory.mktemp("played") / "data", CONTINUOUS)


@dataclass(frozen=True)
class Case:
    """An algorithm and its environment."""

    kind: type[Any]
    env: str
    one_step: Any = field(default_factory=dict, hash=False)
    """Settings that ignore the next state, which is random in the dataset."""

    def __str__(self) -> str:
        return f"{self.kind.__name__}-{self.env}"


CASES = (
    Case(BC, ENV),
    Case(BC, CONTINUOUS),
    Case(CQL, ENV, {"gamma": 0.0, "alpha": 0.1}),
    Case(ContinuousCQL, CONTINUOUS, {"gamma": 0.0, "alpha": 0.1, "actor_lr": 1e-2}),
)


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def small(case: Case, dataset: str, continuous: str) -> OffPolicy:
    """The algorithm of a case with small settings."""
    return case.kind(**SMALL, dataset=dataset if case.env == ENV else continuous)


@pytest.mark.parametrize("replay", ["device", "host"])
def test_a_run_counts_the_sampled_steps(case: Case, small: OffPolicy, replay: Any) -> None:
    result = driver.train_in_memory(replace(small, replay=replay), case.env, steps=100)
    assert (result.steps, result.iterations, result.episodes) == (128, 4, 0)
    assert int(result.state.learner.updates) == 8


@pytest.mark.parametrize("layout", ["allreduce:workers=2", pytest.param("fused:devices=2", marks=pytest.mark.full)])
def test_replicas_train_on_one_dataset(case: Case, small: OffPolicy, layout: str) -> None:
    result = driver.train_in_memory(small, case.env, layout=layout, steps=64)
    assert result.steps == 64
    assert jax.tree.all(jax.tree.map(lambda x: np.isfinite(x).all(), result.state.net))


@pytest.mark.optimised
def test_allreduce_with_one_worker_changes_nothing(dataset: str) -> None:
    found = check(BC(**SMALL, dataset=dataset), ENV, layout="allreduce:workers=1", iterations=2)
    assert found.identical, found.table()


def test_a_layout_that_steps_environments_is_refused(dataset: str) -> None:
    with pytest.raises(WeftError, match="role 'actor' runs 'env', and the algorithm has no such fragment"):
        driver.train_in_memory(BC(**SMALL, dataset=dataset), ENV, layout="actors", steps=64)


@pytest.mark.parametrize("replay", ["device", "host"])
@pytest.mark.parametrize("length", [1, 3])
def test_items_are_consecutive_steps_and_cover_the_dataset(
    dataset: str, replay: Any, length: int, key: jax.Array
) -> None:
    algo, env = CQL(**SMALL, dataset=dataset, replay=replay, n_step=length), make(ENV, 4)
    state = algo.init(env, key)
    _, batch = algo.table.sample(state.replay, key, (4, 1000))
    steps, pieces = batch.steps, 1 if replay == "host" else 4
    assert steps["obs"].shape == (length, 4, 1000, 4)
    assert len(np.unique(steps["obs"][0, ..., 0])) == 400 - pieces * (length - 1), "all starts of items within each row"
    np.testing.assert_array_equal(steps["action"], steps["obs"][..., 0] > 0)
    np.testing.assert_array_equal(steps["final_obs"][:-1], steps["obs"][1:])


def accuracy(algo: OffPolicy, env: Any, net: Any) -> float:
    obs = jax.random.normal(jax.random.key(1), (500, *env.observation_space.shape))
    _, play = algo.player(env, net, greedy=True)
    action = play((), obs, jnp.zeros(500, bool), jax.random.key(0))[1]
    return float(jnp.mean((action.reshape(500) > 0) == (obs[:, 0] > 0)))


def test_the_rewarded_action_is_learned(case: Case, tmp_path: Any) -> None:
    """BC clones the more frequent action, which CQL also sees rewarded."""
    path = record(tmp_path / "data", case.env, steps=2000, error_rate=0.2)
    algo = case.kind(**SMALL | {"batch_size": 64, "updates": 16}, dataset=path, lr=1e-2, **case.one_step)
    result = driver.train_in_memory(algo, case.env, steps=20_000)
    assert accuracy(algo, make(case.env, 1), result.state.net) > 0.9


def test_the_conservative_loss_lowers_q_of_actions_outside_of_the_dataset(dataset: str, key: jax.Array) -> None:
    gaps = []
    for alpha in (0.0, 2.0):
        algo = CQL(**SMALL, dataset=dataset, alpha=alpha, lr=1e-2)
        state = driver.train_in_memory(algo, ENV, steps=2_000).state
        obs = jax.random.normal(key, (500, 4))
        q, action = state.net(obs)[..., 0], (obs[:, 0] > 0).astype(jnp.int32)
        done, other = (jnp.take_along_axis(q, each[:, None], 1).mean() for each in (action, 1 - action))
        gaps.append(float(done - other))
    assert gaps[1] > gaps[0] + 0.5


def test_cql_samples_actions_in_proportion_to_exp_q(dataset: str, key: jax.Array) -> None:
    algo, env = CQL(**SMALL, dataset=dataset), make(ENV, 1)
    net, obs = algo.build(env, key), jnp.ones((20_000, 4))
    _, play = algo.player(env, net, greedy=False)
    share = jnp.mean(play((), obs, jnp.zeros(20_000, bool), key)[1] == 1)
    np.testing.assert_allclose(share, jax.nn.softmax(net(obs[0])[..., 0])[1], atol=0.02)


def test_evaluation_works_without_environment_steps_in_training(dataset: str, tmp_path: Any) -> None:
    evaluating: dict[str, Any] = {"eval_every": 64, "eval_episodes": 2}
    result = train(BC(**SMALL, dataset=dataset), ENV, steps=64, **evaluating, quiet=True, out=tmp_path / "run")
    assert result.evaluation is not None and result.evaluation >= 8


@pytest.mark.parametrize(
    ("settings", "env", "wrappers", "message"),
    [
        ({"dataset": ""}, ENV, (), "bc learns from a dataset: give one, as --dataset DIR"),
        ({"dataset": "/nowhere"}, ENV, (), "no dataset in /nowhere"),
        ({}, "gymnax:Acrobot-v1", (), "was recorded on gymnax:CartPole-v1, with observation_space"),
        ({}, ENV, ("normalise_obs",), "NormaliseObs learns from environment steps, and bc takes none"),
        ({"num_envs": 500}, ENV, (), r"400 steps, but 500 rows \(num_envs\) with items of 1 steps need at least 500"),
        ({"gamma": 0.5}, ENV, (), "never read its setting gamma=0.5"),
        ({"horizon": 4}, ENV, (), "never read its setting horizon=4"),
        ({"capacity": 7}, ENV, (), "never read its setting capacity=7"),
        ({"warm_up_steps": 7}, ENV, (), "never read its setting warm_up_steps=7"),
        ({"n_step": 3}, ENV, (), "never read its setting n_step=3"),
    ],
)
def test_invalid_settings_are_refused(
    dataset: str, settings: Any, env: str, wrappers: Any, message: str, tmp_path: Any
) -> None:
    algo = BC(**SMALL | {"dataset": dataset} | settings)
    with pytest.raises(WeftError, match=message):
        train(algo, env, steps=64, wrappers=wrappers, quiet=True, out=tmp_path / "run")


def test_prioritised_sampling_is_refused(dataset: str) -> None:
    with pytest.raises(WeftError, match="all drawn alike: leave prioritised out"):
        replace(BC(dataset=dataset), prioritised=True)
