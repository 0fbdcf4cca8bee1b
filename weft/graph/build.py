"""From a jaxpr and a placement to a graph: every fragment call gets its role, and what no role may cut stays whole.

The rules, for each equation:

- no fragment in it: glue, run by whoever needs its result;
- a fragment that the layout names, or a loop or branch all of whose fragments one role runs: one node of that role;
- a fragment that the layout does not name but whose inner fragments it does: its body stands in line in its place;
- a loop with fragments of several roles: a node with a body, which each of those roles runs in its own projection;
- a `cond` or `while` over several roles: refused.

Two things can never be inside a compiled run: a merge over the replicas of a role, and host code. Whatever holds one is
opened in the same way, down to it, and its equations stay with their role.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from weft.errors import WeftError, listed, nearest
from weft.graph.graph import Graph, Node, Value
from weft.graph.marks import Mark, mark_of, marks_in, placed_role, scan_shape, token_index
from weft.graph.trace import Trace
from weft.layout.layout import Layout


def build_graph(trace: Trace, layout: Layout) -> Graph:
    """The graph of a traced loop, with the layout's roles on its nodes."""
    _check_names(layout, trace.fragments)
    return graph_from_jaxpr(trace.jaxpr, trace.state_names, layout)


def graph_from_jaxpr(closed: Any, names: Sequence[str], layout: Layout) -> Graph:
    """The graph of any closed jaxpr, with names for its inputs."""
    inputs = tuple(Value(aval, name) for aval, name in zip(closed.in_avals, names, strict=True))
    scope = _Lift(layout)
    outputs = scope.closed(closed, inputs, owner=None)
    return Graph(inputs, tuple(scope.nodes), outputs)


@dataclass
class _Lift:
    """Collects the nodes of one scope while its jaxpr is read."""

    layout: Layout
    path: str = ""
    nodes: list[Node] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    sources: dict[Value, frozenset[str]] = field(default_factory=dict)
    """The roles whose nodes a value comes from."""
    settled: bool = True
    """Whether these are all known: what a loop's carry comes from shows only after its body is read."""
    loose: set[Value] = field(default_factory=set)
    """Tokens that hang on no call."""
    labels: dict[Any, str] = field(default_factory=dict)
    """Names for what becomes a loop's carry: it is called what it will be (`state.net.weight`), not who made it."""

    def closed(self, closed: Any, inputs: Sequence[Value], owner: str | None) -> tuple[Value, ...]:
        """Read a closed jaxpr into this scope: its equations run on `owner` if there is one."""
        env = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        env |= {var: _const(const) for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True)}

        def read(atom: Any) -> Value:
            return _const(atom.val, atom.aval) if isinstance(atom, jex.Literal) else env[atom]

        for eqn in closed.jaxpr.eqns:
            outputs = self.equation(eqn, tuple(read(atom) for atom in eqn.invars), owner)
            env.update(zip(eqn.outvars, outputs, strict=True))
        return tuple(read(atom) for atom in closed.jaxpr.outvars)

    def equation(self, eqn: Any, inputs: tuple[Value, ...], owner: str | None) -> tuple[Value, ...]:
        mark, roles = mark_of(eqn), self.roles(eqn, owner)
        if not roles and any(inner.kind == "merge" for inner in marks_in(eqn)):
            if mark is None and eqn.primitive.name in ("jit", "pjit"):
                return self.closed(eqn.params["jaxpr"], inputs, owner)
            owner = self.maker(inputs)
            roles = frozenset({owner} if owner else ())
            if mark and mark.kind == "merge" and owner:
                return self.merge(mark, eqn, inputs, owner)
        if not roles:
            return self.add("glue", eqn.primitive.name, eqn, inputs)
        if len(roles) == 1 and not self.interrupts(eqn, roles):
            (role,) = roles
            return self.whole(mark, eqn, inputs, role, owner)
        if mark and mark.kind == "merge":
            return self.merge(mark, eqn, inputs, owner)
        if mark and mark.kind == "host":
            return self.host(mark, eqn, inputs, owner)
        if eqn.primitive.name in ("jit", "pjit"):
            return self.opened(mark, eqn, inputs, owner)
        if eqn.primitive.name == "scan":
            return self.loop(eqn, inputs, owner)
        raise _uncuttable(eqn, roles)

    def whole(self, mark: Mark | None, eqn: Any, inputs: Any, role: str, owner: str | None) -> tuple[Value, ...]:
        """A node that one role runs as it is."""
        if owner is not None:
            return self.add("glue", eqn.primitive.name, eqn, inputs, role=role)
        if mark is None and eqn.primitive.name in ("jit", "pjit"):
            return self.closed(eqn.params["jaxpr"], inputs, owner)
        kind, name = ("fragment", mark.name) if mark else ("loop", eqn.primitive.name)
        return self.add(kind, name, eqn, inputs, role=role, key=self.key(name))

    def opened(self, mark: Mark | None, eqn: Any, inputs: Any, owner: str | None) -> tuple[Value, ...]:
        """A call whose body stands in line; if one role runs it, a closing node names its results."""
        role = self.role_of(mark, eqn) if mark and owner is None else owner
        outputs = self.closed(eqn.params["jaxpr"], inputs, role)
        if mark is None or owner is not None or role is None:
            return outputs
        # A token that hangs on no call is nobody's to give.
        given = [index for index, value in enumerate(outputs) if value not in self.loose]
        named = self.close(mark, eqn, [outputs[index] for index in given], given, role)
        return tuple(named.get(index, value) for index, value in enumerate(outputs))

    def close(self, mark: Mark, eqn: Any, values: Any, places: list[int], role: str) -> dict[int, Value]:
        """A node that names some results of an opened call."""
        names = _result_names(mark.name, eqn, [])
        labels = [self.labels.get(eqn.outvars[place], names[place]) for place in places]
        outputs = tuple(Value(value.aval, label) for value, label in zip(values, labels, strict=True))
        self.append(Node("fragment", mark.name, tuple(values), outputs, None, role=role, key=self.key(mark.name)))
        return dict(zip(places, outputs, strict=True))

    def merge(self, mark: Mark, eqn: Any, inputs: Any, owner: str | None) -> tuple[Value, ...]:
        return self.add("merge", mark.name, eqn, inputs, role=owner, key=self.key("all_" + mark.name))

    def host(self, mark: Mark, eqn: Any, inputs: Any, owner: str | None) -> tuple[Value, ...]:
        """A call of host code; where it needs no order, its token is counted beside it, and waited for by nobody."""
        place = token_index(eqn) if owner and self.layout.role(owner).apart else None
        token, given = None, inputs
        if place is not None:
            token = inputs[place]
            nothing = _const(np.zeros(token.shape, token.aval.dtype))
            given = (*inputs[:place], nothing, *inputs[place + 1 :])
        outputs = self.add("host", mark.name, eqn, given, role=owner, key=self.key("host " + mark.name))
        return outputs if token is None else (self.counted(token), *outputs[1:])

    def counted(self, token: Value) -> Value:
        """A token after one more call, for whoever needs it."""
        count = jax.make_jaxpr(lambda token: token + 1)(jax.ShapeDtypeStruct(token.shape, token.aval.dtype))
        (after,) = self.closed(count, (token,), owner=None)
        self.loose.add(after)
        return after

    def loop(self, eqn: Any, inputs: Any, owner: str | None) -> tuple[Value, ...]:
        """A loop that several parties run together, each its own part of the body."""
        if eqn.params["length"] == 0:
            raise WeftError("a loop of no steps spans roles or replicas: give it at least one step")
        key = self.key("loop")
        avals = eqn.params["jaxpr"].in_avals
        body_inputs = tuple(Value(aval, value.name) for aval, value in zip(avals, inputs, strict=True))
        sources = {inside: self.made_by([value]) for inside, value in zip(body_inputs, inputs, strict=True)}
        body, outputs = self.body(eqn, key, body_inputs, sources, owner)
        graph = Graph(body_inputs, tuple(body.nodes), outputs)
        names = [value.name for value in outputs]
        results = self.add("loop", "loop", eqn, inputs, role=owner, key=key, body=graph, names=names)
        self.sources |= {result: body.made_by([output]) for result, output in zip(results, outputs, strict=True)}
        return results

    def body(self, eqn: Any, key: str, inputs: Any, sources: Any, owner: str | None) -> tuple["_Lift", Any]:
        """A loop's body, read again until it is known who makes what the loop carries."""
        consts, carried = scan_shape(eqn)
        carry, made = inputs[consts:][:carried], eqn.params["jaxpr"].jaxpr.outvars[:carried]
        settled = False
        while True:
            body = _Lift(self.layout, path=key + "/", sources=dict(sources), settled=settled and self.settled)
            body.labels = {var: value.name for var, value in zip(made, carry, strict=True) if isinstance(var, jex.Var)}
            outputs = body.closed(eqn.params["jaxpr"], inputs, owner)
            if settled:
                return body, outputs
            after = {value: sources[value] | body.made_by([out]) for value, out in zip(carry, outputs, strict=False)}
            settled = all(sources[value] == makers for value, makers in after.items())
            sources = sources | after

    def maker(self, inputs: Any) -> str | None:
        """Who merges values outside any fragment: the role that made them, if it has replicas to merge over.

        Replicas that are lanes do not wait for each other, so it is whoever takes from them that merges what it took.
        """
        makers = self.made_by(inputs) or frozenset({self.layout.roles[0].name} if len(self.layout.roles) == 1 else ())
        replicated = sorted(role for role in makers if self.layout.role(role).replicas > 1)
        if len(replicated) > 1:
            raise WeftError(
                f"one merge over the replicas of several roles ({', '.join(replicated)}): merge what each made apart"
            )
        if self.settled and not makers and any(role.replicas > 1 for role in self.layout.roles):
            raise WeftError("a merge outside any fragment, of values that no role made: merge where they are used")
        merger = next(iter(replicated), None)
        consumer = self.layout.consumer
        return consumer.name if merger and consumer and self.layout.role(merger).in_lane else merger

    def made_by(self, values: Any) -> frozenset[str]:
        return frozenset().union(*(self.sources.get(value, frozenset()) for value in values))

    def add(self, kind: Any, name: str, eqn: Any, inputs: Any, **options: Any) -> tuple[Value, ...]:
        """Append a node and give its results, named for the fragment and its result's path where there is one."""
        names = options.pop("names", None) or _result_names(name, eqn, [value.name for value in inputs])
        labels = [self.labels.get(var, label) for var, label in zip(eqn.outvars, names, strict=True)]
        outputs = tuple(Value(var.aval, label) for var, label in zip(eqn.outvars, labels, strict=True))
        self.append(Node(kind, name, inputs, outputs, eqn, **options))
        return outputs

    def append(self, node: Node) -> None:
        self.nodes.append(node)
        makers = frozenset({node.role}) if node.role else self.made_by(node.inputs)
        self.sources |= dict.fromkeys(node.outputs, makers)

    def key(self, name: str) -> str:
        self.counts[name] += 1
        count = self.counts[name]
        return self.path + name + (f"#{count}" if count > 1 else "")

    def roles(self, eqn: Any, owner: str | None) -> frozenset[str]:
        """The roles that run the fragments of an equation, by the outermost names that the layout places."""
        if owner is not None:
            return frozenset({owner})
        mark = mark_of(eqn)
        if mark and mark.kind == "fragment" and (role := self.role_of(mark, eqn)):
            return frozenset({role})
        inner = frozenset().union(
            *(self.roles(e, None) for part in jex.jaxprs_in_params(eqn.params) for e in part.eqns)
        )
        if mark and mark.kind == "fragment" and not inner:
            raise WeftError(
                f"no role runs the fragment {mark.name!r}: add it to a role's runs (the layout is {self.layout}), "
                "or let a role run '*', whatever is not named"
            )
        return inner

    def role_of(self, mark: Mark, eqn: Any) -> str | None:
        """The role that runs a fragment: by its name, or as one of the rest if nothing inside it has a name here."""
        placement = self.layout.placement
        if role := placed_role(mark.name, placement):
            return role
        inner = {other.name for other in marks_in(eqn) if other.kind == "fragment"} - {mark.name}
        return None if any(placed_role(name, placement) for name in inner) else placement.get("*")

    def interrupts(self, eqn: Any, roles: frozenset[str]) -> bool:
        """Whether an equation holds what no compiled run can: host code, or a merge with other replicas."""
        replicated = any(self.layout.role(role).replicas > 1 for role in roles)
        return any(mark.kind == "host" or replicated and mark.kind == "merge" for mark in marks_in(eqn))


def _const(value: Any, aval: Any = None) -> Value:
    return Value(jax.typeof(value) if aval is None else aval, "constant", value)


def _result_names(name: str, eqn: Any, inputs: Sequence[str]) -> list[str]:
    """`env[1].reward` for a result of a fragment, by its path in what that returned; a loop keeps such names."""
    if eqn.primitive.name == "scan":
        body = eqn.params["jaxpr"].jaxpr
        names = dict(zip(body.invars, inputs, strict=True))
        for inner in body.eqns:
            mark = mark_of(inner)
            labels = _result_names(mark.name if mark else name, inner, [_name(names, atom) for atom in inner.invars])
            names |= dict(zip(inner.outvars, labels, strict=True))
        return [_name(names, atom) for atom in body.outvars]
    info = getattr(getattr(eqn.params.get("jaxpr"), "jaxpr", None), "debug_info", None)
    paths = getattr(info, "result_paths", None) or ()
    if len(paths) != len(eqn.outvars):
        paths = [""] * len(eqn.outvars)
    return [name + str(path).removeprefix("result") for path in paths]


def _name(names: dict[Any, str], atom: Any) -> str:
    return "constant" if isinstance(atom, jex.Literal) else names.get(atom, "constant")


def _check_names(layout: Layout, known: frozenset[str]) -> None:
    for role in layout.roles:
        for name in role.runs:
            if name != "*" and not any(f"{fragment}.".startswith(f"{name}.") for fragment in known):
                fitting = "take a layout that names only these (docs/layouts.md shows what trains under what)"
                raise WeftError(
                    f"the layout's role {role.name!r} runs {name!r}, and the algorithm has no such fragment, only "
                    f"{listed(known)}: {nearest(name, known, cutoff=0.6) or fitting}"
                )


def _uncuttable(eqn: Any, roles: frozenset[str]) -> WeftError:
    names = sorted({mark.name for mark in marks_in(eqn) if mark.kind == "fragment"})
    what = eqn.primitive.name
    if any(mark.kind == "host" for mark in marks_in(eqn)):
        return WeftError(
            f"a `{what}` holds host code ({', '.join(names)}), and only a loop by `lax.scan` can be run around it: "
            f"call it in every step, and choose with `jnp.where` what to do with the result"
        )
    who = f"the roles {', '.join(sorted(roles))}" if len(roles) > 1 else f"replicas of {next(iter(roles))}"
    return WeftError(
        f"a `{what}` spans {who} (it holds {', '.join(names) or 'a merge'}), and only a loop by `lax.scan` can be cut: "
        f"move the `{what}` inside a fragment, or run {' and '.join(names) or 'it'} on one role without replicas"
    )
