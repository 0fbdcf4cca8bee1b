"""The state of a run as it goes on, put together from what its strands hand over.

In step, a strand hands over its part after the very iteration that was asked for. Lanes have no common iteration: there
each strand hands over its part at the next opportunity, and only one state is asked for at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ReplicaId = tuple[str, int]
ReplicaStates = dict[ReplicaId, dict[int, Any]]


@dataclass
class Snapshots:
    """Parts of states, by the number that each was asked for under."""

    strands: frozenset[ReplicaId]
    in_step: bool
    due: Callable[[int], bool]
    asked: int = 0
    """In lanes: the number that was asked for and is not complete."""
    parts: dict[int, ReplicaStates] = field(default_factory=dict)
    ended: ReplicaStates = field(default_factory=dict)
    """What strands ended with."""
    given: dict[ReplicaId, int] = field(default_factory=dict)
    """The number that each strand last handed over its part for."""

    def offer(self, here: ReplicaId, number: int, part: Callable[[], dict[int, Any]]) -> None:
        """A strand is done with its iteration `number`, and can hand over its part of the state."""
        wanted = number if self.in_step and self.due(number) else self.asked
        # Not to be looked up in `parts`: what was asked for a moment ago may have been taken since.
        if wanted and self.given.get(here) != wanted:
            self.given[here] = wanted
            self.parts.setdefault(wanted, {})[here] = part()

    def take(self, number: int) -> ReplicaStates | None:
        """The parts of a state that is complete when row `number` is, if one was asked for."""
        if self.in_step:
            return self.parts.pop(number) if self.due(number) else None
        if not self.asked:
            self.asked = number if self.due(number) else 0
            return None
        parts = self.ended | self.parts.get(self.asked, {})
        if parts.keys() != self.strands:
            return None
        # Nobody need have handed over anything: all may have ended.
        self.parts.pop(self.asked, None)
        self.asked = 0
        return parts
