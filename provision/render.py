"""Plans as text for people. Pure."""

from provision.model import format_indices
from provision.plan import Plan
from provision.preflight.render import render_preflight
from provision.steps import (
    AbortUploads,
    AuthorizeEgress,
    AuthorizeIngress,
    CancelSpotRequests,
    CreateInstanceProfile,
    CreateKeyPair,
    CreatePlacementGroup,
    CreateSecurityGroup,
    DeleteInstanceProfile,
    DeleteKeyPair,
    DeleteNetworkInterfaces,
    DeletePlacementGroup,
    DeleteSecurityGroup,
    DeleteVolumes,
    ForgetFiles,
    ImportKeyPair,
    LaunchNodes,
    RevokeIngress,
    StartInstances,
    Step,
    StopInstances,
    TerminateInstances,
    WaitForRunning,
    WaitForStopped,
    WaitForTerminated,
)


def describe_step(step: Step) -> str:  # noqa: C901, PLR0911, PLR0912 - one line for each kind of step
    """A step in a few words."""
    match step:
        case CreateKeyPair():
            return f"make key pair {step.key_name} (ed25519; the private key stays on this machine)"
        case ImportKeyPair():
            return f"import key pair {step.key_name} from this machine's private key"
        case DeleteKeyPair():
            return f"delete key pair {step.key_name}"
        case CreateSecurityGroup():
            return f"make security group {step.group_name} in {step.vpc_id}"
        case AuthorizeIngress():
            ssh = f"ssh from {step.ssh_from}" if step.ssh_from else ""
            members = "everything between members" if step.members else ""
            return f"allow {' and '.join(words for words in (ssh, members) if words)}"
        case AuthorizeEgress():
            return "allow everything out to members, as EFA needs it"
        case RevokeIngress():
            return f"stop allowing ssh from {', '.join(step.ssh_from)}"
        case DeleteSecurityGroup():
            return f"delete security group {step.group_id}"
        case CreatePlacementGroup():
            return f"make placement group {step.group_name}"
        case DeletePlacementGroup():
            return f"delete placement group {step.group_name}"
        case CreateInstanceProfile():
            return f"make role and instance profile {step.name}"
        case DeleteInstanceProfile():
            return f"delete role and instance profile {step.name}"
        case LaunchNodes():
            return f"launch {_count(len(step.indices), 'node')} ({format_indices(step.indices)})"
        case WaitForRunning():
            return f"wait until {_count(step.nodes, 'node')} {'runs' if step.nodes == 1 else 'run'}"
        case StartInstances():
            return f"start {_count(len(step.nodes), 'node')} ({format_indices(n.index for n in step.nodes)})"
        case StopInstances():
            return f"stop {_count(len(step.nodes), 'node')} ({format_indices(n.index for n in step.nodes)})"
        case WaitForStopped():
            return f"wait until {_count(len(step.instance_ids), 'instance')} {_have(step.instance_ids)} stopped"
        case TerminateInstances():
            nodes = f"{_count(len(step.nodes), 'node')} ({format_indices(n.index for n in step.nodes)})"
            others = _count(len(step.untrusted), "untrusted instance")
            return f"terminate {' and '.join([nodes] * bool(step.nodes) + [others] * bool(step.untrusted))}"
        case WaitForTerminated():
            return f"wait until {_count(len(step.instance_ids), 'instance')} {_have(step.instance_ids)} ended"
        case CancelSpotRequests():
            return f"cancel {_count(len(step.request_ids), 'spot request')}"
        case DeleteVolumes():
            return f"delete {_count(len(step.volume_ids), 'volume')} that no instance has"
        case DeleteNetworkInterfaces():
            return f"delete {_count(len(step.interface_ids), 'network interface')} that no instance has"
        case AbortUploads():
            return f"abort {_count(len(step.uploads), 'interrupted upload')} to S3"
        case ForgetFiles():
            return "remove the cluster's key and known hosts from this machine"


def render_plan(plan: Plan) -> str:
    """The plan as `--dry-run` prints it: what was found out, then what would be done."""
    if not plan:
        return "\n".join([f"cluster {plan.cluster}: nothing to do", *_render_left_alone(plan)]) + "\n"
    lines = [f"cluster {plan.cluster}:"]
    if plan.preflight is not None and plan.caller is not None:
        launches = [step for step in plan.steps if isinstance(step, LaunchNodes)]
        found = render_preflight(
            plan.preflight,
            caller=plan.caller,
            nodes=plan.nodes,
            launching=sum(len(step.indices) for step in launches),
            volume_size_gib=launches[0].volume_size_gib,
        )
        lines += [*(f"  {line}" for line in found), ""]
    for number, step in enumerate(plan.steps, start=1):
        lines.append(f"  {number:>2}. {describe_step(step)}")
        if isinstance(step, TerminateInstances):
            lines.extend(f"      {node.name}  {node.instance_id}  {node.state}" for node in step.nodes)
            lines.extend(f"      {each.instance_id}  {each.state}  {each.why}" for each in step.untrusted)
    return "\n".join([*lines, *_render_left_alone(plan)]) + "\n"


def _render_left_alone(plan: Plan) -> list[str]:
    if not plan.left_alone:
        return []
    lines = ["  left alone because they are not trusted (to adopt those that you know: cluster adopt):"]
    return [*lines, *(f"      {each.instance_id}  {each.state}  {each.why}" for each in plan.left_alone)]


def _have(ids: tuple[str, ...]) -> str:
    return "has" if len(ids) == 1 else "have"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
