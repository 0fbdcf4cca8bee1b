"""Assemble: from the drafts of all roles to their programs.

Input: drafts, which send and receive value by value. Output: programs, in which values are grouped into messages and
operations into compiled segments. A send waits until its role is about to receive, merge, enter a loop or call host
code. Then all values that are due to one receiver go as one message, and the operations since the last such point form
one compiled segment.

Why there is no deadlock: order all messages by the point of the global program at which their sender sends them.
Between computing a value and sending it, a role receives nothing. So a role that waits for a message waits only for
points that are earlier in this order than any message that the role itself still has to send. Among all roles that
wait, the one that waits for the earliest message therefore receives it. Bounded streams change nothing: the sender to a
full stream waits until the message of an earlier step is received."""

from collections.abc import Iterable
from dataclasses import replace

from weft.graph.graph import Value
from weft.project.emit import Draft, DraftLoop, DraftStep, Incoming, Outgoing, ValueKey
from weft.project.program import Compute, Loop, Op, Payloads, Program, Recv, Send, Step, values_read

Messages = dict[tuple[str, str], dict[ValueKey, tuple[ValueKey, ...]]]
"""By sender and receiver, for every value: the values of its message."""


def assemble(drafts: Iterable[Draft]) -> dict[str, Program]:
    """The programs of all roles, by role."""
    drafts = list(drafts)
    messages: Messages = {}
    for draft in drafts:
        _collect_messages(draft.role, draft.steps, messages)
    return {draft.role: _assemble_program(draft, messages) for draft in drafts}


def _assemble_program(draft: Draft, messages: Messages) -> Program:
    steps = _group(draft.role, draft.steps, messages)
    used = {value for step in steps for value in values_read(step)} | set(draft.outputs.values())
    return Program(draft.role, draft.inputs, draft.outputs, _bind_segments(steps, used), draft.replica_index)


def _collect_messages(role: str, steps: list[DraftStep], messages: Messages) -> None:
    """Group the values that go to one receiver before their sender's next step that is not device code."""
    due: dict[str, list[ValueKey]] = {}

    def flush() -> None:
        for dest, keys in due.items():
            messages.setdefault((role, dest), {}).update(dict.fromkeys(keys, tuple(keys)))
        due.clear()

    for step in steps:
        if isinstance(step, Outgoing):
            due.setdefault(step.dest, []).append(step.key)
        elif not isinstance(step, Op):
            flush()
        if isinstance(step, DraftLoop):
            _collect_messages(role, step.steps, messages)
    flush()


def _group(role: str, draft: list[DraftStep], messages: Messages) -> list[Step]:
    """The steps of a program: compiled segments, each followed by its sends, and the steps that may wait."""
    steps: list[Step] = []
    ops: list[Op] = []
    due: dict[str, list[Outgoing]] = {}
    expected = {(item.source, item.key): item for item in draft if isinstance(item, Incoming)}
    received: set[tuple[str, ValueKey]] = set()

    def flush() -> None:
        if ops:
            steps.append(Compute(tuple(ops)))
        for dest, values in due.items():
            payloads = _payloads([value.slots for value in values])
            steps.append(Send(_label(role, dest, values[0].key), dest, payloads))
        ops.clear()
        due.clear()

    for item in draft:
        if isinstance(item, Op):
            ops.append(item)
        elif isinstance(item, Outgoing):
            due.setdefault(item.dest, []).append(item)
        elif isinstance(item, Incoming):
            # Send at every receive, even of a value that an earlier message brought: the messages of a sender must not
            # depend on how other roles group theirs.
            known = (item.source, item.key) in received
            if due or not known:
                flush()
            if known:
                continue
            keys = messages[item.source, role][item.key]
            received |= {(item.source, key) for key in keys}
            payloads = _payloads([expected[item.source, key].slots for key in keys])
            steps.append(Recv(_label(item.source, role, keys[0]), item.source, payloads))
        elif isinstance(item, DraftLoop):
            flush()
            steps.append(replace(item.loop, body=tuple(_group(role, item.steps, messages))))
        else:
            flush()
            steps.append(item)
    flush()
    return steps


def _label(source: str, dest: str, key: ValueKey) -> str:
    return f"{source}->{dest}:{key[0]}[{key[1]}]"


def _payloads(slots: list[tuple[Value | None, ...]]) -> Payloads:
    """From the slots of each value to the slots of each replica."""
    return tuple(zip(*slots, strict=True))


def _bind_segments(steps: list[Step] | tuple[Step, ...], used: set[Value]) -> tuple[Step, ...]:
    """Set the inputs of every compiled segment, and as its outputs the values that other steps use."""
    outside = used | {value for step in steps for value in _external_reads(step)}
    return tuple(_bind(step, outside) for step in steps)


def _external_reads(step: Step) -> set[Value]:
    if isinstance(step, Loop):
        return {value for inner in step.body for value in _external_reads(inner)} | set(values_read(step))
    return set(_segment_inputs(step.ops)) if isinstance(step, Compute) else set(values_read(step))


def _bind(step: Step, used: set[Value]) -> Step:
    if isinstance(step, Loop):
        return replace(step, body=tuple(_bind(inner, used) for inner in step.body))
    if not isinstance(step, Compute):
        return step
    results = dict.fromkeys(value for op in step.ops for value in op.outputs)
    return Compute(step.ops, _segment_inputs(step.ops), tuple(value for value in results if value in used))


def _segment_inputs(ops: tuple[Op, ...]) -> tuple[Value, ...]:
    computed: set[Value] = set()
    inputs: dict[Value, None] = {}
    for op in ops:
        inputs |= dict.fromkeys(value for value in op.inputs if value not in computed and not value.is_const)
        computed.update(op.outputs)
    return tuple(inputs)
