"""The process that evaluates while another trains: jobs come in as lines, returns go out as lines.

It gives way to everything else on the machine, and ends when whoever started it does.
"""

import json
import os
import sys
from pathlib import Path

import cloudpickle

from weft.evaluation.episodes import Evaluator


def main() -> None:
    """Play until there is nobody to tell."""
    _give_way()
    algo, env_of, episodes = cloudpickle.loads(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))
    # Answers go where they are read; whatever an environment prints does not.
    answers, sys.stdout = sys.stdout, sys.stderr
    evaluator: Evaluator | None = None
    for line in sys.stdin.buffer:
        path = Path(json.loads(line)["path"])
        try:
            evaluator = evaluator or Evaluator(algo, env_of)
            answer = vars(evaluator(evaluator.learning.load(path), episodes=episodes))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        path.unlink(missing_ok=True)
        print(json.dumps(answer), file=answers, flush=True)


def _give_way() -> None:
    """Run only where and when nothing else would: on one core, and on Linux only while it is idle."""
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


if __name__ == "__main__":
    main()
