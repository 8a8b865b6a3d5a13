"""The stacks of a job's processes, as text and as JSON. Pure."""

from collections.abc import Sequence
from typing import Any

from cluster.views.document import as_document, pick
from node.job.stacks import Program, Stack, describe_unseen, list_findings, list_locations
from node.protocol import JobSpec

MOST_GROUPS = 50


def render_stacks(stacks: Sequence[Stack], spec: JobSpec) -> str:
    """Renders where the processes of a job are: a line for each group, the workers first."""
    workers = {one.name: one.location for one in stacks if one.role == "worker"}
    others = {one.name: one.location for one in stacks if one.role != "worker"}
    lines = list_findings(workers, most=MOST_GROUPS, is_kv_store=spec.servers > 0 and spec.is_synchronous)
    lines += [f"servers: {text}" for text in list_locations(others, most=MOST_GROUPS)]
    lines += filter(None, [describe_unseen(others)])
    return "\n".join(lines or [f"none of its {len(stacks)} processes is a Python program"])


def render_rank(stack: Stack) -> str:
    """Renders all threads of a process, and of the Python programs that it has started."""
    found = list_findings({stack.name: stack.location}, most=1) or [f"no stack of {stack.name}: {stack.location.why}"]
    return "\n\n".join(["\n".join(found), *map(_render_program, stack.programs)])


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
                **pick(one, "role rank programs"),
                "node": one.host,
                **pick(one.location, "waits nccl collectives"),
                "location": one.location.text or None,
                "stack": one.location.stack or None,
                "why": one.location.why or None,
            }
        )
        for one in stacks
    ]
