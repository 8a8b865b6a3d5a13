"""Grid Engine's scripts and commands, with the output of Grid Engine 8.1.9."""

import re
from typing import Any

import pytest

from job_forms import make_request
from node.engines.scheduler import AllocatedNode, AllocationState, Response
from node.engines.sge import VAGUE, SgeScheduler
from node.protocol import AllocationRequest

SGE = SgeScheduler()
QUEUES = """\
qname                 all.q
hostlist              @allhosts
pe_list               fill one two
slots                 2
h_rt                  INFINITY
s_rt                  INFINITY

qname                 short
hostlist              @allhosts
pe_list               one,[ip-10-208-0-5.ec2.internal=two]
slots                 1,[ip-10-208-0-4.ec2.internal=2], \\
                      [ip-10-208-0-5.ec2.internal=4]
s_rt                  INFINITY
h_rt                  00:01:30,[ip-10-208-0-5.ec2.internal=00:00:30]
"""
ENVIRONMENT = "pe_name            {name}\nslots              999\nallocation_rule    {rule}\ncontrol_slaves     TRUE\n"
ROW = """\
    <job_list state="{kind}">
      <JB_job_number>{number}</JB_job_number>
      <JB_name>state</JB_name>
      <JB_owner>ubuntu</JB_owner>
      <state>{state}</state>
      <queue_name>{queue}</queue_name>
      <master>{master}</master>
      <slots>1</slots>
    </job_list>
"""
REASONS = """\
==============================================================
job_number:                 2
script_file:                h.sh
parallel environment:  two range: 4
scheduling info:            cannot run in PE "two" because it only offers 2 slots
                            cannot run in PE "one"
"""
ACCOUNT = "=========\nqname        short\njobnumber    5\nfailed       {failed}\nexit_status  {code}\ncpu     0.008s\n"


def account(failed: str, code: str = "137                  (Killed)") -> Response:
    return Response(ACCOUNT.format(failed=failed, code=code))


def show_jobs(*rows: str) -> Response:
    return Response(f"<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"x\">\n{''.join(rows)}</job_info>\n")


def row(number: int, state: str, queue: str = "", master: str = "") -> str:
    kind = "running" if queue else "pending"
    return ROW.format(number=number, state=state, queue=queue, master=master, kind=kind)


def test_the_script_of_a_request_with_every_setting() -> None:
    made = SGE.render_script(
        make_request(queue="short", walltime_s=90, account="lab", slots_per_node=4, environment="mpi", options=("-R",))
    )
    assert made.partition("\n\n")[0].splitlines() == [
        "#!/bin/sh",
        "#$ -N mlp",
        "#$ -S /bin/sh",
        "#$ -o /dev/null",
        "#$ -j y",
        "#$ -r n",
        "#$ -pe mpi 8",
        "#$ -q short",
        "#$ -l h_rt=0:01:30",
        "#$ -A lab",
        "#$ -R",
    ]


RULES = {"one": "1", "two": "2"}
FILL = {"fill": "$fill_up"}


def check(rules: dict[str, str], **more: Any) -> AllocationRequest:
    """The request, completed. rules: the allocation rules of the parallel environments, by name."""
    text = QUEUES + "".join(ENVIRONMENT.format(name=name, rule=rule) for name, rule in rules.items())
    return SGE.check(make_request(**more), SGE.parse_limits(text))


@pytest.mark.parametrize(
    ("rules", "more", "environment", "slots"),
    [
        (FILL | RULES, {"queue": "all.q", "walltime_s": 10**6}, "fill", 2),
        (RULES, {"queue": "all.q"}, "two", 2),
        (FILL | RULES, {"queue": "all.q", "slots_per_node": 1}, "one", 1),
        ({"fill": "$pe_slots"}, {"queue": "all.q", "nodes": 1}, "fill", 2),
        (RULES, {"queue": "all.q", "options": ("-pe mine 6",)}, "", 0),
        (RULES, {"nodes": 1}, "", 0),  # in any queue
        (RULES, {"options": ("-pe mine 6",)}, "", 0),
    ],
)
def test_the_parallel_environment(rules: dict[str, str], more: dict[str, Any], environment: str, slots: int) -> None:
    made = check(rules, **more)
    assert (made.environment, made.slots_per_node) == (environment, slots)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"queue": "gpu"}, 'Grid Engine has no queue "gpu" (it has: all.q, short); to list them: qconf -sql'),
        ({"queue": "short", "walltime_s": 120}, "allows at most 0:01:30 (h_rt 00:01:30)"),
        ({"queue": "all.q", "slots_per_node": 3}, "2 slots per node (slots 2), and [queue] slots_per_node is 3"),
        ({}, "set [queue] name: Grid Engine has several queues (all.q, short)"),
        ({"queue": "all.q"}, "gives 2 slots on each of 2 nodes (allocation rules: one: 1)"),
        ({"queue": "short"}, 'nodes of queue "short" have different numbers of slots: set [queue] slots_per_node'),
    ],
)
def test_what_a_queue_does_not_allow(more: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        check({"one": "1", "of-no-queue": "2"}, **more)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (show_jobs(row(2, "qw"), row(5, "r", "all.q@a", "MASTER")), AllocationState("pending", "waits for free slots")),
        (show_jobs(row(2, "Eqw")), AllocationState("pending", "Grid Engine could not start it (state Eqw)")),
        (show_jobs(row(5, "r", "all.q@a", "MASTER")), AllocationState("ended", VAGUE, is_vague=True)),
        (
            show_jobs(
                row(2, "r", "all.q@b.ec2.internal", "SLAVE"),
                row(2, "r", "all.q@b.ec2.internal", "SLAVE"),
                row(2, "r", "short@a.ec2.internal", "MASTER"),
            ),
            AllocationState("running", nodes=(AllocatedNode("a.ec2.internal"), AllocatedNode("b.ec2.internal"))),
        ),
    ],
)
def test_states(answer: Response, found: AllocationState) -> None:
    assert SGE.parse_state(answer, "2") == found


def test_a_task_of_an_array() -> None:
    task = row(2, "r", "all.q@a", "MASTER").replace("</job_list>", "<tasks>3</tasks></job_list>")
    states = [SGE.parse_state(show_jobs(task), number) for number in ("2", "2.3", "2.4")]
    assert [one.state for one in states] == ["running", "running", "ended"]
    assert SGE.more_command("2.4", states[2]) == ("qacct", "-j", "2", "-t", "4")


@pytest.mark.parametrize(
    ("state", "answer", "reason"),
    [
        (
            "pending",
            Response(REASONS),
            'cannot run in PE "two" because it only offers 2 slots; cannot run in PE "one"',
        ),
        ("pending", Response("", "no", 1), "before"),
        ("ended", account("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit"), "it reached its walltime (h_rt)"),
        (
            "ended",
            account("100 : assumedly after job"),
            "its batch script was killed (exit code 137): qdel, or a limit",
        ),
        ("ended", account("0", code="3"), "its batch script ended (exit code 3)"),
        ("ended", Response("", "error: job id 2 not found\n", 1), "before"),
    ],
)
def test_reasons(state: Any, answer: Response, reason: str) -> None:
    assert SGE.parse_more(answer, AllocationState(state, "before")).reason == reason
