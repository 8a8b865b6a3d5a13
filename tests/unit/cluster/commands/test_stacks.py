"""`cluster stacks`: the processes of a job by their lines, and all threads of one."""

from msgspec.structs import replace

from cluster.commands.job.stacks import render_rank, render_stacks, stack_documents
from node.job.stacks import Collective, Frame, Location, Program, Stack, Thread
from node.protocol import JobSpec
from node.train_settings import TrainSettings

LOADS = Location(text="data.py:88 in load()", stack="load (data.py:88)")
WAITS = Location(text="train.py:120 (all_reduce)", waits=True, stack="all_reduce (c10d.py:3)")
IN_8 = Collective(group="0 (default_pg)", entered=8, number=8, call="gather of 9")
SERVES = Location(text="train.py:1 (KVStoreServer.run)", waits=True)
SPEC = JobSpec(id="j", name="mine", workers=16, servers=2)
RANKS = [Stack(role="worker", host=f"node-{rank // 2}", rank=rank, location=WAITS) for rank in range(16)]
RANKS[5] = replace(RANKS[5], location=LOADS)


def test_the_process_that_is_elsewhere_comes_first() -> None:
    servers = [Stack(role="server", host="node-0", rank=rank, location=SERVES) for rank in range(2)]
    dead = Stack(role="scheduler", host="node-0", location=Location(why="its node did not answer within 10 s"))
    assert render_stacks([dead, *servers, *RANKS], SPEC).split("\n") == [
        "worker 5 on node-2 is at data.py:88 in load()",
        "15 others wait at train.py:120 (all_reduce)",
        "the kv-store waits for what worker 5 on node-2 pushes",
        "servers: server 0 on node-0, server 1 on node-0 wait at train.py:1 (KVStoreServer.run)",
        "no stack of scheduler on node-0: its node did not answer within 10 s",
    ]
    asked = [replace(RANKS[0], location=replace(WAITS, nccl=("Missing data from 1 rank",))), *RANKS[1:]]
    assert render_stacks(asked, SPEC).split("\n")[-1] == "NCCL: Missing data from 1 rank"
    assert render_rank(asked[0]).endswith("\nNCCL: Missing data from 1 rank")
    assert stack_documents(asked)[0]["nccl"] == ["Missing data from 1 rank"]
    group = Collective(group="0 (default_pg)", entered=7)
    recorded = [replace(RANKS[5], location=replace(LOADS, collectives=(group,)))]
    recorded += [replace(one, location=replace(WAITS, collectives=(IN_8,))) for one in RANKS[6:]]
    late = (
        "collective 8 of group 0 (default_pg): worker 5 on node-2 is at an earlier one; 10 others wait at gather of 9"
    )
    assert render_stacks(recorded, SPEC).split("\n")[-1] == late
    assert render_rank(recorded[-1]).endswith(": worker 15 on node-7 waits at gather of 9")
    assert stack_documents(recorded)[0]["collectives"] == [
        {"group": "0 (default_pg)", "entered": 7, "number": 0, "call": ""}
    ]
    asynchronous = replace(SPEC, train=TrainSettings(kv_store="dist_async"))
    assert "kv-store" not in render_stacks(RANKS, asynchronous)
    (first, *_) = stack_documents([RANKS[5]])
    assert (first["rank"], first["location"], first["waits"], first["why"]) == (5, "data.py:88 in load()", False, None)


def test_a_rank_with_its_data_loader() -> None:
    main = Thread((Frame("load", "/w/data.py", 88), Frame("<module>", "/w/train.py", 9)), 7, "MainThread")
    loader = Program(pid=8, words="python train.py", threads=(Thread((Frame("read", "/w/data.py", 3),), 8),))
    programs = (Program(pid=7, words="python train.py", threads=(main,)), loader)
    rank = replace(RANKS[5], location=replace(LOADS, programs=programs))
    assert render_rank(rank).split("\n") == [
        *("worker 5 on node-2 is at data.py:88 in load()", ""),
        *("process 7: python train.py", "  MainThread", "    load (/w/data.py:88)", "    <module> (/w/train.py:9)", ""),
        *("process 8: python train.py", "  thread 8", "    read (/w/data.py:3)"),
    ]
    assert (
        render_rank(Stack(role="worker", host="n", location=Location(why="no sudo")))
        == "no stack of worker on n: no sudo"
    )
