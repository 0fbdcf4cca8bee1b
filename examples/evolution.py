"""A custom algorithm and layout: evolution strategies, with two roles that evaluate policies and one that learns."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import weft
from weft import Layout, Mean, Role, fragment


@dataclass(frozen=True, kw_only=True)
class Evolution(weft.Algorithm):
    """Each environment evaluates the policy with its own parameter noise (Salimans et al. 2017)."""

    num_envs: int = 64
    horizon: int = 200
    noise_scale: float = 0.5
    lr: float = 0.5

    def init(self, env, key):
        env_state, obs = env.reset(key)
        return {"net": jnp.zeros((4, 2)), "env": env_state, "obs": obs, "key": key}

    def step(self, env, state):
        key, key_noise, key_env = jax.random.split(state["key"], 3)
        noise = self.perturb(env, key_noise)

        def tick(carry, key):
            env_state, obs, first_episode, score = carry
            env_state, ts = env.step(env_state, self.act(state["net"], noise, obs), key)
            score = score + first_episode * ts.reward
            first_episode = first_episode * (1.0 - (ts.terminated | ts.truncated))
            return (env_state, ts.obs, first_episode, score), None

        start = (state["env"], state["obs"], jnp.ones(env.num_envs), jnp.zeros(env.num_envs))
        (env_state, obs, _, score), _ = jax.lax.scan(tick, start, jax.random.split(key_env, self.horizon))
        net = self.learn(state["net"], noise, score)
        env_state, episodes = env.episodes(env_state)
        return {"net": net, "env": env_state, "obs": obs, "key": key}, episodes | {"score": Mean.of(score)}

    @fragment(name="act.perturb")
    def perturb(self, env, key):
        return self.noise_scale * jax.random.normal(key, (env.num_envs, 4, 2))

    @fragment
    def act(self, net, noise, obs):
        return jnp.argmax(jnp.einsum("bi,bij->bj", obs, net + noise), axis=-1)

    @fragment
    def learn(self, net, noise, score):
        fitness = (score - score.mean()) / (score.std() + 1e-6)
        return net + self.lr * jnp.mean(fitness[:, None, None] * noise, axis=0) / self.noise_scale


layout = Layout(Role("actor", runs=("env", "act"), replicas=2), Role("learner", runs=("learn",)), name="evolution")

if __name__ == "__main__":
    result = weft.train(Evolution(), "gymnax:CartPole-v1", layout=layout, steps=400_000)
    print(f"mean episode length with noise: {result.return_mean:.0f}")
