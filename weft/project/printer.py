"""Prints a projection as text, as a mermaid drawing or as JSON.

`describe` collects everything as plain data. The formats only arrange it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from weft.graph.graph import walk as walk_nodes
from weft.graph.marks import count_fragment_calls
from weft.layout.layout import Role
from weft.project.links import Edge
from weft.project.program import Compute, HostCall, Loop, Merge, Recv, Send, Step
from weft.project.project import Projection

Description = dict[str, Any]


def describe(projection: Projection) -> Description:
    """The roles, with their fragments, state and programs, and the edges, with their kind, rate and bytes."""
    return {
        "layout": projection.layout.name,
        "environment steps per iteration": projection.trace.steps_per_iteration,
        "roles": [_role(projection, role) for role in projection.layout.roles],
        "edges": [_edge(edge) for edge in projection.edges],
    }


def as_text(description: Description) -> str:
    """The description for a terminal."""
    return "\n".join(_text(description))


def as_mermaid(description: Description) -> str:
    """The description as a mermaid flowchart: roles as boxes, edges summed by direction and rate."""
    lines = ["flowchart LR"]
    for role in description["roles"]:
        runs = "<br/>".join(role["runs"])
        takes = f"<br/>takes {role['takes']}" if role["takes"] else ""
        lines.append(f'  {role["name"]}["<b>{_title(role)}</b>{takes}<br/>{runs}"]')
    for (source, dest, kind, rate), edges in _bundles(description).items():
        size = _bytes(sum(edge["bytes"] for edge in edges))
        # A register is a dotted line: its reader does not wait.
        line = ("-.", ".->") if kind == "register" else ("--", "-->")
        lines.append(f'  {source} {line[0]} "{kind}, {rate}: {_count(len(edges), "value")}, {size}" {line[1]} {dest}')
    return "\n".join(lines)


def as_json(description: Description) -> str:
    """The description for other programs."""
    return json.dumps(description, indent=2)


FORMATS: dict[str, Callable[[Description], str]] = {"text": as_text, "mermaid": as_mermaid, "json": as_json}


def _role(projection: Projection, role: Role) -> Description:
    view, length = projection.views[role.name], projection.trace.length
    calls: Counter[str] = Counter()
    for node, times in walk_nodes(view.graph):
        if node.role == role.name and node.kind not in ("glue", "host") and node.body is None:
            calls.update({node.name: times} if node.eqn is None else dict(_calls(node, times)))
    names = projection.trace.state_names
    homes = [name for name, home in zip(names, projection.homes, strict=False) if home == role.name]
    return {
        "name": role.name,
        "replicas": role.replicas,
        "devices": role.devices,
        "on": list(role.on),
        "takes": None if role.take is None else f"{role.take} of {role.lanes_per_replica} lanes",
        "batches": _batches(role),
        "runs": [f"{name} x{times // length}" if times > length else name for name, times in calls.items()],
        "home of": homes,
        "program": _with_registers(projection, role.name, list(_program(projection.programs[role.name].steps))),
    }


def _batches(role: Role) -> str | None:
    """How the calls of several replicas are batched, if they are."""
    return None if role.batch == 1 else f"up to {role.batch} calls, waiting up to {1000 * role.wait:g} ms"


def _with_registers(projection: Projection, role: str, lines: list[Any]) -> list[Any]:
    """A role's program, with its steps at the start and the end of an iteration."""
    program, layout = projection.programs[role], projection.layout
    names = projection.trace.state_names
    first, last = [], []
    if layout.lanes and layout.role(role).in_lane:
        first = ["begin once its last work was consumed" + _bound(layout.max_lag)]
    elif layout.role(role).take is not None:
        first = [f"take {layout.role(role).take} of {layout.role(role).lanes_per_replica} lanes"]
    if program.register_reads:
        first.append(f"read {_shortened([names[leaf] for leaf in sorted(program.register_reads)])} from the register")
    if program.register_writes:
        last = [f"write {_shortened([names[leaf] for leaf in sorted(program.register_writes)])} into the register"]
    if not first and not last:
        return lines
    inner = lines[-1] if lines and isinstance(lines[-1], list) else lines
    return ["in every iteration", [*first, *inner, *last]]


def _bound(max_lag: int | None) -> str:
    return "" if max_lag is None else f" and its lag cannot exceed {max_lag}"


def _calls(node: Any, times: int) -> Counter[str]:
    merge = {f"all_{node.name}": times} if node.kind == "merge" else {}
    return Counter(merge) + count_fragment_calls(node.eqn, times)


def _edge(edge: Edge) -> Description:
    return {
        "from": edge.source,
        "to": edge.dest,
        "value": edge.name,
        "kind": edge.kind,
        "rate": _rate(edge),
        "bytes": edge.bytes,
        "replicas": edge.link.kind,
        "axis": edge.link.axis,
    }


def _rate(edge: Edge) -> str:
    if edge.kind == "register":
        return "latest version"
    return "per iteration" if edge.times == 1 else f"per step, {edge.times} an iteration"


def _program(steps: tuple[Step, ...], *, top: bool = True) -> Iterator[Any]:
    """A role's program as lines. A loop is a line, followed by the list of its body's lines."""
    for step in steps:
        match step:
            case Compute():
                yield f"run {_fragments_of(step)}"
            case Send():
                yield f"send {_values(step)} to {step.dest}"
            case Recv():
                yield f"receive {_values(step)} from {step.source}"
            case Merge():
                names = " and ".join(sorted({f"all_{operation.split()[0]}" for operation in step.operations}))
                yield f"{names} of {_count(len(step.inputs), 'value')} over replicas"
            case HostCall():
                yield f"call host code {step.name}"
            case Loop():
                yield "in every iteration" if top else f"repeat {step.length} times"
                yield list(_program(step.body, top=False))


def _fragments_of(segment: Compute) -> str:
    calls: Counter[str] = Counter()
    for op in segment.ops:
        if op.kind.startswith("equation"):
            calls += count_fragment_calls(op.params["eqn"], 1)
    names = [name if times == 1 else f"{name} x{times}" for name, times in calls.items()]
    return ", ".join(names) or "glue"


def _values(step: Send | Recv) -> str:
    return _shortened([value.name for value in step.payloads[0] if value is not None])


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _text(description: Description) -> Iterator[str]:
    steps = description["environment steps per iteration"]
    yield f"layout {description['layout']}: {_count(steps, 'environment step')} in one iteration"
    for role in description["roles"]:
        yield ""
        yield _title(role)
        yield f"  runs     {', '.join(role['runs']) or 'nothing'}"
        yield from (f"  {field:<8} {role[field]}" for field in ("takes", "batches") if role[field])
        yield f"  home of  {_homes(role['home of'])}"
        yield "  program"
        yield from _indented(role["program"], "    ")
    for (source, dest, kind, rate), edges in _bundles(description).items():
        yield ""
        yield f"{source} -> {dest}: {kind}, {rate}, {_bytes(sum(edge['bytes'] for edge in edges))}"
        width = max(len(edge["value"]) for edge in edges)
        for edge in edges:
            axis = "" if edge["axis"] is None else f" along axis {edge['axis']}"
            how = "" if edge["replicas"] == "pair" else f"  {edge['replicas']}{axis}"
            yield f"  {edge['value']:<{width}}  {_bytes(edge['bytes']):>9}{how}"


def _homes(names: list[str]) -> str:
    """The fields of the state, each with the number of its leaves."""
    fields = Counter(match[0] if (match := re.match(r"state(\.\w+|\[[^]]*\])", name)) else name for name in names)
    return (
        ", ".join(f"{field} ({count} leaves)" if count > 1 else field for field, count in fields.items()) or "nothing"
    )


def _indented(lines: list[Any], indent: str) -> Iterator[str]:
    for line in lines:
        if isinstance(line, list):
            yield from _indented(line, indent + "  ")
        else:
            yield indent + line


def _bundles(description: Description) -> dict[tuple[str, str, str, str], list[Description]]:
    bundles: dict[tuple[str, str, str, str], list[Description]] = {}
    for edge in description["edges"]:
        bundles.setdefault((edge["from"], edge["to"], edge["kind"], edge["rate"]), []).append(edge)
    return bundles


def _title(role: Description) -> str:
    copies = f" x{role['replicas']}" if role["replicas"] > 1 else ""
    where = ", ".join(role["on"]) or (f"{role['devices']} devices" if role["devices"] > 1 else "")
    return role["name"] + copies + (f" on {where}" if where else "")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"
