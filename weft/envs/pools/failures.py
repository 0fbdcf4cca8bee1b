"""What is said when an environment fails: which one, how far it was, and why."""

from weft.errors import WeftError


class EnvFailed(WeftError):
    """An environment raised, died, hung or gave something that it must not give."""


def failed(
    game: str, index: int, *, seed: int, reason: str, steps: int | None = None, episode_steps: int | None = None
) -> EnvFailed:
    """The error for one environment, in one line.

    >>> print(failed("gym:CartPole-v1", 3, seed=17, reason="ValueError: no", steps=120, episode_steps=7))
    gym:CartPole-v1: environment 3 (seed 17) failed at its step 120 (7 of the episode): ValueError: no
    """
    if steps is None:
        when = "while it was made"
    elif steps == 0:
        when = "before its first step"
    else:
        when = f"at its step {steps} ({episode_steps} of the episode)"
    return EnvFailed(f"{game}: environment {index} (seed {seed}) failed {when}: {' '.join(reason.split())}")
