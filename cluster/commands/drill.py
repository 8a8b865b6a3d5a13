"""`cluster drill`: rehearses the loss of a node with a running job."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import click

from cluster.app import App, if_interrupted, pass_app
from cluster.commands import OrderedGroup
from cluster.completion import NODE
from cluster.jobs import ask_head, open_head
from cluster.nodes.ec2 import Ec2Nodes, describe_state
from cluster.recovery.replacement import replace_lost
from foundation.errors import ClusterError, JobError, NotFoundError, UsageError
from node.protocol import Record
from provision.aws.clients import aws_errors
from provision.model import Node
from train.follow.head import Head
from train.follow.records import JobRecord, find_running
from train.follow.run import CLIENT_PATIENCE_S, HeadReplacesError

LOOK_EVERY_S = 0.5
BY_HEAD = "the head replaces it itself"
RUNNING, TRAINING = "running again", "training again"
RESUMED_S = 120.0
"""How long to wait for a job to report where it resumes, after its processes run again. Not every program does."""


@click.group("drill", cls=OrderedGroup)
def drill() -> None:
    """Rehearse the loss of a node with a running job."""


@drill.command("spot")
@click.argument("node", type=NODE, required=False)
@click.option("--no-notice", is_flag=True, help="End the node at once, without the notice of two minutes.")
@click.option("-y", "--yes", is_flag=True, help="Interrupt the node without asking.")
@pass_app
def spot(app: App, *, node: str | None, no_notice: bool, yes: bool) -> None:
    """Interrupt a node of the running job, and show how the job continues.

    NODE is a node's name; default: the last node of the job. The node is lost for good, and another one is launched in
    its place. Only the sandbox can send the notice of two minutes: on AWS, use --no-notice.
    """
    app.check_has_instances("drill spot", instead="shut a host down yourself")
    app.enter_cloud()
    nodes = Ec2Nodes(describe_state(app), app.config.provision)
    with open_head(app, nodes) as head:
        job = find_drilled(ask_head(app, head))
        chosen = nodes.state.node(choose_node(job, node))
        check_node(app, chosen, no_notice=no_notice)
        if app.config.cloud == "aws":
            question = f"Interrupt {chosen.name} ({chosen.instance_id}), and launch another instance in its place?"
            app.require(question, yes=yes)
        times = Times(app.say)
        with if_interrupted(
            f"the node is lost; cluster status replaces it, and cluster logs -f {job.id} shows the job"
        ):
            interrupt(app, chosen, no_notice=no_notice)
            times.note(f"{'ended' if no_notice else 'notice to'} {chosen.name} ({chosen.instance_id})")
            again = watch(app, head, job, times)
    app.print(render_drill(again, times, number=len(job.attempts)))


def find_drilled(records: tuple[JobRecord, ...]) -> Record:
    """Returns the running job. Raises NotFoundError without one, UsageError for one that would not continue."""
    record = find_running(records)
    if record is None or record.state != "running":
        raise NotFoundError(
            "no job is running" if record is None else f"job {record.id} is {record.state}",
            hint="cluster train --detach, then cluster drill spot",
        )
    on_node_loss = record.spec.train.on_node_loss
    if on_node_loss != "requeue":
        raise UsageError(
            f'job {record.id} would fail, not continue: its [train] on_node_loss is "{on_node_loss}"',
            hint='set on_node_loss = "requeue" in cluster.toml, and run it again',
        )
    return record


def choose_node(job: Record, node: str | None) -> str:
    """Returns the node to interrupt: the one that the user names, or the job's last. Pure. Raises UsageError."""
    names = [host.name for host in job.nodes if host.place is None]
    head = job.nodes[0].name
    if node is not None and node not in names:
        raise UsageError(f"job {job.id} does not use {node}", hint=f"one of: {', '.join(names)}")
    chosen = node or names[-1]
    if chosen == head:
        raise UsageError(
            f"{head} is the head, which runs the job: a drill follows the job there",
            hint="name another node; a lost head is replaced by the next command if [data] results is set",
        )
    return chosen


def check_node(app: App, node: Node, *, no_notice: bool) -> None:
    """Raises UsageError if the node cannot be interrupted with these options."""
    if no_notice:
        return
    if app.config.cloud == "aws":
        raise UsageError(
            "only AWS itself gives a spot instance its notice of two minutes",
            hint="to end the node at once: cluster drill spot --no-notice; the sandbox also rehearses the notice",
        )
    if node.market != "spot":
        raise UsageError(
            f"{node.name} is on demand, and only spot instances get a notice",
            hint='cluster drill spot --no-notice; or set [provision] market = "spot"',
        )


def interrupt(app: App, node: Node, *, no_notice: bool) -> None:
    """Interrupts a node: terminates it at once, or has the sandbox send the notice. Raises ClusterError."""
    if no_notice:
        with aws_errors(f"ending {node.name}"):
            app.clients.ec2.terminate_instances(InstanceIds=[node.instance_id])
        return
    from sandbox import control  # noqa: PLC0415 - as in App.enter_cloud

    control.cause_fault(app.project_dir, f"spot-notice instance={node.instance_id}")


@dataclass
class Times:
    """The time of each completed step, in seconds since the first step. say: prints each step."""

    say: Callable[[str], None]
    steps: list[tuple[str, float]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def note(self, step: str) -> None:
        """Records that a step is complete."""
        now = time.monotonic()
        if not self.steps:
            self.began = now
        self.steps.append((step, now - self.began))
        self.say(f"{now - self.began:7.1f} s  {step}")

    def find(self, step: str) -> float | None:
        """Returns the time of a step; None if it is not complete."""
        return next((at for name, at in self.steps if name == step), None)


def watch(app: App, head: Head, before: Record, times: Times) -> Record:
    """Follows the job until it runs again or has ended, and returns its record. Replaces the node if the job waits.

    Raises JobError if the job failed, ClusterError or a subclass.
    """
    number, ended_at, running_at = len(before.attempts), None, None
    give_up_at = time.monotonic() + CLIENT_PATIENCE_S
    while time.monotonic() < give_up_at:
        record: Record | None = next((one for one in ask_head(app, head) if one.id == before.id), None)
        job = record or before
        attempt = job.attempts[number - 1] if len(job.attempts) >= number else None
        if ended_at is None and attempt is not None and attempt.ended_at is not None:
            ended_at = attempt.ended_at
            times.note(f"attempt {number} has ended: {attempt.error or attempt.reason}")
        if job.state == "failed":
            raise JobError(f"job {job.id} failed: {job.error}", exit_code=job.exit_code or 1)
        if job.has_ended:
            return job
        if job.state == "waiting" and record is not None:
            replace(app, head, job, times)
        elif job.state == "running" and ended_at is not None:
            if running_at is None:
                running_at = time.monotonic()
                times.note(RUNNING)
            if job.attempts[number - 1].lost_batches is not None:
                times.note(TRAINING)
                return job
            if time.monotonic() > running_at + RESUMED_S:
                return job
        time.sleep(LOOK_EVERY_S)
    raise ClusterError(f"job {before.id} does not continue after {CLIENT_PATIENCE_S / 60:.0f} min", hint="cluster jobs")


def replace(app: App, head: Head, job: Record, times: Times) -> None:
    """Replaces the nodes that a job waits for, unless the head does. Raises ClusterError or a subclass."""
    try:
        replace_lost(app, job, note=times.note)
    except HeadReplacesError:
        if times.find(BY_HEAD) is None:
            times.note(BY_HEAD)
    else:
        head.drop()  # the set-up of the nodes used separate connections


def render_drill(job: Record, times: Times, *, number: int) -> str:
    """Renders the result of the drill. number: the number of the interrupted attempt. Pure."""
    lines = [f"job {job.id} ({job.name}): attempt {number} was interrupted, attempt {number + 1} {_now(job)}"]
    lines += [f"{at:7.1f} s  {step}" for step, at in times.steps]
    sshd = times.find("sshd")
    last = TRAINING if times.find(TRAINING) is not None else RUNNING
    again = times.find(last)
    if sshd is not None and again is not None:
        lines.append(f"{last} {again - sshd:.1f} s after the new node's sshd")
    lost = job.attempts[number - 1].lost_batches if len(job.attempts) >= number else None
    lines.append(f"lost batches: {'unknown' if lost is None else lost}")
    return "\n".join(lines)


def _now(job: Record) -> str:
    return f"has ended: {job.state}" if job.has_ended else "runs"
