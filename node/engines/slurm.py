"""Slurm: sbatch, scontrol and scancel."""

import re

from msgspec.structs import replace

from node.engines.scheduler import (
    REACHED_WALLTIME,
    AllocatedNode,
    AllocationState,
    QueueLimits,
    Response,
    Scheduler,
    parse_clock,
    parse_count,
)
from node.protocol import AllocationRequest

# https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
_WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
_RUNNING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"})
_ENDS = {
    "TIMEOUT": REACHED_WALLTIME,
    "CANCELLED": "it was cancelled",
    "NODE_FAIL": "one of its nodes failed",
    "PREEMPTED": "it was preempted by another job",
    "OUT_OF_MEMORY": "its batch script ran out of memory",
    "COMPLETED": "its batch script ended",
    "FAILED": "its batch script failed",
}
_UNKNOWN = "Invalid job id specified"


class SlurmScheduler(Scheduler):
    """Allocates whole nodes unless slots_per_node is set."""

    name = "slurm"
    title = "Slurm"
    queue_word = "partition"
    directive = "#SBATCH"
    list_queues = "sinfo"
    number = r"([0-9]+)(?:;\S+)?"
    submit = ("sbatch", "--parsable", "--chdir=/")  # prints the number and, with several clusters, the cluster's name
    cancel = ("scancel",)
    limits = ("scontrol", "--all", "--oneliner", "show", "partition")  # also those that this user's group may not use
    forms = ("--partition={}", "--time={}", "--account={}")

    def _options(self, request: AllocationRequest) -> list[str]:
        options = [
            f"--job-name={request.name}",
            f"--nodes={request.nodes}",
            f"--ntasks-per-node={request.slots_per_node or 1}",
            "--output=/dev/null",  # a missing folder would fail the job
            "--no-requeue",
        ]
        if not request.slots_per_node:
            options.append("--exclusive")
        return options

    def parse_limits(self, text: str) -> tuple[QueueLimits, ...]:
        """All partitions, from the output of `limits`, which has one line for each."""
        return tuple(_parse_partition(_parse_fields(line)) for line in text.splitlines() if "PartitionName=" in line)

    def state_command(self, number: str) -> tuple[str, ...]:
        """Slurm shows a job for some minutes after its end (MinJobAge)."""
        return ("scontrol", "--oneliner", "show", "job", number)

    def parse_state(self, answer: Response, number: str) -> AllocationState:
        """The state, from state_command. Raises ValueError if slurmctld does not answer."""
        if _UNKNOWN in answer.stderr:
            return AllocationState("ended", "Slurm no longer has the job", is_vague=True)
        job = _parse_fields(answer.stdout)
        if answer.exit_code != 0 or job.get("JobId") != number or "JobState" not in job:
            raise ValueError(answer.error)
        state, reason = job["JobState"], job.get("Reason", "None")
        if state in _WAITING:
            return AllocationState("pending", "waits for the scheduler" if reason in ("None", "") else reason)
        if state in _RUNNING:
            # parse_more completes the list. Until then it has one entry, with Slurm's node list as the address.
            return AllocationState("running", nodes=(AllocatedNode(job.get("BatchHost", ""), job.get("NodeList", "")),))
        ended = _ENDS.get(state, f"its state is {state}")
        if state == "FAILED":
            ended += f" (exit code {job.get('ExitCode', '?').partition(':')[0]})"
        if state == "TIMEOUT":
            ended += f" ({job.get('TimeLimit', '?')})"
        return AllocationState("ended", ended)

    def more_command(self, number: str, found: AllocationState) -> tuple[str, ...]:
        """The command that shows the nodes with their addresses; it also expands ip-10-0-0-[4-5]."""
        if found.state != "running":
            return ()
        return ("scontrol", "--oneliner", "show", "node", found.nodes[0].address)

    def parse_more(self, answer: Response, found: AllocationState) -> AllocationState:
        """The state with all nodes. Raises ValueError if slurmctld does not answer."""
        nodes = [_parse_fields(line) for line in answer.stdout.splitlines() if "NodeName=" in line]
        if answer.exit_code != 0 or not nodes:
            raise ValueError(answer.error)
        first = found.nodes[0].name
        listed = [AllocatedNode(node["NodeName"], node.get("NodeAddr", "")) for node in nodes]
        return replace(found, nodes=tuple(sorted(listed, key=lambda node: node.name != first)))


def _parse_fields(line: str) -> dict[str, str]:
    """Parses NAME=VALUE pairs. A value may contain spaces, a name may not. The first value of a name counts."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"(?:^|\s)([A-Za-z][A-Za-z0-9_/:]*)=(.*?)(?=\s+[A-Za-z][A-Za-z0-9_/:]*=|\s*$)", line):
        found.setdefault(name, value)
    return found


def _parse_partition(fields: dict[str, str]) -> QueueLimits:
    names = {"max_walltime_s": "MaxTime", "min_nodes": "MinNodes", "max_nodes": "MaxNodes", "nodes": "TotalNodes"}
    return QueueLimits(
        name=fields["PartitionName"],
        is_default=fields.get("Default") == "YES",
        is_open=fields.get("State", "UP") == "UP",
        max_walltime_s=parse_clock(fields.get("MaxTime", "")),
        min_nodes=parse_count(fields.get("MinNodes", "")),
        max_nodes=parse_count(fields.get("MaxNodes", "")),
        nodes=parse_count(fields.get("TotalNodes", "")),
        words={
            "is_open": f"State={fields.get('State')}",
            **{key: f"{name}={fields.get(name)}" for key, name in names.items()},
        },
    )
