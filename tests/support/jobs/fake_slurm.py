"""Fake sbatch, scontrol and scancel that work on files, for tests of how the head uses a scheduler."""

import stat
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = {
    "sbatch": """
echo "$@" >>"$state/submitted"
[ ! -f "$state/slow" ] || sleep 1
if [ -f "$state/refusal" ]; then cat "$state/refusal" >&2; exit 1; fi
cp "$3" "$state/script"
[ -f "$state/job" ] || echo "PENDING Resources" >"$state/job"
echo 12
""",
    "scancel": """
echo "$@" >>"$state/cancelled"
[ ! -f "$state/cancel-fails" ] || { echo "scancel: error: no" >&2; exit 1; }
echo "CANCELLED None" >"$state/job"
[ ! -f "$state/cancel-slow" ] || sleep 4
""",
    "scontrol": """
[ ! -f "$state/down" ] || { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
case "$*" in
*partition*) cat "$state/partitions" ;;
*node*) cat "$state/nodes" ;;
*)
    : >"$state/asked"
    read -r found reason <"$state/job"
    echo "JobId=12 JobState=$found Reason=$reason ExitCode=0:15 TimeLimit=00:01:00 NodeList=n[1-2] BatchHost=n1"
    ;;
esac
""",
}
PARTITIONS = """\
PartitionName=cluster Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 State=UP TotalNodes=2
PartitionName=short Default=NO MaxNodes=1 MaxTime=00:01:00 MinNodes=0 State=UP TotalNodes=2
"""
NODES = "NodeName=n1 NodeAddr=10.0.0.4 State=ALLOCATED\nNodeName=n2 NodeAddr=10.0.0.5 State=ALLOCATED\n"


@dataclass(frozen=True)
class FakeSlurm:
    """programs: a folder for PATH."""

    programs: Path
    state: Path

    def set_job(self, state: str, reason: str = "None") -> None:
        new = self.state / "job.new"
        new.write_text(f"{state} {reason}\n")
        new.rename(self.state / "job")

    def touch(self, name: str, text: str = "") -> None:
        """Sets a condition: slow, refusal, cancel-fails, cancel-slow, down."""
        (self.state / name).write_text(text)

    def read(self, name: str) -> str:
        """Reads a file that the programs write: submitted, cancelled, script; "" if there is none."""
        path = self.state / name
        return path.read_text() if path.exists() else ""


def make_slurm(folder: Path) -> FakeSlurm:
    slurm = FakeSlurm(programs=folder / "slurm-bin", state=folder / "slurm-state")
    slurm.programs.mkdir()
    slurm.state.mkdir()
    slurm.touch("partitions", PARTITIONS)
    slurm.touch("nodes", NODES)
    for name, text in PROGRAMS.items():
        path = slurm.programs / name
        path.write_text(f"#!/bin/sh\nstate={slurm.state}{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return slurm
