"""A cluster's instances after the launch: wait for them, terminate them, roll back the launch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from foundation.errors import AwsError, CapacityError
from foundation.progress import Event
from foundation.waiting import poll
from provision.aws.clients import unless_refused
from provision.describe import describe_now
from provision.model import ClusterState, Node, SshAddress, UntrustedInstance, count, format_indices
from provision.plan import Context, Step, World
from provision.resources.launch import plan_launch
from provision.resources.resource import ResourceKind, retry_while

KIND = "instance"
RUNNING_TIMEOUT_S = 600.0
ENDED_TIMEOUT_S = 2400.0
"""Large GPU instances take minutes to shut down, bare-metal ones more than 20."""
_UNKNOWN = "InvalidInstanceID.NotFound"
_PROTECTED = "OperationNotPermitted"
_NO_ROOM = "InsufficientInstanceCapacity"
"""Part of the StateReason of an instance that EC2 accepted and for which it then had no capacity
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html)."""


def _plan_up(world: World) -> tuple[Step, ...]:
    nodes, address = world.state.nodes, world.request.config.ssh_address
    launches = plan_launch(world)
    if not launches and all(node.state == "running" and node.address(address) is not None for node in nodes):
        return ()
    wait = WaitForRunning(nodes=world.request.config.nodes, address=address, least=world.least)
    return (*launches, wait)


def _plan_down(state: ClusterState) -> tuple[Step, ...]:
    live = state.instances
    steps: list[Step] = [TerminateInstances(nodes=state.nodes, untrusted=state.untrusted)] if live else []
    if ids := (*(instance.instance_id for instance in live), *state.ending):
        steps.append(WaitForTerminated(instance_ids=ids))
    return tuple(steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitForRunning(Step):
    """Wait until the nodes 0 to nodes-1 run and have an address, except those for which LaunchNodes had no capacity.

    least: how many nodes are enough if others end while starting; None: all.
    """

    nodes: int
    address: SshAddress
    least: int | None = None

    def describe(self) -> str:
        return f"wait until {count(self.nodes, 'node runs', 'nodes run')}"

    def apply(self, context: Context) -> bool:
        """Waits until every node runs. A node that ends or stops while starting is an error. Makes one read per poll.

        Raises CapacityError if a node ended for lack of capacity, AwsError if it ended or stopped for another reason,
        or after RUNNING_TIMEOUT_S.
        """
        wanted = set(range(self.nodes)) - context.without
        least = len(wanted) if self.least is None else self.least
        seen = set(context.launched)
        ready: set[int] = set()
        by_token: Mapping[str, frozenset[str]] = {}

        def check() -> bool | None:
            nonlocal ready, wanted, by_token
            instances = describe_now(context)
            live = {node.instance_id for node in instances.nodes}
            by_token = instances.by_token
            if not context.launched <= live | instances.ended.keys():
                return None  # EC2 does not list all of them yet
            if failed := sorted(seen & instances.ended.keys()):
                context.files.forget_launches(instances.by_token)  # their token would only return the ended ones
                left = wanted & {node.index for node in instances.nodes}
                if len(left) < least:
                    raise _ended_while_starting(failed, instances, context)
                what = f"{_reasons(failed, instances)}: continuing without nodes {format_indices(wanted - left)}"
                context.report(Event(kind="warn", what=what))
                wanted = left
                seen.difference_update(failed)
            if stopped := [node for node in instances.nodes if node.state in {"stopping", "stopped"}]:
                raise _stopped_while_starting(stopped)
            seen.update(live)
            before = len(ready)
            ready = {node.index for node in instances.nodes if node.state == "running" and node.address(self.address)}
            if len(ready) != before:
                context.report(Event(kind="info", what=f"{len(ready)} of {len(wanted)} nodes run"))
            return True if wanted <= ready else None

        if poll(check, timeout_s=RUNNING_TIMEOUT_S) is None:
            raise AwsError(
                f"nodes {format_indices(wanted - ready)} do not run after {RUNNING_TIMEOUT_S:.0f} s",
                hint="to try again: cluster up; to delete everything: cluster down",
            )
        # Not earlier: until EC2 lists the nodes, the token prevents a repeated launch from doubling them.
        context.files.forget_launches(by_token)
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminateInstances(Step):
    """Terminate nodes. untrusted: other instances with the cluster's tag, which `down` terminates as well."""

    nodes: tuple[Node, ...]
    untrusted: tuple[UntrustedInstance, ...] = ()

    @property
    def ids(self) -> list[str]:
        """The ids of all the instances."""
        return [instance.instance_id for instance in (*self.nodes, *self.untrusted)]

    def describe(self) -> str:
        nodes = f"{count(len(self.nodes), 'node')} ({format_indices(node.index for node in self.nodes)})"
        others = count(len(self.untrusted), "untrusted instance")
        return f"terminate {' and '.join([nodes] * bool(self.nodes) + [others] * bool(self.untrusted))}"

    def details(self) -> Iterable[str]:
        yield from (f"{node.name}  {node.instance_id}  {node.state}" for node in self.nodes)
        yield from (f"{each.instance_id}  {each.state}  {each.why}" for each in self.untrusted)

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        return ((KIND, self.ids),)

    def apply(self, context: Context) -> bool:
        """Terminates the instances in one call. Returns False if none exists.

        EC2 rejects the whole call for one unknown id, of an instance that no longer exists or is too new. In that case,
        terminates only the instances that EC2 lists. It also rejects it for termination protection, which any program
        on a node that may launch nodes can set: no policy can refuse that.
        """
        ec2 = context.clients.ec2

        def terminate(ids: Sequence[str]) -> bool:
            end = partial(ec2.terminate_instances, InstanceIds=ids)
            if unless_refused({_PROTECTED}, end) is None:
                context.report(Event(kind="warn", what="turning off termination protection"))
                for instance_id in ids:
                    ec2.modify_instance_attribute(InstanceId=instance_id, DisableApiTermination={"Value": False})
                end()
            return True

        def terminate_listed() -> bool:
            live = {instance.instance_id for instance in describe_now(context).instances}
            doomed = [instance_id for instance_id in self.ids if instance_id in live]
            return bool(doomed) and terminate(doomed)

        return unless_refused({_UNKNOWN}, lambda: terminate(self.ids)) or retry_while({_UNKNOWN}, terminate_listed)


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitForInstances(Step):
    """Wait until no instance is in some states any more. words: the description; late: the error after a time."""

    words: ClassVar[tuple[str, str]]
    late: ClassVar[str]
    instance_ids: tuple[str, ...]

    @abstractmethod
    def find(self, now: ClusterState) -> Collection[str]:
        """The ids of the cluster's instances that are still in these states."""

    def describe(self) -> str:
        return f"wait until {count(len(self.instance_ids), *self.words)}"

    def apply(self, context: Context) -> bool:
        """Makes one read per poll. Always returns True. Raises AwsError after ENDED_TIMEOUT_S."""
        left = set(self.instance_ids)

        def check() -> bool | None:
            nonlocal left
            before, left = left, left.intersection(self.find(describe_now(context)))
            if left and len(left) != len(before):
                what = f"waiting for {len(left)} of {len(self.instance_ids)} instances"
                context.report(Event(kind="info", what=what))
            return None if left else True

        if poll(check, timeout_s=ENDED_TIMEOUT_S) is None:
            raise AwsError(
                f"{self.late} after {ENDED_TIMEOUT_S:.0f} s: {', '.join(sorted(left))}",
                hint="to continue waiting, run the command again",
            )
        return True


class WaitForTerminated(WaitForInstances):
    """Wait until instances are terminated."""

    words = ("instance has ended", "instances have ended")
    late = "still shutting down"

    def find(self, now: ClusterState) -> Collection[str]:
        return [*(instance.instance_id for instance in now.instances), *now.ending]


class WaitForEnding(WaitForInstances):
    """Wait until instances shut down, so that others can have their indices. Large ones take minutes to terminate."""

    words = ("instance shuts down", "instances shut down")
    late = "EC2 does not end them"

    def find(self, now: ClusterState) -> Collection[str]:
        return [instance.instance_id for instance in now.instances]


class WaitForStopped(WaitForInstances):
    """Wait until instances have stopped, or ended."""

    words = ("instance has stopped", "instances have stopped")
    late = "still not stopped"

    def find(self, now: ClusterState) -> Collection[str]:
        return [node.instance_id for node in now.nodes if node.state != "stopped"]


def roll_back(context: Context) -> None:
    """Terminates the instances that this run launched, and waits until they have ended."""
    ids = tuple(sorted(context.launched))
    context.report(Event(kind="warn", what=f"terminating the {count(len(ids), 'node')} that this run launched"))
    # EC2's servers may not all know new instances yet.
    retry_while({_UNKNOWN}, lambda: context.clients.ec2.terminate_instances(InstanceIds=ids))
    context.files.forget_launches({})
    context.launched.clear()
    WaitForTerminated(instance_ids=ids).apply(context)


def _ended_while_starting(failed: list[str], instances: ClusterState, context: Context) -> AwsError:
    message = _reasons(failed, instances)
    hint = "to launch the missing nodes again: cluster up; to delete everything: cluster down"
    no_room = all(_NO_ROOM in instances.ended[instance_id] for instance_id in failed)
    if no_room and context.option is not None and set(failed) <= context.launched:
        return CapacityError(message, option=context.option.label, hint=hint)
    return AwsError(message, hint=hint)


def _stopped_while_starting(nodes: Iterable[Node]) -> AwsError:
    reasons = "; ".join(f"{node.name} ({node.instance_id}): {node.state_reason or 'no reason given'}" for node in nodes)
    return AwsError(f"stopped while starting: {reasons}", hint="cluster status; then cluster up or cluster start")


def _reasons(failed: list[str], instances: ClusterState) -> str:
    reasons = "; ".join(f"{instance_id}: {instances.ended[instance_id]}" for instance_id in failed)
    return f"{len(failed)} of the nodes ended while starting: {reasons}"


INSTANCES: ResourceKind[None] = ResourceKind(
    kind=KIND,
    listing="describe_instances",
    ids=lambda page: (
        instance["InstanceId"]
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
        if instance["State"]["Name"] != "terminated"
    ),
    deletion="terminate-instances --instance-ids",
    plan_up=_plan_up,
    plan_down=_plan_down,
    actions=(
        "RunInstances",
        "GetConsoleOutput",
        "ModifyInstanceAttribute",
        "StartInstances",
        "StopInstances",
    ),
)
