"""The scripts and commands of PBS, with the output of Slurm's wrappers for Torque and from OpenPBS's documentation."""

import pytest

from job_forms import make_request
from node.engines.pbs import PbsScheduler
from node.engines.scheduler import AllocatedNode, Response

PBS = PbsScheduler()
WRAPPED = """\
Job Id:\t4
\tJob_Name = h.sh
\tJob_Owner = ubuntu@ip-10-131-0-4
\tjob_state = {state}
\tqueue = cluster
\texec_host = ip-10-131-0-4/2+ip-10-131-0-5/2
\tPriority = 4294901756
\tResource_List.nodect = 2
"""
OPENPBS = """\
Job Id: 17.head
    Job_Name = mlp
    job_state = {state}
    exec_host = n1/0*2+n1/1+n2/0*2
    Resource_List.nodect = 2
    comment = Not Running: Insufficient amount of resource:
\tncpus
    Exit_status = {status}
    Variable_List = PBS_O_HOME=/home/me,PBS_O_LANG=C,
\tPBS_O_PATH=/bin
"""


def of_openpbs(state: str, status: int = 0) -> Response:
    return Response(OPENPBS.format(state=state, status=status))


def test_the_script_of_a_request_with_every_setting() -> None:
    made = PBS.render_script(
        make_request(name="4-a-name-that-is-long", queue="short", walltime_s=90, account="lab", slots_per_node=4,
                options=("-m n",))
    )  # fmt: skip
    assert made.partition("\n\n")[0].splitlines() == [
        "#!/bin/sh",
        "#PBS -N j4-a-name-that-",
        "#PBS -l nodes=2:ppn=4",
        "#PBS -r n",
        "#PBS -q short",
        "#PBS -l walltime=0:01:30",
        "#PBS -A lab",
        "#PBS -m n",
    ]


def test_resources_of_the_users_own() -> None:
    """OpenPBS: "Cannot be used with select or place: nodes"."""
    for option in ("-l select=2:ncpus=4:ngpus=1", "-l nodes=2:ppn=4:gpus=1,mem=4gb"):
        made = PBS.render_script(make_request(options=(option,)))
        assert [line for line in made.splitlines() if " -l " in line] == [f"#PBS {option}"]


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        (Response(WRAPPED.format(state="Q")), "pending", "waits for free nodes"),
        (of_openpbs("Q"), "pending", "Not Running: Insufficient amount of resource:ncpus"),
        (of_openpbs("F", -29), "ended", "it reached its walltime"),
        (of_openpbs("S"), "ended", "it was suspended"),
        (of_openpbs("C", 271), "ended", "its batch script was killed by signal 15 (qdel, or the walltime)"),
        (Response("", "qstat: Unknown Job Id 17.head\n", 153), "ended", "PBS no longer has the job"),
        (
            Response("", "qstat: 17.head Job has finished, use -x or -H to obtain historical job information\n", 35),
            "ended",
            "PBS no longer has the job",
        ),
    ],
)
def test_states(answer: Response, state: str, reason: str) -> None:
    found = PBS.parse_state(answer, "17.head")
    assert (found.state, found.reason) == (state, reason)


@pytest.mark.parametrize(
    ("answer", "names"),
    [(Response(WRAPPED.format(state="R")), ["ip-10-131-0-4", "ip-10-131-0-5"]), (of_openpbs("R"), ["n1", "n2"])],
)
def test_nodes(answer: Response, names: list[str]) -> None:
    assert PBS.parse_state(answer, "4").nodes == tuple(AllocatedNode(name) for name in names)
