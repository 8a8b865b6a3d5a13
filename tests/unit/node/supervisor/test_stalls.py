"""When a job counts as hanging, the messages to the user, and when the job is ended."""

from itertools import pairwise
from typing import Any, cast

import pytest
from msgspec.structs import replace

from fake_timers import Timers, timers
from job_channels import make_agents, make_order
from node.job.stacks import MOST_LOCATIONS, Collective, Location, list_locations
from node.protocol import HostSettings, JobHost
from node.supervisor import stalls
from node.supervisor.processes import Processes
from node.wire import Inspect, Reach, TakeStack, Used

__all__ = ["timers"]

MIN = 60.0


ADDRESSES = {"node-0": "10.0.0.4", "node-1": "10.0.0.5", "node-2": "10.0.0.6"}


def location_of(text: str) -> Location:
    """One that waits for others if the text names a call."""
    return Location(text=text, waits=" (" in text, stack=f"stack at {text}")


class HostsAgent:
    """A connection to the agent of a host, which answers at once."""

    is_open = True
    blocked: tuple[str, ...] = ()

    def __init__(self, job: "Job", host: str) -> None:
        self._job, self._host = job, host

    def put(self, message: Inspect | TakeStack | Reach) -> None:
        if isinstance(message, Reach):
            lost = {ADDRESSES[name] for name in self._job.lost.get(self._host, ())}
            self.blocked = tuple(f"{ip}:{port}" for ip, port in message.addresses if ip in lost)
            return
        process: Any = self._job.processes.by_number(message.p)
        assert process.host == self._host
        if isinstance(message, Inspect):
            self._job.looks += 1
            self._job.stalls.on_use(process, self._job.uses[process.name])
        else:
            self._job.asked_nccl |= {process.name} if message.nccl else set()
            if process.name in self._job.locations:
                location = location_of(self._job.locations[process.name])
                if message.recorder and self._job.records is not None:
                    location = replace(location, collectives=(self._job.records[process.rank],))
                    use = self._job.uses[process.name]
                    self._job.uses[process.name] = Used(use.p, use.cpu_s + 2, use.bytes + 400_000, (), recorded=True)
                is_native = message.native and process.name in self._job.spins
                self._job.stalls.on_location(process, replace(location, waits=True) if is_native else location)


class Job:
    """A scheduler on the head, and a worker and a server on each of two nodes. All of them run and do nothing."""

    def __init__(self, timers: Timers, limit: float | str = "auto", launcher: str = "ssh", **train: Any) -> None:
        self.timers, self.looks = timers, 0
        hosts = tuple(JobHost(name=name, ip=ip) for name, ip in ADDRESSES.items())
        limit = limit if isinstance(limit, str) else int(limit)
        keys = {"workers": 2, "servers": 2, "stall_timeout": limit, "launcher": launcher, **train}
        order = make_order(hosts=hosts, **keys)
        agents = {name: cast("Any", HostsAgent(self, name)) for name in ADDRESSES}
        self.processes = Processes(order, agents)
        self.told: list[tuple[float, str]] = []
        self.ended: list[tuple[float, str]] = []
        self.lost: dict[str, list[str]] = {}
        self.locations: dict[str, str] = {}  # the lines at which workers are, by their names
        self.spins: set[str] = set()  # the workers whose frames of C show that they wait
        self.kept: list[tuple[str, ...]] = []
        self.asked_nccl: set[str] = set()
        self.records: list[Collective] | None = None  # what PyTorch's flight recorder of each worker says
        self.stalls = stalls.Stalls(self.processes, self.timers, self.report, self.end, keep=self.kept.append)
        others = [(role, host) for role in ("server", "worker") for host in ("node-1", "node-2")]
        for role, host in [("scheduler", "node-0"), *others]:
            made = self.processes.add(role, host)
            made.pid = 100 + made.number
            made.rank = int(host[-1]) - 1 if role != "scheduler" else None
            made.bound = (ADDRESSES[host], 9091 if role == "scheduler" else 20000 + made.number)
        self.uses = {one.name: Used(one.number, cpu_s=0.0, bytes=0, stopped=()) for one in self.processes.all}
        self.stalls.start()

    def report(self, text: str, seconds: float | None) -> None:
        assert (seconds is None) == ("again" in text)
        self.told.append((self.timers.now, text))

    def end(self, error: str) -> None:
        self.ended.append((self.timers.now, error))
        self.timers.end()

    def worker(self, rank: int) -> Any:
        return self.processes.of("worker")[rank]

    def stop(self, role: Any, *, is_stopped: bool = True) -> None:
        stopped = ((role.pid, "python x.py"),) if is_stopped else ()
        self.uses[role.name] = replace(self.uses[role.name], stopped=stopped)

    def run(self, seconds: float, *, prints_every_s: float | None = None, cpu_share: float = 0.0) -> None:
        """Lets time pass, in which worker 0 prints at this interval, or uses this share of a CPU."""
        until = next_line = self.timers.now
        until += seconds
        while self.timers.now < until and not self.ended:
            use = self.uses[self.worker(0).name]
            self.uses[self.worker(0).name] = replace(use, cpu_s=use.cpu_s + cpu_share)
            if prints_every_s is not None and self.timers.now + 1 >= next_line:
                next_line += prints_every_s
                self.stalls.on_line(self.worker(0), "step")
            self.timers.wait(1)


@pytest.fixture
def job(timers: Timers) -> Job:
    return Job(timers)


def test_a_job_that_prints_every_20_minutes_raises_no_alarm(job: Job) -> None:
    job.run(45 * MIN, prints_every_s=20 * MIN)
    assert (job.told, job.ended) == ([], [])


@pytest.mark.parametrize(("launcher", "is_ended"), [("ssh", False), ("torchrun", True), ("env", True)])
def test_a_little_cpu_is_progress_except_for_gloo(timers: Timers, launcher: str, *, is_ended: bool) -> None:
    """Such as a worker that waits for S3. A thread of Gloo polls."""
    job = Job(timers, MIN, launcher)
    job.run(2 * MIN, cpu_share=0.005)
    assert bool(job.ended) == is_ended


def test_output_of_ps_lite_is_not_progress(timers: Timers) -> None:
    job = Job(timers, MIN)
    for _ in range(12):
        job.run(10)
        job.stalls.on_line(job.worker(0), "[12:00:00] ../3rdparty/ps-lite/src/van.cc:310: Warning: resend")
    assert job.ended


def test_workers_that_wait_at_different_lines_are_named_within_a_minute(job: Job) -> None:
    """Such as those with different numbers of batches. One that polls is now here, now there."""
    job.run(100, prints_every_s=1.0)
    for step in range(30):
        job.locations = {
            job.worker(0).name: f"train.py:{11 + step % 2} (all_reduce)",
            job.worker(1).name: "the end of the program (KVStore.__del__)",
        }
        job.run(20)
    at, text = job.told[0]
    assert 100 + stalls.APART_S <= at <= 160
    assert text.partition(": ")[2] in {
        f"worker 0 on node-1 waits at train.py:{line} (all_reduce); "
        "worker 1 on node-2 waits at the end of the program (KVStore.__del__)"
        for line in (11, 12)
    }
    assert len(job.told) == 3  # after 2 and 4 min again
    assert job.ended == []


@pytest.mark.parametrize(
    ("locations", "message"),
    [
        ("", ""),
        ("aab", "w2 is at b; 2 others are at a"),
        ("abbcc", "w0 is at a; w1, w2 are at b; 2 others are at c"),
        ("abcdef" + 9 * "g", "w0 is at a; w1 is at b; w2 is at c; 9 others are at g; 3 more are at other lines"),
    ],
)
def test_workers_apart_from_most_others_come_first(locations: str, message: str) -> None:
    found = {f"w{rank}": Location(text=location) for rank, location in enumerate(locations)}
    assert "; ".join(list_locations(found, most=MOST_LOCATIONS)) == message


def test_flight_recorders_are_read_once_and_are_no_progress(timers: Timers) -> None:
    job = Job(timers, 2 * MIN, "torchrun", servers=0)
    group = "0 (default_pg)"
    job.records = [
        Collective(group=group, entered=3, number=3, call="all_reduce of 9"),
        Collective(group=group, entered=2),
    ]
    job.locations = {job.worker(0).name: "train.py:31 (all_reduce)", job.worker(1).name: "data.py:88"}
    job.run(3 * MIN)
    (_, told), *_ = job.told
    late = "worker 1 on node-2 is at an earlier one; worker 0 on node-1 waits at all_reduce of 9"
    line = f"collective 3 of group {group}: {late}"
    assert told.endswith(line)
    ((at, error),) = job.ended
    assert at <= 2 * MIN + stalls.CHECK_EVERY_S
    assert error.endswith(line)
    at_both = ("worker 1 on node-2: stack at data.py:88", "worker 0 on node-1: stack at train.py:31 (all_reduce)")
    assert job.kept == [at_both] * 2  # when the user is told, and before the end


def test_a_worker_that_computes_while_its_flight_recorder_is_read_raises_no_alarm(timers: Timers) -> None:
    """Its use may be the recorder's alone, so that nothing is said until the record is there."""
    job = Job(timers, 12, "torchrun", servers=0)
    job.records = [Collective(group="0", entered=3, number=3, call="all_reduce of 9")] * 2
    job.locations = {job.worker(0).name: "evaluate.py:7", job.worker(1).name: "train.py:31 (all_reduce)"}
    job.run(1, prints_every_s=1.0)
    job.run(30, cpu_share=0.5)
    assert (job.told, job.ended) == ([], [])
    job.run(30)
    assert job.ended


def test_a_worker_that_spins_in_a_function_of_c_makes_no_progress(timers: Timers) -> None:
    job = Job(timers, servers=0)
    job.run(100, prints_every_s=1.0)
    job.locations = {job.worker(0).name: "train.py:31", job.worker(1).name: "data.py:88 in load()"}
    job.spins = {job.worker(0).name}
    job.run(300, cpu_share=1.0)
    at, text = job.told[0]
    assert 100 + stalls.APART_S <= at <= 160
    assert text.endswith("worker 1 on node-2 is at data.py:88 in load(); worker 0 on node-1 waits at train.py:31")
    assert job.stalls.complete(job.worker(0), Location(text="train.py:31")).waits
    assert not job.stalls.complete(job.worker(0), Location(text="train.py:32")).waits


def test_the_kv_store_waits_for_a_worker_but_not_while_one_computes(job: Job) -> None:
    """ps-lite waits without the CPU; MXNet's own engine, for which a program may wait too, computes with it."""
    job.run(100, prints_every_s=1.0)
    job.locations = {job.worker(0).name: "train.py:31 (wait_to_read)", job.worker(1).name: "data.py:88 in load()"}
    job.run(300, cpu_share=1.0)
    assert job.told == []
    job.run(100)
    assert job.told[0][1].endswith("the kv-store waits for what worker 1 on node-2 pushes")


@pytest.mark.parametrize("locations", [("train.py:31 (all_reduce)", "train.py:32 (all_reduce)"), ("train.py:31",)])
def test_a_worker_that_computes_makes_progress(job: Job, locations: tuple[str, ...]) -> None:
    """Between two collectives, or in a long function of C."""
    job.locations = {job.worker(1).name: "train.py:40 (barrier)"}
    for step in range(300):
        job.locations[job.worker(0).name] = locations[step // 10 % len(locations)]
        job.run(1, cpu_share=1.0)
    assert job.told == []


def test_a_worker_that_computes_now_and_then_sets_the_pace(timers: Timers) -> None:
    job = Job(timers, servers=0)
    job.locations = {job.worker(0).name: "evaluate.py:7", job.worker(1).name: "train.py:40 (barrier)"}
    for _ in range(6):
        job.run(50)
        job.run(10, cpu_share=1.0)
    assert len(job.told) == 2  # once, and that it makes progress again
    job.locations = {job.worker(0).name: "train.py:31 (all_reduce)", job.worker(1).name: "save.py:9"}
    job.run(100, cpu_share=1.0)  # while it waits, it spins, which takes nothing back from before
    assert len(job.told) == 2


def test_what_nccl_says_is_told(timers: Timers) -> None:
    """One worker is asked: NCCL answers for the whole job."""
    job = Job(timers, 2 * MIN)
    job.run(100, prints_every_s=1.0)
    job.asked_nccl.clear()
    location = Location(text="train.py:31 (all_reduce)", waits=True, nccl=("Missing communicator data from 1 rank",))
    for _ in range(10):
        job.stalls.on_location(job.worker(0), location)
        job.run(10)
    assert job.told[0][1].endswith("; NCCL: Missing communicator data from 1 rank")
    assert job.asked_nccl == {job.worker(0).name}


@pytest.mark.parametrize(
    ("limit", "others", "is_told", "is_ended"),
    [
        ("auto", {}, True, False),
        ("auto", {"prints_every_s": 5.0}, False, False),
        (2 * MIN, {"cpu_share": 0.5}, True, True),  # such as `ray start --block`
        (2 * MIN, {"prints_every_s": MIN}, True, False),  # until it prints
    ],
)
def test_a_worker_has_ended_with_0_while_another_runs(
    timers: Timers, limit: float | str, others: dict[str, float], *, is_told: bool, is_ended: bool
) -> None:
    job = Job(timers, limit)
    job.run(100, prints_every_s=1.0)
    job.worker(1).exit_code = 0
    job.stalls.on_exit(job.worker(1))
    job.run(400, **others)
    found = "no worker has made progress for 41 s: worker 1 on node-2 ended with exit code 0 41 s ago, and 1 other runs"
    assert [text for _, text in job.told][:1] == ([found] if is_told else [])
    if is_ended:
        ((at, error),) = job.ended
        assert float(limit) <= at - 100 <= float(limit) + 2 * stalls.CHECK_EVERY_S
        assert error.startswith("no worker made progress for ")
        assert "(stall_timeout): worker 1 on node-2 ended with exit code 0 " in error
    else:
        assert job.ended == []


def test_a_batch_is_progress_after_a_worker_has_ended(timers: Timers) -> None:
    job = Job(timers, MIN)
    job.worker(1).exit_code = 0
    job.stalls.on_exit(job.worker(1))
    for _ in range(20):
        job.run(20)
        job.stalls.on_progress()
    assert job.ended == []
    job.worker(0).exit_code = 0
    job.stalls.on_exit(job.worker(0))
    job.run(600)
    assert job.ended == []  # no other waits


def test_a_stopped_worker_is_reported_soon_then_less_and_less_often(job: Job) -> None:
    job.run(60, prints_every_s=1.0)
    job.stop(job.worker(1))
    job.run(1000)
    times, texts = zip(*job.told, strict=True)
    command = "cluster exec --node node-2 -- kill -CONT 104"
    found = f"worker 1 on node-2 (process 104) is stopped, as by SIGSTOP; `{command}` resumes it"
    assert all(text.endswith(found) for text in texts)
    assert 60 < times[0] <= 60 + 3 * stalls.CHECK_EVERY_S
    pauses = [after - before for before, after in pairwise(times)]
    assert len(times) == 4
    assert all(after >= 2 * before - stalls.CHECK_EVERY_S for before, after in pairwise(pauses))
    assert job.ended == []


def test_a_stopped_process_is_reported_though_others_are_active(job: Job) -> None:
    job.stop(job.processes.of("scheduler")[0])
    job.run(60, prints_every_s=1.0)
    assert [text.partition(";")[0] for _, text in job.told] == [
        "scheduler on node-0 (process 100) is stopped, as by SIGSTOP"
    ]


def test_a_stopped_child_of_a_worker_is_reported_with_its_command(job: Job) -> None:
    loader = (7, "python \x1b]0;x.py --loader " + "x" * 99)
    job.uses[job.worker(1).name].stopped = (loader, (8, "python"))
    job.run(60)
    ((_, text),) = job.told
    shown = "python ?]0;x.py --loader " + "x" * 35
    assert f"process 7 ({shown}) of worker 1 on node-2 is stopped" in text
    assert "kill -CONT 7 8`" in text


def test_progress_after_a_stall_is_reported_once(job: Job) -> None:
    job.stop(job.worker(1))
    job.run(300)
    job.stop(job.worker(1), is_stopped=False)
    job.run(300, prints_every_s=1.0)
    assert [text for _, text in job.told][-1] == "the job makes progress again"
    assert sum("again" in text for _, text in job.told) == 1
    assert job.stalls._pace_s < 60  # the time while it was stopped does not count towards its pace


def test_a_stopped_child_of_an_active_worker_is_not_reported(job: Job) -> None:
    job.stop(job.worker(0))
    job.run(600, cpu_share=0.5)
    assert job.told == []


def test_nodes_out_of_reach_are_reported_after_a_minute(job: Job) -> None:
    job.run(60, prints_every_s=1.0)
    job.lost = {"node-1": ["node-2"], "node-2": ["node-1"]}
    job.locations = {job.worker(rank).name: "train.py:31 (all_reduce)" for rank in range(2)}
    job.run(120)
    ((at, text),) = job.told
    assert 120 <= at <= 120 + 2 * stalls.CHECK_EVERY_S
    assert text.partition(": ")[2] == (
        "node-1 cannot reach node-2 (10.0.0.6) on TCP ports 20002, 20004; "
        "node-2 cannot reach node-1 (10.0.0.5) on TCP ports 20001, 20003; `cluster verify` tries their ports; "
        "all 2 wait at train.py:31"
    )


def test_nodes_try_each_other_again_after_progress(timers: Timers) -> None:
    job = Job(timers, 40)
    job.run(35)  # all have been reached
    job.run(5, prints_every_s=1.0)
    job.lost = {"node-1": ["node-2"]}
    job.run(60)
    assert "node-1 cannot reach node-2" in job.ended[0][1]


@pytest.mark.parametrize(
    ("before", "after", "has_moved"),
    [
        ("10%|#  | 1/10 [00:01<00:09,  1.00it/s]", "10%|#  | 1/10 [00:02<00:19,  0.50it/s]", False),
        ("10%|#  | 1/10 [00:01<00:09,  1.00it/s]", "20%|## | 2/10 [00:02<00:08,  1.00it/s]", True),
        ("40it [00:04,  9.93it/s]", "40it [00:05,  9.90it/s]", False),
        ("40it [00:04,  9.93it/s]", "41it [00:05,  9.90it/s]", True),
        ("\u280b loading 0:00:01", "\u2819 loading 0:00:02", False),
        ("loading ..", "loading ...", True),
        ("outer 1/3\ninner 9/10", "outer 1/3\ninner 10/10", True),
    ],
)
def test_a_bar_whose_clock_alone_runs_has_not_moved(before: str, after: str, *, has_moved: bool) -> None:
    assert (stalls.read_position(before) != stalls.read_position(after)) == has_moved


@pytest.mark.parametrize("moves", [True, False])
def test_a_bar_that_moves_is_progress(timers: Timers, *, moves: bool) -> None:
    job = Job(timers, MIN)
    for step in range(12):
        job.run(10)
        job.stalls.on_bar(job.worker(0), f"| {step * moves}/999 [{step // 6:02}:{step % 6}0<?]")
    assert bool(job.ended) != moves


def test_on_stall_report_ends_nothing(timers: Timers) -> None:
    job = Job(timers, MIN, on_stall="report")
    job.run(10 * MIN)
    assert job.ended == []
    assert 0.5 * MIN <= job.told[0][0] <= MIN
    assert len(job.told) > 1


def test_stall_timeout_none_turns_it_off(timers: Timers) -> None:
    job = Job(timers, "none")
    job.stop(job.worker(0))
    job.run(10 * MIN)
    assert (job.looks, job.told, job.ended) == (0, [], [])


def test_the_users_own_hosts_are_tried_only_at_ps_lites_ports() -> None:
    settings = HostSettings(user="me", port=22, python="/usr/bin/python3", code_dir="/c", cwd="/", command=())
    nodes = (JobHost(name="node-0", ip="10.0.0.4"), JobHost(name="node-1", ip="10.0.0.5"))
    order = make_order(hosts=(*nodes, JobHost(name="lab", ip="10.0.0.9", own_host=settings)))
    known = Processes(order, make_agents(order))
    for host in ("node-0", "node-1", "lab"):
        known.add("worker", host)
    assert known.addresses_of_others("node-0") == (("10.0.0.5", 22),)
    known.all[2].bound = ("10.0.0.9", 20000)
    assert known.addresses_of_others("node-0") == (("10.0.0.9", 20000), ("10.0.0.5", 22))
