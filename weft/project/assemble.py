"""From the drafts of all roles to their programs: values grouped into messages, operations into runs.

Sends wait until their role is about to receive (or merge, loop, call host code): then all that is due to one receiver
goes as one message, and everything in between is one run of device code.

Why no deadlock: order all messages by the place of their sender's flush in the global program. A role waits only for a
message whose values were made earlier in that order than anything the role itself still owes to the sender's side of
it; between making a value and sending it a role receives nothing. So of all the parties that wait, the one waiting for
the earliest message always gets it. Bounded streams do not change this: a full stream waits for a receipt of an earlier
step.
"""

from collections.abc import Iterable
from dataclasses import replace

from weft.graph.graph import Value
from weft.project.emit import Draft, In, Item, Key, Out, Repeat
from weft.project.program import Loop, Op, Program, Recv, Run, Send, Step, reads


def assemble(drafts: Iterable[Draft]) -> dict[str, Program]:
    """Group the values of all roles into messages and each role's operations into runs."""
    drafts = list(drafts)
    messages: dict[tuple[str, str], dict[Key, tuple[Key, ...]]] = {}
    for part in drafts:
        _collect_messages(part.role, part.items, messages)
    programs = {}
    for part in drafts:
        steps = _group(part.role, part.items, messages)
        used = [value for step in steps for value in reads(step)] + list(part.outputs.values())
        programs[part.role] = Program(part.role, part.inputs, part.outputs, _close(steps, set(used)), part.replica)
    return programs


def _collect_messages(role: str, items: list[Item], messages: dict) -> None:
    """Which values travel together: all that are due to one receiver when their sender next turns to something else."""
    due: dict[str, list[Key]] = {}

    def flush() -> None:
        for to, keys in due.items():
            messages.setdefault((role, to), {}).update(dict.fromkeys(keys, tuple(keys)))
        due.clear()

    for item in items:
        if isinstance(item, Out):
            due.setdefault(item.to, []).append(item.key)
        elif not isinstance(item, Op):
            flush()
        if isinstance(item, Repeat):
            _collect_messages(role, item.items, messages)
    flush()


def _group(role: str, items: list[Item], messages: dict) -> list[Step]:
    """Steps: runs of operations, with sends before anything that may wait."""
    steps: list[Step] = []
    ops: list[Op] = []
    due: dict[str, list[Out]] = {}
    expected = {(item.source, item.key): item for item in items if isinstance(item, In)}
    received: set[tuple[str, Key]] = set()

    def flush() -> None:
        if ops:
            steps.append(Run(tuple(ops)))
        for to, outs in due.items():
            steps.append(Send(_label(role, to, outs[0].key), to, _transpose([out.parts for out in outs])))
        ops.clear()
        due.clear()

    for item in items:
        if isinstance(item, Op):
            ops.append(item)
        elif isinstance(item, Out):
            due.setdefault(item.to, []).append(item)
        elif isinstance(item, In):
            # What is due goes out at every receipt, needed or not, so that messages do not depend on how others group
            # theirs.
            known = (item.source, item.key) in received
            if due or not known:
                flush()
            if known:
                continue
            keys = messages[item.source, role][item.key]
            received |= {(item.source, key) for key in keys}
            parts = _transpose([expected[item.source, key].parts for key in keys])
            steps.append(Recv(_label(item.source, role, keys[0]), item.source, parts))
        else:
            flush()
            repeat = isinstance(item, Repeat)
            steps.append(replace(item.loop, body=tuple(_group(role, item.items, messages))) if repeat else item)
    flush()
    return steps


def _label(source: str, to: str, key: Key) -> str:
    return f"{source}->{to}:{key[0]}[{key[1]}]"


def _transpose(parts: list[tuple[Value | None, ...]]) -> tuple[tuple[Value | None, ...], ...]:
    """From parts by value to parts by replica."""
    return tuple(zip(*parts, strict=True))


def _close(steps: list[Step] | tuple[Step, ...], used: set[Value]) -> tuple[Step, ...]:
    """Give every run its inputs, and as outputs what anything outside it uses."""
    outside = used | {value for step in steps for value in _run_reads(step)}
    return tuple(_closed(step, outside) for step in steps)


def _run_reads(step: Step) -> set[Value]:
    if isinstance(step, Loop):
        return {value for inner in step.body for value in _run_reads(inner)} | set(reads(step))
    return set(_run_inputs(step.ops)) if isinstance(step, Run) else set(reads(step))


def _closed(step: Step, used: set[Value]) -> Step:
    if isinstance(step, Loop):
        return replace(step, body=tuple(_closed(inner, used) for inner in step.body))
    if not isinstance(step, Run):
        return step
    made = dict.fromkeys(value for op in step.ops for value in op.outputs)
    return Run(step.ops, _run_inputs(step.ops), tuple(value for value in made if value in used))


def _run_inputs(ops: tuple[Op, ...]) -> tuple[Value, ...]:
    made: set[Value] = set()
    inputs: dict[Value, None] = {}
    for op in ops:
        inputs |= dict.fromkeys(value for value in op.inputs if value not in made and not value.is_const)
        made.update(op.outputs)
    return tuple(inputs)
