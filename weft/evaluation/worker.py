"""The child process of `weft.evaluation.process`: reads requests from standard input, and writes one reply for each.

It runs at a low priority, and ends when its standard input is closed, as it is when the parent ends.
"""

import json
import os
import sys
from pathlib import Path

import cloudpickle

from weft.evaluation.evaluator import Evaluator


def main() -> None:
    """Evaluate until standard input is closed."""
    _lower_priority()
    algo, env_of, episodes = cloudpickle.loads(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
    # Output that an environment prints must not mix with the replies.
    replies, sys.stdout = sys.stdout, sys.stderr
    evaluator: Evaluator | None = None
    for line in sys.stdin.buffer:
        path = Path(json.loads(line)["path"])
        try:
            evaluator = evaluator or Evaluator(algo, env_of)
            reply = vars(evaluator(evaluator.schema.load(path), episodes=episodes))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        path.unlink(missing_ok=True)
        print(json.dumps(reply), file=replies, flush=True)


def _lower_priority() -> None:
    """Use one core only, and on Linux only while it is idle."""
    os.nice(10)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


if __name__ == "__main__":
    main()
