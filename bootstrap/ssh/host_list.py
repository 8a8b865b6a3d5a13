"""Lists of hosts: [hosts] names of cluster.toml, a hostfile, or the allocation of a batch scheduler.

A host has the form "[user@]host[:port]". It is repeated to run more processes. The `parse_*` functions are pure.
"""

import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from bootstrap.ssh.host import parse_spec
from foundation.errors import UsageError
from foundation.files import read_bounded
from foundation.setting_types import Settings
from node.protocol import BatchJob

SCONTROL_TIMEOUT_S = 30.0
ALLOCATIONS: Mapping[str, tuple[str, str, str, str]] = {
    "pbs": ("PBS", "PBS_NODEFILE", "PBS_JOBID", "qsub -I"),
    "slurm": ("Slurm", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "salloc -N 2"),
    "sge": ("Grid Engine", "PE_HOSTFILE", "JOB_ID", "qrsh -pe PE 2"),
}
"""The words of -H that name an allocation: the scheduler, the variables with the hosts and the job's number, and how to
get an allocation."""
_TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?(?:,|$)")
_FORM = "[user@]host[:port]"
_FORM_HINT = "one host a line, without slots or ranges; to run more processes on a host, name it again"


def _check_spec(text: str) -> str:
    """Returns the host. Raises ValueError if it has another form."""
    if parse_spec(text) is None:
        raise ValueError(f"must be a host that ssh reaches from here, as {_FORM}; name it again for more processes")
    return text


class HostsConfig(Settings, frozen=True, kw_only=True):
    """[hosts] of cluster.toml: the nodes of a cluster with cloud = "hosts"."""

    names: Annotated[
        tuple[Annotated[str, _check_spec], ...],
        Meta(
            description=f'for cloud = "hosts": the nodes, as {_FORM}, the head first, repeated for more processes; '
            "[]: the hosts of -H"
        ),
    ] = ()


def read_host_list(source: str, environ: Mapping[str, str]) -> list[str]:
    """Reads the hosts that the value of -H names: those of a file, or for "pbs", "slurm" and "sge" those allocated.

    environ: the environment of this process. "./pbs" is a file. Raises UsageError.
    """
    if source not in ALLOCATIONS:
        where, hint = f"--hostfile {source}", "correct the path after -H"
        lines = _check_not_empty(parse_hostfile(_read(where, Path(source), hint=hint)), where)
        for line in lines:
            if parse_spec(line) is None:
                raise UsageError(f'{where}: the line "{line[:80]}" is not {_FORM}', hint=_FORM_HINT)
        return lines
    scheduler, variable, _, command = ALLOCATIONS[source]
    value = environ.get(variable, "")
    if not value:
        raise UsageError(
            f"-H {source}: ${variable} is not set: this command does not run in an allocation of {scheduler}",
            hint=f"get one first ({command}), and run the command there; -H ./{source} reads a file of that name",
        )
    where = f"-H {source}: ${variable} = {value}"
    elsewhere = f"run this command on the allocation's first host, where {scheduler} has written the file"
    if source == "pbs":
        hosts = parse_hostfile(_read(where, Path(value), hint=elsewhere))
    elif source == "sge":
        hosts = parse_pe_hostfile(_read(where, Path(value), hint=elsewhere))
    else:
        # Without -n, Slurm counts a task for each CPU that the job gets, as with --exclusive.
        tasks = environ.get("SLURM_TASKS_PER_NODE") if "SLURM_NTASKS" in environ else None
        tasks = environ.get("SLURM_NTASKS_PER_NODE") or tasks or "1"
        hosts = parse_slurm(_show_hostnames(value), tasks)
    return _check_not_empty(hosts, where)


def find_batch_job(environ: Mapping[str, str]) -> BatchJob | None:
    """Finds the batch job in whose allocation this process runs. environ: this process's environment."""
    for source, (_, _, variable, _) in ALLOCATIONS.items():
        with suppress(UsageError):
            if number := environ.get(variable):
                hosts = tuple(read_host_list(source, environ))
                task = environ.get("SGE_TASK_ID", "undefined") if source == "sge" else "undefined"
                number = number if task == "undefined" else f"{number}.{task}"
                return BatchJob(source, number, hosts)
    return None


def parse_hostfile(text: str) -> list[str]:
    """The hosts of a hostfile: one per line, without # comments. $PBS_NODEFILE has one line per process. Pure."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def parse_pe_hostfile(text: str) -> list[str]:
    """The hosts of Grid Engine's $PE_HOSTFILE, each repeated by its number of slots. Pure.

    A line is "HOST SLOTS QUEUE PROCESSORS" (sge_pe(5)).
    """
    lines = re.findall(r"^(\S+)[ \t]+([0-9]{1,6})\b", text, re.MULTILINE)
    return [host for host, slots in lines for _ in range(int(slots))]


def parse_slurm(hostnames: str, tasks: str) -> list[str]:
    """The hosts of a Slurm job, each repeated by its number of tasks. Pure. Raises UsageError.

    hostnames: the output of `scontrol show hostnames`. tasks: in the form of $SLURM_TASKS_PER_NODE: "2(x3),1" means 2,
    2, 2 and 1; a single number applies to every host.
    """
    hosts, counts = hostnames.split(), parse_tasks(tasks)
    counts = counts * len(hosts) if len(counts) == 1 else counts
    if len(counts) != len(hosts):  # as in a step of `srun` on some of the job's hosts
        raise UsageError(
            f"-H slurm: {len(hosts)} hosts, but the numbers of tasks ({tasks}) are for {len(counts)}",
            hint="write the hosts to a file, one line for each process, and use -H FILE",
        )
    return [host for host, count in zip(hosts, counts, strict=True) for _ in range(count)]


def parse_tasks(text: str) -> list[int]:
    """The numbers in "2(x3),1": 2, 2, 2 and 1. Pure."""
    return [int(number) for number, times in _TASKS.findall(text) for _ in range(int(times or 1))]


def _show_hostnames(node_list: str) -> str:
    """Runs `scontrol show hostnames`. Returns its output: one host per line. Raises UsageError."""
    words = ("scontrol", "show", "hostnames", node_list)
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SCONTROL_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        problem = (getattr(error, "stderr", None) or "").strip() or error
        raise UsageError(
            f"-H slurm: {' '.join(words)}: {problem}", hint="write the hosts to a file, one a line, and use -H FILE"
        ) from error


def _read(where: str, path: Path, *, hint: str) -> str:
    """Reads a file's text. where, hint: for errors. Raises UsageError."""
    try:
        return read_bounded(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        message = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{where}: cannot be read: {message}", hint=hint) from error


def _check_not_empty(hosts: list[str], where: str) -> list[str]:
    """Returns the hosts. Raises UsageError for an empty list."""
    if not hosts:
        raise UsageError(f"{where}: names no host", hint=f"one host a line: a node's name, or {_FORM}")
    return hosts
