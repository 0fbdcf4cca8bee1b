"""The error for an environment that fails: it names the environment, its step and the reason."""

from weft.errors import WeftError


class EnvFailed(WeftError):
    """An environment raised an exception, crashed, hung or returned invalid data."""


def env_failed(
    name: str, index: int, *, seed: int, reason: str, steps: int | None = None, episode_steps: int | None = None
) -> EnvFailed:
    """Returns the error for one environment, with a message of one line.

    >>> print(env_failed("gym:CartPole-v1", 3, seed=17, reason="ValueError: no", steps=120, episode_steps=7))
    gym:CartPole-v1: environment 3 (seed 17) failed at its step 120 (7 of the episode): ValueError: no
    """
    if steps is None:
        when = "while it was made"
    elif steps == 0:
        when = "before its first step"
    else:
        when = f"at its step {steps} ({episode_steps} of the episode)"
    return EnvFailed(f"{name}: environment {index} (seed {seed}) failed {when}: {' '.join(reason.split())}")
