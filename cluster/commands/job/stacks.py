"""`cluster stacks`."""

from collections.abc import Sequence
from typing import Any

import click

from cluster.app import App, pass_app
from cluster.jobs import open_jobs
from cluster.views.document import as_document, pick
from foundation.errors import NotFoundError, UsageError
from node.job.stacks import Program, Stack, describe_unseen, list_findings, list_locations
from node.protocol import JobSpec
from node.wire import Stacks
from train.follow.records import find_running

MOST_GROUPS = 50


@click.command("stacks")
@click.argument("job", required=False)
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Show the whole stacks of this rank.")
@click.option("--native", is_flag=True, help="With --rank: also the frames of C; this stops the rank for about 0.1 s.")
@click.option("--json", "as_json", is_flag=True, help="Print the stacks as JSON.")
@pass_app
def stacks(app: App, *, job: str | None, rank: int | None, native: bool, as_json: bool) -> None:
    """Show at which lines the processes of a running job are.

    JOB is an id, the start of an id, or a name; default: the job that runs. Processes at the same line are one group.
    Those that do not wait for others come first: the others may wait for them.

    --rank shows all threads of one rank, and of the Python programs that it has started, such as a DataLoader's.
    """
    if native and rank is None:
        raise UsageError("--native belongs to --rank", hint="cluster stacks --rank 0 --native")
    with open_jobs(app) as sources:
        record = find_running(sources.find_records()) if job is None else sources.find_job(job)
        if record is None or sources.head is None:
            raise sources.why_not or NotFoundError("no job is running on this cluster", hint="cluster jobs")
        words = [] if rank is None else [str(rank), *(["native"] if native else [])]
        found = sources.head.read(sources.head.ask("stacks", record.id, *words), Stacks).stacks
    text = render_stacks(found, record.spec) if rank is None else "\n\n".join(render_rank(one) for one in found)
    app.show(text, stack_documents(found), as_json=as_json)


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
    return "\n\n".join(["\n".join(found), *map(_render_program, stack.location.programs)])


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
                **pick(one, "role rank"),
                "node": one.host,
                **pick(one.location, "programs waits nccl collectives"),
                "location": one.location.text or None,
                "stack": one.location.stack or None,
                "why": one.location.why or None,
            }
        )
        for one in stacks
    ]
