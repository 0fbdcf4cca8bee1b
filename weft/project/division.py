"""Division: the sharding of every value on the replicas of every role (see `weft.sharding`).

Each role's program comes from the trace of its share of the environments. This pass reads the graph of the share beside
the graph of the whole, role by role. A value that arrives from another role has the sharding that its link gives it.
With the shardings known, the pass refuses what would make the result depend on the number of replicas: a leaf of the
state that would differ between replicas, a metric that would count twice, a value that no link can bring to a role.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.errors import WeftError
from weft.graph.graph import Graph, Node, Value, walk
from weft.graph.marks import mark_of
from weft.graph.rows import differing_axis
from weft.layout.layout import Layout, Role
from weft.project.emit import ValueKey
from weft.project.views import View
from weft.sharding.calls import CONTROL, inside, other_length, outside
from weft.sharding.marks import MARKS
from weft.sharding.merges import Merges
from weft.sharding.propagate import Propagation
from weft.sharding.sharding import LANE, PENDING, REPLICATED, SUM, Sharding, describe, sharded, unknown

ShardingOf = dict[Value, Sharding]
"""The sharding of each value of a share's graph."""


@dataclass(eq=False)
class Division:
    """For every role: the shardings of the values in its program, and what its merges do."""

    layout: Layout
    views: dict[str, View]
    """By role: the loop at the role's share of the environments."""
    wholes: dict[str, View]
    """By role: the loop whose environments the role's replicas divide."""
    batch_axes: dict[str, tuple[int | None, ...]]
    among_lanes: bool = False
    """Whether only lanes are examined, as shares of all environments. What they receive from other roles is given."""
    shardings: dict[str, ShardingOf] = field(default_factory=dict)
    merges: dict[str, Merges] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shardings = {role.name: {} for role in self.layout.roles}
        # A value's sharding on the receiver follows from that on the sender, so repeat until nothing changes.
        while any([self.update(role) for role in self.roles]):
            pass

    @property
    def roles(self) -> list[Role]:
        return [role for role in self.layout.roles if role.in_lane or not self.among_lanes]

    def refuse_merges(self) -> None:
        """Reject a loop with a merge of values that cannot be merged."""
        for merges in self.merges.values():
            merges.raise_refusal()

    def operations(self, role: str, node: Node) -> tuple[str, ...]:
        """What a merge of a role's replicas does with each of its values. Empty if they do not wait for each other."""
        if not self.layout.replicas_wait(self.layout.role(role)):
            return ()
        if self.replicas(role) == 1:
            return (node.name,) * len(node.inputs)
        return self.merges[role].operations.get(id(node.eqn), (node.name,) * len(node.inputs))

    def merge_operations(self) -> dict[str, dict[int, tuple[str, ...]]]:
        """What all merges do, by role and by the identity of their equations."""
        return {role: merges.operations for role, merges in self.merges.items() if self.replicas(role) > 1}

    def replicas(self, role: str) -> int:
        """The number of shares into which the replicas of a role divide the whole."""
        return self.wholes[role].trace.batch // self.views[role].trace.batch

    def update(self, role: Role) -> bool:
        """Compute a role's shardings from those of the other roles. Returns whether they changed."""
        whole, view = self.wholes[role.name], self.views[role.name]
        sizes, waits = (whole.trace.batch, view.trace.batch), self.layout.replicas_wait(role)
        work = Propagation(self.replicas(role.name), sizes, CONTROL, MARKS, merges_replicas=waits)
        axes = self.batch_axes[role.name][: len(view.graph.inputs)]
        inputs = [REPLICATED if axis is None or work.replicas == 1 else sharded(axis) for axis in axes]
        scope = _Scope(self, role.name, work, {})
        scope.read(whole.graph, view.graph, inputs)
        changed = scope.shardings != self.shardings[role.name]
        self.shardings[role.name], self.merges[role.name] = scope.shardings, work.merges
        return changed

    def sharding(self, role: str, key: ValueKey) -> Sharding:
        """The sharding of a value that may cross, on the replicas of a role."""
        whole, share = self.wholes[role].values[key], self.views[role].values[key]
        sharding = self.shardings[role].get(share, PENDING)
        return _of_shapes(whole, share).depending_on(sharding.depends_on) if sharding.kind == "zero" else sharding

    def sent(self, source: str, dest: str, key: ValueKey) -> Sharding:
        """The sharding that a value is sent with from one role to another; unknown if it cannot be sent right."""
        whole, part = self.wholes[dest].values[key], self.views[dest].values[key]
        arrives, sharding = self.shardings[dest].get(part, PENDING), self.sharding(source, key)
        if arrives.is_unknown:
            return arrives
        if self.replicas(source) == 1:
            return _of_shapes(whole, part)
        axis = differing_axis(self.wholes[source].values[key].shape, self.views[source].values[key].shape)
        own_rows = sharding.kind == "own" and axis is not None
        return sharded(axis).depending_on(sharding.depends_on) if own_rows and axis is not None else sharding

    def received(self, dest: str, node: Node, index: int) -> Sharding:
        """The sharding in which the replicas of a role receive a result of another role's node."""
        if not node.role or not node.key:
            # A node without a key is inside another role's fragment, and its results never leave that role.
            return unknown("is a value inside another role's fragment")
        key = (node.key, index)
        whole, part = self.wholes[dest].values[key], self.views[dest].values[key]
        if self.among_lanes and not self.layout.role(node.role).in_lane:
            return _of_shapes(whole, part)
        if self.views[node.role].values[key] not in self.shardings[node.role]:
            return PENDING
        sent, (senders, receivers) = self.sharding(node.role, key), (self.replicas(node.role), self.replicas(dest))
        if sent.kind in ("unknown", "pending") or senders == receivers:
            return sent
        causes = sent.depends_on
        if senders == 1:
            return _of_shapes(whole, part).depending_on(causes)
        if sent.kind == "own":
            return self._received_own(sent, whole, part, dest, self.views[node.role].values[key])
        if sent.kind == "partial" and receivers < senders and sent.power in (0, 1):
            return REPLICATED.depending_on(causes | SUM) if receivers == 1 else sent
        if not sent.is_exact or sent.kind == "partial":
            return _misplaced(sent)
        if sent.kind == "sharded" and receivers > 1:
            return sent
        return _of_shapes(whole, part).depending_on(causes) if whole.shape == part.shape else _misplaced(sent)

    def _received_own(self, sent: Sharding, whole: Value, part: Value, dest: str, sender_part: Value) -> Sharding:
        """The sharding of values that the author declared each replica's own: rows are gathered, others merged."""
        alone = self.replicas(dest) == 1
        if sender_part.shape != part.shape or whole.shape != part.shape:
            return REPLICATED.depending_on(sent.depends_on) if alone else sent
        merged = alone and self.merge_operation(part, dest)
        return REPLICATED.depending_on(sent.depends_on) if merged else _misplaced(sent)

    def merge_operation(self, value: Value, dest: str) -> str:
        """The operation by which a role merges a value from several replicas, if it uses the value only for that."""
        uses = [n for n, _ in walk(self.views[dest].graph) if value in n.inputs and n.role in (None, dest)]
        operations = {node.name if node.kind == "merge" and node.role == dest else "" for node in uses}
        return operations.pop() if len(operations) == 1 else ""

    def refuse_differences(self) -> None:
        """Reject a loop whose state or metrics would depend on the number of replicas of some role."""
        for role in self.roles:
            if self.replicas(role.name) > 1:
                self._refuse_diverging_state(role)
                if not self.among_lanes:
                    self._refuse_miscounted_metrics(role)

    @property
    def terms(self) -> int:
        """The largest number of terms in a sum over rows that replicas compute in parts."""
        return max(merges.terms for merges in self.merges.values())

    def causes(self) -> dict[str, frozenset[str]]:
        """By output: why it cannot equal that of one replica bit for bit. Empty if it does."""
        causes: dict[str, frozenset[str]] = {}
        for role in self.roles:
            for name, sharding in self._outputs(role):
                causes[name] = causes.get(name, frozenset()) | sharding.depends_on
        return causes

    def _outputs(self, role: Role) -> list[tuple[str, Sharding]]:
        """The outputs that a role produces: names and shardings."""
        view = self.views[role.name]
        names = (*view.trace.state_names, *view.trace.metric_names)
        rows = zip(names, self.wholes[role.name].graph.outputs, view.graph.outputs, strict=True)
        shardings = self.shardings[role.name]
        return [
            (name, REPLICATED if value.is_const else shardings[value])
            for name, _, value in rows
            if role.name in view.demand.producers[value]
        ]

    def _refuse_diverging_state(self, role: Role) -> None:
        view = self.views[role.name]
        axes = dict(zip(view.trace.state_names, self.batch_axes[role.name], strict=False))
        for name, sharding in self._outputs(role):
            if name not in axes or sharding.kind == "zero":
                continue
            if sharding.depends_on >= LANE:
                raise self._lanes_would_wait(name, role)
            axis = axes[name]
            expected = REPLICATED if axis is None else sharded(axis)
            if expected.common(sharding) or sharding.kind == "own" and axis is not None:
                continue
            what = sharding.reason if sharding.is_unknown else f"is {describe(sharding)}"
            raise WeftError(
                f"{name} would come to differ between the {role.instances} replicas of {role.name}, or from the value "
                f"that one replica computes: its next value {what}. {_advice(sharding)}"
            )

    def _lanes_would_wait(self, name: str, role: Role) -> WeftError:
        consumer = self.layout.consumer
        assert consumer is not None
        lanes = consumer.lanes_per_replica
        return WeftError(
            f"the loop merges values over the {role.replicas} replicas of {role.name}, so each lane would wait for all "
            f"others, but {consumer.name} takes {consumer.take} of {lanes} lanes, and {name} depends on the result: "
            f"set take={lanes}, use one lane, or leave out the merge (normalise_obs and normalise_reward need it)"
        )

    def _refuse_miscounted_metrics(self, role: Role) -> None:
        outputs = {name: sharding for name, sharding in self._outputs(role) if name.startswith("metrics")}
        for name, sharding in outputs.items():
            if sharding.is_unknown or sharding.kind == "sharded":
                what = sharding.reason if sharding.is_unknown else "has a row for every environment"
                raise WeftError(
                    f"{name} cannot be added up over the {role.instances} replicas of {role.name}: it {what}. "
                    f"{_advice(sharding)}"
                )
            group = name.rpartition(".")[0]
            powers = {_added_up(outputs[each]) for each in outputs if each.rpartition(".")[0] == group} - {None}
            if len(powers) > 1:
                raise WeftError(
                    f"{group} adds a total and a count of different kinds over the {role.instances} replicas of "
                    f"{role.name}: one of them is {describe(sharding)}, the other is not. Make both with weft.Mean.of "
                    "over the rows, or reduce both with all_sum"
                )


def _operation(node: Node) -> str:
    """What a node computes: the key of a placed node, or the operation of glue, also if it creates a replica's rows."""
    mark = mark_of(node.eqn) if node.eqn is not None else None
    return node.key or (mark.name.split()[0] if mark and mark.kind == "rows" else node.name)


def _of_shapes(whole: Value, part: Value) -> Sharding:
    """The sharding of a value that a single replica sends: it is scattered if its shape is divided, else broadcast."""
    if whole.shape == part.shape:
        return REPLICATED
    axis = differing_axis(whole.shape, part.shape)
    if axis is None:
        return unknown(f"has the shape {list(whole.shape)} with all environments and {list(part.shape)} on a replica")
    return sharded(axis)


def _added_up(sharding: Sharding) -> int | None:
    """The power of the number of replicas by which the sum over all replicas exceeds the whole."""
    if sharding.kind in ("zero", "own"):
        return None
    return sharding.power + (sharding.kind == "replicated")


def _misplaced(sharding: Sharding) -> Sharding:
    what = sharding.reason if sharding.is_unknown else f"is {describe(sharding)}"
    advice = (
        "" if sharding.is_exact else ": divide sums by all_sum of their counts, instead of taking means over a share"
    )
    return unknown(f"crosses to a role with another number of replicas, and {what}{advice}")


def _advice(sharding: Sharding) -> str:
    if sharding.kind == "partial":
        return "Merge it over the replicas with all_sum (of sums) or all_mean (of means)"
    if sharding.kind == "own":
        return "Merge it with all_mean or all_sum, or give it a row for every environment"
    return (
        "Merge values with all_sum or all_mean, collect rows with all_gather, or declare with per_replica that each "
        "replica has its own"
    )


@dataclass
class _Scope:
    """Reads the graphs of one role."""

    division: Division
    role: str
    work: Propagation
    shardings: ShardingOf
    counterparts: dict[Value, Value] = field(default_factory=dict)
    """By value of the whole: the same value of the share."""

    def read(self, whole: Graph, share: Graph, inputs: Sequence[Sharding]) -> list[Sharding]:
        self.shardings.update(zip(share.inputs, inputs, strict=True))
        self.counterparts.update(zip(whole.inputs, share.inputs, strict=True))
        if [_operation(node) for node in whole.nodes] != [_operation(node) for node in share.nodes]:
            raise WeftError(f"the loop {self.work.differs().reason}")
        for a, b in zip(whole.nodes, share.nodes, strict=True):
            operands = [self.operand(x, y) for x, y in zip(a.inputs, b.inputs, strict=True)]
            self.shardings.update(zip(b.outputs, self.results(a, b, operands), strict=True))
            self.counterparts.update(zip(a.outputs, b.outputs, strict=True))
        return [self.operand(a, b) for a, b in zip(whole.outputs, share.outputs, strict=True)]

    def operand(self, whole: Value, share: Value) -> Sharding:
        if share.is_const:
            return self.work.constant(whole.const, share.const) if whole.is_const else self.work.differs()
        return self.shardings[share] if self.counterparts.get(whole) is share else self.work.differs()

    def results(self, whole: Node, share: Node, operands: list[Sharding]) -> list[Sharding]:
        if share.body is not None:
            return self.loop(whole, share, operands)
        if share.role not in (None, self.role):
            return [self.division.received(self.role, share, index) for index in range(len(share.outputs))]
        if share.eqn is None:
            return operands
        return self.work.equation(whole.eqn, share.eqn, operands)

    def loop(self, whole: Node, share: Node, operands: list[Sharding]) -> list[Sharding]:
        if whole.length != share.length:
            raise WeftError(f"a value of {share.key} {other_length((whole.length, share.length)).reason}")
        consts, carried = share.consts, len(share.carried)
        a, b = whole.body, share.body
        assert a is not None and b is not None
        rows = [inside(sharding) for sharding in operands[consts + carried :]]
        results = self.work.loop(
            lambda current: self.read(a, b, current), [*operands[: consts + carried], *rows], consts, carried
        )
        return [*results[:carried], *(outside(sharding) for sharding in results[carried:])]
