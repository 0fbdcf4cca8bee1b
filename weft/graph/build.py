"""Build: from a traced loop and a layout to a graph whose nodes have roles.

Input: the jaxpr of a trace, and the layout's placement of fragments on roles. Output: a graph. These rules decide which
node an equation becomes:

- an equation without fragments becomes glue, which runs on every role that needs its result;
- a fragment that the layout names, and a loop or branch whose fragments all belong to one role, becomes one node of
  that role;
- a fragment that the layout does not name, but that contains fragments which it names, is inlined;
- a `scan` over fragments of several roles becomes a node with a body, of which each of these roles runs its own part;
- a `cond` or `while` over fragments of several roles is refused.

A merge over several replicas and host code cannot be inside a compiled segment. The calls and loops around them are
opened in the same way, and the equations inside stay with their role.
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
from weft.graph.marks import Mark, mark_of, marks_in, placed_role, refuse_mapped_host_call, scan_shape, token_index
from weft.graph.trace import Trace
from weft.layout.layout import Layout


def build_graph(trace: Trace, layout: Layout) -> Graph:
    """The graph of a traced loop."""
    _check_names(layout, trace.fragments)
    return graph_from_jaxpr(trace.jaxpr, trace.state_names, layout)


def graph_from_jaxpr(closed: Any, names: Sequence[str], layout: Layout) -> Graph:
    """The graph of any closed jaxpr, whose inputs get the given names."""
    inputs = tuple(Value(aval, name) for aval, name in zip(closed.in_avals, names, strict=True))
    builder = _GraphBuilder(layout)
    outputs = builder.read_jaxpr(closed, inputs, owner=None)
    return Graph(inputs, tuple(builder.nodes), outputs)


@dataclass
class _GraphBuilder:
    """Collects the nodes of one scope: a whole jaxpr, or the body of a loop.

    In its methods, `owner` is the role of the opened fragment around an equation, or None outside any fragment.
    """

    layout: Layout
    path: str = ""
    nodes: list[Node] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    sources: dict[Value, frozenset[str]] = field(default_factory=dict)
    """By value: the roles whose nodes it was computed from."""
    sources_known: bool = True
    """Whether `sources` is complete. The sources of a loop's carry are known only after its body was read."""
    counted_tokens: set[Value] = field(default_factory=set)
    """The order tokens of calls without an order."""
    labels: dict[Any, str] = field(default_factory=dict)
    """By variable that becomes a loop's carry: the carry's name, such as `state.net.weight`, which the value takes."""

    def read_jaxpr(self, closed: Any, inputs: Sequence[Value], owner: str | None) -> tuple[Value, ...]:
        """Add the equations of a closed jaxpr to this scope. Returns its outputs."""
        env = dict(zip(closed.jaxpr.invars, inputs, strict=True))
        env |= {var: _const(const) for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True)}

        def read(atom: Any) -> Value:
            return _const(atom.val, atom.aval) if isinstance(atom, jex.Literal) else env[atom]

        for eqn in closed.jaxpr.eqns:
            outputs = self.add_equation(eqn, tuple(read(atom) for atom in eqn.invars), owner)
            env.update(zip(eqn.outvars, outputs, strict=True))
        return tuple(read(atom) for atom in closed.jaxpr.outvars)

    def add_equation(self, eqn: Any, inputs: tuple[Value, ...], owner: str | None) -> tuple[Value, ...]:
        mark, roles = mark_of(eqn), self.roles_of(eqn, owner)
        if not roles and any(inner.kind == "merge" for inner in marks_in(eqn)):
            if mark is None and eqn.primitive.name in ("jit", "pjit"):
                return self.read_jaxpr(eqn.params["jaxpr"], inputs, owner)
            owner = self.merging_role(inputs)
            roles = frozenset({owner} if owner else ())
            if mark and mark.kind == "merge" and owner:
                return self.add_merge(mark, eqn, inputs, owner)
        if not roles and eqn.effects:
            return self.add_effect(eqn, inputs)
        if not roles:
            return self.add("glue", eqn.primitive.name, eqn, inputs)
        if len(roles) == 1 and not self.must_open(eqn, roles):
            (role,) = roles
            return self.add_whole(mark, eqn, inputs, role, owner)
        if mark and mark.kind == "merge":
            return self.add_merge(mark, eqn, inputs, owner)
        if mark and mark.kind == "host":
            return self.add_host_call(mark, eqn, inputs, owner)
        if eqn.primitive.name in ("jit", "pjit"):
            return self.inline(mark, eqn, inputs, owner)
        if eqn.primitive.name == "scan":
            return self.add_loop(eqn, inputs, owner)
        raise _uncuttable(eqn, roles)

    def add_whole(self, mark: Mark | None, eqn: Any, inputs: Any, role: str, owner: str | None) -> tuple[Value, ...]:
        """Add an equation as one node of a role."""
        if owner is not None:
            return self.add("glue", eqn.primitive.name, eqn, inputs, role=role)
        if mark is None and eqn.primitive.name in ("jit", "pjit"):
            return self.read_jaxpr(eqn.params["jaxpr"], inputs, owner)
        kind, name = ("fragment", mark.name) if mark else ("loop", eqn.primitive.name)
        return self.add(kind, name, eqn, inputs, role=role, key=self.new_key(name))

    def inline(self, mark: Mark | None, eqn: Any, inputs: Any, owner: str | None) -> tuple[Value, ...]:
        """Add the body of a call in its place. If one role runs the call, a last node names its results."""
        role = self.role_running(mark, eqn) if mark and owner is None else owner
        outputs = self.read_jaxpr(eqn.params["jaxpr"], inputs, role)
        if mark is None or owner is not None or role is None:
            return outputs
        # Every role computes a counted token itself, so it is not a result of this call.
        indices = [index for index, value in enumerate(outputs) if value not in self.counted_tokens]
        named = self.name_results(mark, eqn, [outputs[index] for index in indices], indices, role)
        return tuple(named.get(index, value) for index, value in enumerate(outputs))

    def name_results(self, mark: Mark, eqn: Any, values: Any, indices: list[int], role: str) -> dict[int, Value]:
        """Add a node that names some results of an inlined call."""
        names = _result_names(mark.name, eqn, [])
        labels = [self.labels.get(eqn.outvars[index], names[index]) for index in indices]
        outputs = tuple(Value(value.aval, label) for value, label in zip(values, labels, strict=True))
        self.append(Node("fragment", mark.name, tuple(values), outputs, None, role=role, key=self.new_key(mark.name)))
        return dict(zip(indices, outputs, strict=True))

    def add_effect(self, eqn: Any, inputs: Any) -> tuple[Value, ...]:
        """Add an operation outside any fragment that does more than compute, such as `jax.debug.print`."""
        if len(self.layout.roles) > 1:
            raise WeftError(
                f"a `{eqn.primitive.name}` with a side effect (such as jax.debug.print) is outside any fragment, so it "
                "belongs to no role: move it into a fragment"
            )
        return self.add("glue", eqn.primitive.name, eqn, inputs, role=next(iter(self.layout.roles)).name)

    def add_merge(self, mark: Mark, eqn: Any, inputs: Any, owner: str | None) -> tuple[Value, ...]:
        return self.add("merge", mark.name, eqn, inputs, role=owner, key=self.new_key("all_" + mark.name))

    def add_host_call(self, mark: Mark, eqn: Any, inputs: Any, owner: str | None) -> tuple[Value, ...]:
        """Add a host call. On a role with `apart` calls have no order: they take no token, and glue counts them."""
        refuse_mapped_host_call(eqn)
        index = token_index(eqn) if owner and self.layout.role(owner).apart else None
        token, operands = None, inputs
        if index is not None:
            token = inputs[index]
            no_token = _const(np.zeros(token.shape, token.aval.dtype))
            operands = (*inputs[:index], no_token, *inputs[index + 1 :])
        outputs = self.add("host", mark.name, eqn, operands, role=owner, key=self.new_key("host " + mark.name))
        return outputs if token is None else (self.count_call(token), *outputs[1:])

    def count_call(self, token: Value) -> Value:
        """The token after one more call, computed by glue."""
        count = jax.make_jaxpr(lambda token: token + 1)(jax.ShapeDtypeStruct(token.shape, token.aval.dtype))
        (after,) = self.read_jaxpr(count, (token,), owner=None)
        self.counted_tokens.add(after)
        return after

    def add_loop(self, eqn: Any, inputs: Any, owner: str | None) -> tuple[Value, ...]:
        """Add a shared loop: each role that has a part in it runs its own part of the body."""
        if eqn.params["length"] == 0:
            raise WeftError(
                "a loop with 0 steps holds fragments of several roles, a merge or host code: give it at least one step"
            )
        key = self.new_key("loop")
        avals = eqn.params["jaxpr"].in_avals
        body_inputs = tuple(Value(aval, value.name) for aval, value in zip(avals, inputs, strict=True))
        sources = {inside: self.sources_of([value]) for inside, value in zip(body_inputs, inputs, strict=True)}
        body, outputs = self.read_body(eqn, key, body_inputs, sources, owner)
        graph = Graph(body_inputs, tuple(body.nodes), outputs)
        names = [value.name for value in outputs]
        results = self.add("loop", "loop", eqn, inputs, role=owner, key=key, body=graph, names=names)
        self.sources |= {result: body.sources_of([output]) for result, output in zip(results, outputs, strict=True)}
        return results

    def read_body(
        self, eqn: Any, key: str, inputs: Any, sources: Any, owner: str | None
    ) -> tuple["_GraphBuilder", Any]:
        """Read a loop's body repeatedly, until the sources of its carry are known. Returns its nodes and outputs."""
        consts, carried = scan_shape(eqn)
        carry, next_carry = inputs[consts:][:carried], eqn.params["jaxpr"].jaxpr.outvars[:carried]
        stable = False
        while True:
            known = stable and self.sources_known
            body = _GraphBuilder(self.layout, path=key + "/", sources=dict(sources), sources_known=known)
            named = zip(next_carry, carry, strict=True)
            body.labels = {var: value.name for var, value in named if isinstance(var, jex.Var)}
            outputs = body.read_jaxpr(eqn.params["jaxpr"], inputs, owner)
            if stable:
                return body, outputs
            after = {value: sources[value] | body.sources_of([out]) for value, out in zip(carry, outputs, strict=False)}
            stable = all(sources[value] == roles for value, roles in after.items())
            sources = sources | after

    def merging_role(self, inputs: Any) -> str | None:
        """The role that merges values outside any fragment: the role that computed them, if it has several replicas.

        Lanes do not wait for each other. Values of lanes are merged by the consumer, over the lanes that it took.
        """
        only = frozenset({self.layout.roles[0].name} if len(self.layout.roles) == 1 else ())
        sources = self.sources_of(inputs) or only
        replicated = sorted(role for role in sources if self.layout.role(role).replicas > 1)
        many = any(role.instances > 1 for role in self.layout.roles)
        if len(replicated) > 1:
            raise WeftError(
                f"one merge, outside any fragment, over replicas of several roles ({', '.join(replicated)}): merge the "
                "values of each role separately"
            )
        if self.sources_known and not sources and any(role.replicas > 1 for role in self.layout.roles):
            raise WeftError(
                "a merge, outside any fragment, of values that no role computed: move it into the fragment that uses "
                "the result"
            )
        # A value of a role without replicas is merged there: the roles that receive it may have replicas.
        merger = next(iter(replicated or (sources if len(sources) == 1 and many else ())), None)
        consumer = self.layout.consumer
        return consumer.name if merger and consumer and self.layout.role(merger).in_lane else merger

    def sources_of(self, values: Any) -> frozenset[str]:
        return frozenset().union(*(self.sources.get(value, frozenset()) for value in values))

    def add(self, kind: Any, name: str, eqn: Any, inputs: Any, **options: Any) -> tuple[Value, ...]:
        """Append a node and return its results, named after the fragment and the result's path in its return value."""
        names = options.pop("names", None) or _result_names(name, eqn, [value.name for value in inputs])
        labels = [self.labels.get(var, label) for var, label in zip(eqn.outvars, names, strict=True)]
        outputs = tuple(Value(var.aval, label) for var, label in zip(eqn.outvars, labels, strict=True))
        self.append(Node(kind, name, inputs, outputs, eqn, **options))
        return outputs

    def append(self, node: Node) -> None:
        self.nodes.append(node)
        sources = frozenset({node.role}) if node.role else self.sources_of(node.inputs)
        self.sources |= dict.fromkeys(node.outputs, sources)

    def new_key(self, name: str) -> str:
        self.counts[name] += 1
        count = self.counts[name]
        return self.path + name + (f"#{count}" if count > 1 else "")

    def roles_of(self, eqn: Any, owner: str | None) -> frozenset[str]:
        """The roles that run the fragments of an equation, by the outermost names that the layout places."""
        if owner is not None:
            return frozenset({owner})
        mark = mark_of(eqn)
        if mark and mark.kind == "fragment" and (role := self.role_running(mark, eqn)):
            return frozenset({role})
        inner = frozenset().union(
            *(self.roles_of(e, None) for part in jex.jaxprs_in_params(eqn.params) for e in part.eqns)
        )
        if mark and mark.kind == "fragment" and not inner:
            raise WeftError(
                f"no role runs the fragment {mark.name!r}: add it to a role's runs (the layout is {self.layout}), "
                "or let a role run '*', every fragment that the layout does not name"
            )
        return inner

    def role_running(self, mark: Mark, eqn: Any) -> str | None:
        """The role that runs a fragment: by its name, or as part of `*` if the layout names no fragment inside it."""
        placement = self.layout.placement
        if role := placed_role(mark.name, placement):
            return role
        inner = {other.name for other in marks_in(eqn) if other.kind == "fragment"} - {mark.name}
        return None if any(placed_role(name, placement) for name in inner) else placement.get("*")

    def must_open(self, eqn: Any, roles: frozenset[str]) -> bool:
        """Whether an equation holds host code or a merge over several replicas, which no compiled segment can hold."""
        replicated = any(self.layout.role(role).replicas > 1 for role in roles)
        return any(mark.kind == "host" or replicated and mark.kind == "merge" for mark in marks_in(eqn))


def _const(value: Any, aval: Any = None) -> Value:
    return Value(jax.typeof(value) if aval is None else aval, "constant", value)


def _result_names(name: str, eqn: Any, inputs: Sequence[str]) -> list[str]:
    """Names such as `env[1].reward`: a fragment and the path in its result. A loop keeps the names of its body."""
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
                advice = "take a layout that names only these (docs/layouts.md shows what trains under what)"
                raise WeftError(
                    f"the layout's role {role.name!r} runs {name!r}, and the algorithm has no such fragment, only "
                    f"{listed(known)}: {nearest(name, known, cutoff=0.6) or advice}"
                )


def _uncuttable(eqn: Any, roles: frozenset[str]) -> WeftError:
    """The error for a control-flow equation that cannot be divided between roles."""
    names = sorted({mark.name for mark in marks_in(eqn) if mark.kind == "fragment"})
    primitive = eqn.primitive.name
    if any(mark.kind == "host" for mark in marks_in(eqn)):
        return WeftError(
            f"a `{primitive}` holds host code ({', '.join(names)}), but of control flow only `lax.scan` may hold it: "
            "call the host code in every step, and select the result to use with `jnp.where`"
        )
    if len(roles) == 1:
        return WeftError(
            f"a `{primitive}` on role {next(iter(roles))} holds a merge over its replicas, but of control flow only "
            "`lax.scan` may hold one: use a `lax.scan` with a fixed number of steps, and `jnp.where` to keep the "
            "values of finished steps; or merge before and after it"
        )
    return WeftError(
        f"a `{primitive}` spans the roles {', '.join(sorted(roles))} (it holds {', '.join(names)}), but only "
        f"`lax.scan` can be divided: move the `{primitive}` inside a fragment, or run {' and '.join(names)} on one role"
    )
