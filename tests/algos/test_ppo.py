import importlib
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.algos.experience import SMALL, collect, different, learned_net
from weft.algos.ppo import PPO
from weft.envs import make
from weft.errors import WeftError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def unmarked(monkeypatch):
    """A fresh import of weft without fragments: all functions are plain functions."""
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "weft"}
    fragment = kept["weft.fragments"]
    monkeypatch.setattr(fragment, "marked", lambda label, fn: fn)
    monkeypatch.setattr(fragment, "_all_mean", lambda tree: tree)
    monkeypatch.setattr(fragment, "_all_sum", lambda tree: tree)
    for name in kept:
        if name.startswith(("weft.envs", "weft.algos", "weft.algorithm")):
            del sys.modules[name]
    yield importlib.import_module("weft.algos").ALGOS, importlib.import_module("weft.envs").make
    for name in [name for name in sys.modules if name.split(".")[0] == "weft"]:
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("plain_ppo").make_ppo(**SMALL)


def program(step, state):
    """The StableHLO text of several steps, with functions numbered in order of appearance."""
    text = jax.jit(lambda state: lax.scan(lambda s, _: step(s), state, length=3)).lower(state).as_text()
    text = re.sub(r'\{?jax\.result_info = "[^"]*"\}?', "", text)
    names: dict[str, str] = {}
    return re.sub(r"@[\w.]+", lambda found: names.setdefault(found[0], f"@f{len(names)}"), text)


def test_ppo_without_fragments_compiles_to_the_handwritten_program(unmarked, plain, key):
    algos, make_env = unmarked
    algo, env = algos["ppo"](**SMALL), make_env("gymnax:CartPole-v1", SMALL["num_envs"])
    init, step = plain
    ours, theirs = algo.init(env, key), init(key)
    for leaf, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jax.typeof(leaf) == jax.typeof(other)
    assert program(lambda s: algo.step(env, s), ours) == program(step, theirs)


@pytest.fixture
def start(key):
    env = make("gymnax:CartPole-v1", SMALL["num_envs"])
    state = PPO(**SMALL).init(env, key)
    return state, collect(PPO(**SMALL), env, state)


@pytest.mark.parametrize(
    "setting",
    [{"clip_value": True}, {"normalise_advantage": False}, {"clip": 0.01}, {"lam": 0.5}, {"epochs": 2}],
    ids=str,
)
def test_every_setting_changes_what_is_learned(start, setting):
    assert different(learned_net(PPO(**SMALL), *start), learned_net(PPO(**SMALL, **setting), *start))


def test_in_the_first_minibatch_all_ratios_are_1(start):
    """With one gradient step per rollout, the network that acted is the one that learns."""
    algo = PPO(**SMALL, epochs=1, minibatches=1)
    state, trajectory = start
    _, _, metrics = algo.learn(state.net, state.opt, trajectory, jnp.ones(()), state.key)
    assert metrics["clip_fraction"].total == 0
    np.testing.assert_allclose(metrics["approx_kl"].total, 0, atol=1e-5)


def test_anneal_clip_requires_anneal_steps():
    assert PPO(anneal_clip=True, anneal_steps=1000).anneal_clip
    with pytest.raises(WeftError, match="anneal_steps is 0"):
        PPO(anneal_clip=True)


def test_an_annealed_clip_clips_more_ratios(start):
    state, trajectory = start
    algo = PPO(**SMALL, anneal_clip=True, anneal_steps=1000, lr=1e-2)

    def clipped(remaining):
        # The step size is annealed too, so the same network is evaluated with both clips.
        _, metrics = algo.gradient(net, samples, samples.valid.sum(), jnp.float32(remaining))
        return metrics["clip_fraction"].total

    samples = algo.samples(state.net, trajectory)
    net = learned_net(algo, state, trajectory)
    assert clipped(0.01) > clipped(1.0)
