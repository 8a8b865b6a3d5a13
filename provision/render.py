"""Plans and receipts as text for people. Pure."""

from provision.model import format_indices
from provision.plan import Plan
from provision.steps import (
    AuthorizeIngress,
    CreateKeyPair,
    CreateSecurityGroup,
    DeleteKeyPair,
    DeleteSecurityGroup,
    ForgetFiles,
    ImportKeyPair,
    RevokeIngress,
    RunInstances,
    Step,
    TerminateInstances,
    WaitForRunning,
    WaitForTerminated,
)


def describe_step(step: Step) -> str:  # noqa: C901, PLR0911 - one line for each kind of step
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
        case RevokeIngress():
            return f"stop allowing ssh from {', '.join(step.ssh_from)}"
        case DeleteSecurityGroup():
            return f"delete security group {step.group_id}"
        case RunInstances():
            return f"launch {_count(len(step.indices), 'node')} ({format_indices(step.indices)})"
        case WaitForRunning():
            return f"wait until {_count(step.nodes, 'node')} run"
        case TerminateInstances():
            return f"terminate {_count(len(step.nodes), 'node')} ({format_indices(n.index for n in step.nodes)})"
        case WaitForTerminated():
            return f"wait until {_count(len(step.instance_ids), 'instance')} are gone"
        case ForgetFiles():
            return "remove the cluster's key and known hosts from this machine"


def render_plan(plan: Plan) -> str:
    """The plan as `--dry-run` prints it: what would be done, with what, at which price."""
    if not plan:
        return f"cluster {plan.cluster}: nothing to do\n"
    lines = [f"cluster {plan.cluster}:"]
    for number, step in enumerate(plan.steps, start=1):
        lines.append(f"  {number:>2}. {describe_step(step)}")
        if isinstance(step, RunInstances):
            lines.extend(f"      {line}" for line in _launch_details(step))
        if isinstance(step, TerminateInstances):
            lines.extend(f"      {node.name}  {node.instance_id}  {node.state}" for node in step.nodes)
    return "\n".join(lines) + "\n"


def _launch_details(step: RunInstances) -> list[str]:
    target = step.target
    hardware = f"{target.vcpus} vCPUs, {target.gpus or 'no GPU'}, {target.architecture}"
    return [
        f"type     {target.instance_type} ({hardware})",
        f"image    {target.image_id} ({target.image_name})",
        f"place    {target.zone}, {target.subnet_id}",
        f"address  {'public and private' if target.public_address else 'private'}",
        f"disk     {step.volume_size_gib} GiB gp3, encrypted, deleted with its instance",
        f"account  {target.account_id} as {target.owner}",
        "price    unknown",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
