"""The stacks of a job's processes, as text and as JSON. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.views.document import as_document
from node.job.stacks import (
    Place,
    Program,
    Stack,
    describe_group,
    describe_kv_store,
    describe_unseen,
    group_places,
)
from node.protocol import JobSpec


def render_stacks(stacks: Sequence[Stack], spec: JobSpec) -> str:
    """Renders where the processes of a job are: a line for each group, the workers first."""
    workers = {one.name: one.place for one in stacks if one.role == "worker"}
    others = {one.name: one.place for one in stacks if one.role != "worker"}
    lines = _render_groups(workers)
    if spec.servers and spec.is_synchronous:
        lines += filter(None, [describe_kv_store(workers)])
    lines += [*_render_groups(others), *filter(None, [describe_unseen(workers | others)])]
    others_count = sum(not place.text for place in (workers | others).values())
    return "\n".join(lines or [f"none of its {others_count} processes runs a Python program that can be looked at"])


def _render_groups(places: Mapping[str, Place]) -> list[str]:
    groups = group_places(places)
    return [describe_group(place, names, is_last=len(names) > 1 and names is groups[-1][1]) for place, names in groups]


def render_rank(stack: Stack) -> str:
    """Renders all threads of a process, and of the Python programs that it has started."""
    head = describe_group(stack.place, [stack.name], is_last=True) if stack.place.text else ""
    why = f"no stack of {stack.name}: {stack.place.why}" if stack.place.why else ""
    return "\n\n".join(filter(None, [head, why, *map(_render_program, stack.programs)]))


def _render_program(program: Program) -> str:
    lines = [f"process {program.pid}: {program.words}"]
    for thread in program.threads:
        lines.append(f"  {thread.thread_name or f'thread {thread.os_thread_id}'}")
        lines += [
            f"    {frame.name} ({frame.short_filename or frame.filename}:{frame.line})" for frame in thread.frames
        ]
    return "\n".join(lines)


def stack_documents(stacks: Sequence[Stack]) -> list[dict[str, Any]]:
    """Returns the output of `cluster stacks --json`."""
    return [
        as_document(
            {
                "role": one.role,
                "rank": one.rank,
                "host": one.host,
                "line": one.place.text or None,
                "waits": one.place.waits,
                "stack": one.place.stack or None,
                "why": one.place.why or None,
                "programs": one.programs,
            }
        )
        for one in stacks
    ]
