"""A layout: which role runs which fragments, and how many there are of each role.

>>> layout = Layout(Role("actor", runs=("env", "act"), replicas=4), Role("learner", runs=("learn",)))
>>> layout.placement
{'env': 'actor', 'act': 'actor', 'learn': 'learner'}
>>> print(layout)
actor x4 {env, act} | learner {learn}
"""

from dataclasses import dataclass
from functools import cached_property

from weft.errors import WeftError


@dataclass(frozen=True)
class Role:
    """A party of the computation: the fragments it runs, and its copies.

    `replicas` are independent copies, each with its share of the environments. `devices` makes each copy one program
    over that many devices of its process, again with a share for each. The name `*` stands for every fragment that the
    layout does not name.
    """

    name: str
    runs: tuple[str, ...]
    replicas: int = 1
    devices: int = 1

    @property
    def shares(self) -> int:
        """Into how many parts this role's environments are divided."""
        return self.replicas * self.devices

    def __str__(self) -> str:
        copies = f" x{self.replicas}" if self.replicas > 1 else ""
        devices = f" on {self.devices} devices" if self.devices > 1 else ""
        return f"{self.name}{copies}{devices} {{{', '.join(self.runs)}}}"


@dataclass(frozen=True)
class Layout:
    """How one training loop is cut into roles."""

    roles: tuple[Role, ...]
    name: str = "custom"

    def __init__(self, *roles: Role, name: str = "custom"):
        object.__setattr__(self, "roles", roles)
        object.__setattr__(self, "name", name)
        _validate(roles)

    @cached_property
    def placement(self) -> dict[str, str]:
        """The role that runs each named fragment."""
        return {fragment: role.name for role in self.roles for fragment in role.runs}

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def __str__(self) -> str:
        return " | ".join(map(str, self.roles))


def _validate(roles: tuple[Role, ...]) -> None:
    if not roles:
        raise WeftError("a layout needs at least one role, as in Layout(Role('all', runs=('*',)))")
    for role in roles:
        if not role.runs or isinstance(role.runs, str):
            raise WeftError(
                f"role {role.name!r} must name the fragments it runs in a tuple, as in runs=('act', 'learn')"
            )
        for field, count in (("replicas", role.replicas), ("devices", role.devices)):
            if not isinstance(count, int) or count < 1:
                raise WeftError(f"role {role.name!r} has {field}={count!r}: give a whole number of at least 1")
    for what, names in (
        ("role", [role.name for role in roles]),
        ("fragment", [f for role in roles for f in role.runs]),
    ):
        for name in names:
            if names.count(name) > 1:
                raise WeftError(f"{what} {name!r} stands twice in the layout: each {what} has one place")
