"""PBS: qsub, qstat and qdel of OpenPBS, of Torque, and of Slurm's wrappers for Torque."""

import re

from node.engines.scheduler import (
    REACHED_WALLTIME,
    AllocatedNode,
    AllocationState,
    Response,
    Scheduler,
    begin_with_letter,
)
from node.protocol import AllocationRequest

NAME_LENGTH = 15  # of Torque and older versions of PBS
_ENDED_JOBS = (153, 35)  # qstat's exit codes for a job that is unknown, or in OpenPBS's history alone
# E: ending; its processes are being killed. In other states the job has ended: F and X (OpenPBS), C (Torque).
_WAITING, _RUNNING, _SUSPENDED = "QHWT", "RBE", "SU"
_SIGNAL = 256  # Exit_status of a job that a signal ended: 256 plus the signal's number
# JOB_EXEC_KILL_WALLTIME in OpenPBS (src/include/job.h), and JOB_EXEC_OVERLIMIT_WT in Torque
_WALLTIME = (-29, -11)
_RESOURCES = re.compile(r"\b(select|nodes)=")

_OR_WALLTIME = " (qdel, or the walltime)"


class PbsScheduler(Scheduler):
    """Allocates `slots_per_node` virtual processors of each node, one by default. qsub itself checks the limits."""

    name = "pbs"
    title = "PBS"
    directive = "#PBS"
    # Slurm's wrapper ignores -o and -e in the script, and writes to its working folder.
    submit = ("qsub", "-o", "/dev/null", "-e", "/dev/null")
    number = r"([0-9]+(?:\.[A-Za-z0-9._-]+)?)"

    def _options(self, request: AllocationRequest) -> list[str]:
        nodes = f"-l nodes={request.nodes}:ppn={request.slots_per_node or 1}"
        return [
            f"-N {begin_with_letter(request.name)[:NAME_LENGTH]}",
            # OpenPBS refuses `nodes` beside `select`, which alone can ask for GPUs.
            *([] if any(map(_RESOURCES.search, request.options)) else [nodes]),
            "-r n",
        ]

    def state_command(self, number: str) -> tuple[str, ...]:
        """OpenPBS shows ended jobs only with -x, which the others lack, so a job that qstat does not find has ended."""
        return ("qstat", "-f", number)

    def parse_state(self, answer: Response, number: str) -> AllocationState:
        """The state, from state_command. Raises ValueError if the server does not answer."""
        if "job_state" not in answer.stdout:
            if answer.exit_code in _ENDED_JOBS:
                return AllocationState("ended", "PBS no longer has the job", is_vague=True)
            raise ValueError(answer.error)
        job = _parse_fields(answer.stdout)
        state = job["job_state"][:1]
        if state in _WAITING:
            return AllocationState("pending", job.get("comment", "waits for free nodes"))
        if state in _RUNNING:
            return AllocationState("running", nodes=_parse_hosts(job.get("exec_host", "")))
        if state in _SUSPENDED:
            return AllocationState("ended", "it was suspended")
        reason = _explain_end(job.get("Exit_status", ""), job.get("comment", ""))
        return AllocationState(
            "ended", reason or "PBS ended the job", is_vague=not reason or reason.endswith(_OR_WALLTIME)
        )


def _explain_end(status: str, comment: str) -> str:
    if not re.fullmatch(r"-?[0-9]{1,6}", status):
        return comment
    code = int(status)
    if code in _WALLTIME:
        return REACHED_WALLTIME
    if code > _SIGNAL:
        return f"its batch script was killed by signal {code - _SIGNAL}{_OR_WALLTIME}"
    return f"its batch script ended (exit code {code})"


def _parse_hosts(text: str) -> tuple[AllocatedNode, ...]:
    """Parses `n1/0+n1/1+n2/0`, `n1/0*2+n2/0*2` or `n1/0-1+n2/0-1`. Returns each host once, in order."""
    names = [part.partition("/")[0] for part in text.split("+")]
    return tuple(AllocatedNode(name) for name in dict.fromkeys(names) if name)


def _parse_fields(text: str) -> dict[str, str]:
    """Parses indented `NAME = VALUE` lines. A line that begins with a tab and has no name continues the last one."""
    joined = re.sub(r"\n\t(?![A-Za-z_.]+ = )", "", text)
    return dict(re.findall(r"^\s+([A-Za-z_.]+) = (.*?)\s*$", joined, re.MULTILINE))
