"""Slurm's scripts and commands, with the output of Slurm 22.05."""

import re
from typing import Any

import pytest

from job_forms import make_request
from node.engines.scheduler import AllocatedNode, AllocationState, Response
from node.engines.slurm import SlurmScheduler

SLURM = SlurmScheduler()
PARTITIONS = """\
PartitionName=cluster AllowGroups=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE Hidden=NO MaxNodes=UNLIMITED \
MaxTime=UNLIMITED MinNodes=0 Nodes=ip-10-131-0-[4-5] OverTimeLimit=NONE State=UP TotalCPUs=4 TotalNodes=2 \
TRES=cpu=4,mem=45798M,node=2,billing=4
PartitionName=short AllowGroups=ALL Default=NO QoS=N/A DefaultTime=NONE MaxNodes=2 MaxTime=00:01:00 MinNodes=2 \
Nodes=ip-10-131-0-[4-7] State=UP TotalCPUs=4 TotalNodes=4
PartitionName=long AllowGroups=ALL Default=NO MaxNodes=UNLIMITED MaxTime=2-00:00:00 MinNodes=0 State=DRAIN TotalNodes=4
"""
JOB = (
    "JobId=3 JobName={name} UserId=ubuntu(1000) Account=(null) QOS=(null) JobState={state} Reason={reason} Requeue=1 "
    "ExitCode={code} RunTime=00:00:01 TimeLimit=00:01:00 ReqNodeList=(null) NodeList={nodes} BatchHost=ip-10-131-0-5 "
    "NumNodes=2 ReqB:S:C:T=0:0:*:* Command=/tmp/h.sh WorkDir=/tmp Power= \n"
)
NODES = """\
NodeName=ip-10-131-0-4 Arch=x86_64 Gres=(null) NodeAddr=10.131.0.4 NodeHostName=ip-10-131-0-4 OS=Linux 6.18 #1 SMP @0 \
State=ALLOCATED
NodeName=ip-10-131-0-5 Arch=x86_64 NodeAddr=10.131.0.5 NodeHostName=ip-10-131-0-5 State=ALLOCATED
"""


def show_job(state: str, *, reason: str = "None", code: str = "0:0", name: str = "mlp") -> Response:
    return Response(JOB.format(state=state, reason=reason, code=code, nodes="ip-10-131-0-[4-5]", name=name))


def test_the_script_of_a_request_with_every_setting() -> None:
    made = SLURM.render_script(
        make_request(queue="short", walltime_s=3723, account="lab", slots_per_node=4, options=("--constraint=a100",))
    )
    head, _, rest = made.partition("\n\n")
    assert head.splitlines() == [
        "#!/bin/sh",
        "#SBATCH --job-name=mlp",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --output=/dev/null",
        "#SBATCH --no-requeue",
        "#SBATCH --partition=short",
        "#SBATCH --time=1:02:03",
        "#SBATCH --account=lab",
        "#SBATCH --constraint=a100",
    ]
    assert rest.startswith("# Holds the nodes")


def test_a_request_without_settings_asks_for_whole_nodes() -> None:
    made = SLURM.render_script(make_request())
    assert "#SBATCH --exclusive\n" in made
    assert not any(word in made for word in ("--partition", "--time", "--account"))


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"nodes": 3}, 'Slurm partition "cluster" has 2 nodes (TotalNodes=2), and the job needs 3 ([train] nodes)'),
        (
            {"queue": "short", "walltime_s": 7200},
            'Slurm partition "short" allows at most 0:01:00 (MaxTime=00:01:00), and the job asks for 2:00:00',
        ),
        (
            {"queue": "short", "nodes": 3},
            'Slurm partition "short" allows at most 2 nodes (MaxNodes=2), and the job needs 3 ([train] nodes)',
        ),
        (
            {"queue": "short", "nodes": 1},
            'Slurm partition "short" needs at least 2 nodes (MinNodes=2), and the job uses 1 ([train] nodes)',
        ),
        ({"queue": "gpu"}, 'Slurm has no partition "gpu" (it has: cluster, short, long)'),
        ({"queue": "long"}, 'Slurm partition "long" does not accept or start jobs (State=DRAIN)'),
    ],
)
def test_limits(more: dict[str, Any], error: str) -> None:
    queues = SLURM.parse_limits(PARTITIONS)
    assert SLURM.check(make_request(), queues) == make_request()
    with pytest.raises(ValueError, match=re.escape(f"{error}; to list them: sinfo")):
        SLURM.check(make_request(**more), queues)


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        (show_job("PENDING", reason="Resources"), "pending", "Resources"),
        (show_job("CONFIGURING"), "pending", "waits for the scheduler"),
        (show_job("TIMEOUT", code="0:15"), "ended", "it reached its walltime (00:01:00)"),
        (show_job("FAILED", reason="NonZeroExitCode", code="3:0"), "ended", "its batch script failed (exit code 3)"),
        (show_job("COMPLETED", name="JobState=RUNNING"), "ended", "its batch script ended"),
        (show_job("LAUNCH_FAILED"), "ended", "its state is LAUNCH_FAILED"),
        (Response("", "slurm_load_jobs error: Invalid job id specified\n", 1), "ended", "Slurm no longer has the job"),
    ],
)
def test_states(answer: Response, state: str, reason: str) -> None:
    found = SLURM.parse_state(answer, "3")
    assert (found.state, found.reason) == (state, reason)
    assert SLURM.more_command("3", found) == ()


def test_nodes_come_with_their_addresses_that_of_the_script_first() -> None:
    found = SLURM.parse_state(show_job("RUNNING"), "3")
    assert SLURM.more_command("3", found)[-1] == "ip-10-131-0-[4-5]"
    nodes = (AllocatedNode("ip-10-131-0-5", "10.131.0.5"), AllocatedNode("ip-10-131-0-4", "10.131.0.4"))
    assert SLURM.parse_more(Response(NODES), found) == AllocationState("running", nodes=nodes)
