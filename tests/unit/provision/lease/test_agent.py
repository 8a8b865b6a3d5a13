"""The nodes' lease program: the lease that counts, the clocks, the neighbors, and the end."""

import json
import multiprocessing
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from node.lease import agent, control, metadata, neighbors, system, warn
from node.lease.activity import Use
from node.lease.agent import Agent
from node.lease.neighbors import Neighbors
from node.lease.state import State
from node.lease.terms import End, Lease, render_lease

NOW = 1_800_000_000.0


class Clocks:
    """The time of day, and the time since boot, in seconds."""

    def __init__(self) -> None:
        self.wall, self.boot = NOW, 100.0

    def pass_s(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(time, "time", lambda: made.wall)
    monkeypatch.setattr(system, "boot_clock", lambda: made.boot)
    return made


def text(set_at: float = NOW, **terms: Any) -> str:
    return render_lease(Lease(set_at=set_at, **terms))


def write_state(folder: Path, **values: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("armed", "kept", "until"),
    [
        (text(until=NOW + 60), None, NOW + 60),
        (text(until=NOW + 60), {"lease": text(NOW + 5, until=NOW + 600), "at": NOW, "spent_usd": 0}, NOW + 600),
        (text(NOW + 9, until=NOW + 60), {"lease": text(NOW + 5, until=NOW + 600), "at": NOW, "spent_usd": 0}, NOW + 60),
        (text(until=NOW + 60), {"lease": "damaged", "at": NOW, "spent_usd": 0}, NOW + 60),
        (text(until=NOW + 60), {"lease": 7}, NOW + 60),
        (text(until=NOW + 60), "not JSON", NOW + 60),
        ("", {"lease": text(until=NOW + 600), "at": NOW, "spent_usd": 0}, NOW + 600),
        (text(until=NOW + 60), {"lease": text(NOW + 5, until=NOW + 600), "at": float("nan"), "spent_usd": 0}, NOW + 60),
        (text(until=NOW + 60), {"lease": text(NOW + 5, until=NOW + 600), "at": NOW, "spent_usd": -1e9}, NOW + 60),
        (text(until=NOW + 60), {"lease": text(NOW + 5, until=NOW + 600), "at": NOW, "spent_usd": "many"}, NOW + 60),
        (text(until=NOW + 60), "[" * 100000, NOW + 60),
        ("", None, None),
    ],
)
def test_the_newest_known_lease_counts(
    tmp_path: Path, clocks: Clocks, armed: str, kept: Any, until: float | None
) -> None:
    if isinstance(kept, str):
        (tmp_path / "state.json").write_text(kept)
    elif kept is not None:
        write_state(tmp_path, **kept)
    assert State([str(tmp_path)], armed).lease.until == until


def test_a_change_survives_a_reboot(tmp_path: Path, clocks: Clocks) -> None:
    state = State([str(tmp_path)], text(until=NOW + 60))
    assert state.offer(text(NOW + 1, until=NOW + 600))
    assert not state.offer(text(NOW + 1, until=NOW + 900))  # not newer
    assert not state.offer("damaged")
    state.keep()
    assert state.is_kept
    clocks.pass_s(10)
    assert State([str(tmp_path)], text(until=NOW + 60)).lease.until == NOW + 600


def test_a_full_disk_keeps_the_armed_lease(tmp_path: Path, clocks: Clocks) -> None:
    (tmp_path / "file").touch()
    state = State([str(tmp_path / "file")], text(until=NOW + 60))  # nothing can be written below a file
    state.offer(text(NOW + 1, until=NOW + 600))
    state.keep()
    assert not state.is_kept
    assert state.read()[:2] == (state.lease, 600.0)
    assert State([str(tmp_path / "file")], text(until=NOW + 60)).read()[1] == 60.0


def test_the_memory_keeps_a_change_that_the_disk_does_not(tmp_path: Path, clocks: Clocks) -> None:
    """The program may be killed and start again. It still knows the change and its age, and continues the costs."""
    (tmp_path / "file").touch()
    folders = [str(tmp_path / "file"), str(tmp_path / "memory")]
    state = State(folders, text(until=NOW + 60, usd_per_hour=36.0))
    state.offer(text(NOW + 1, until=NOW + 600, usd_per_hour=36.0))
    clocks.pass_s(100)
    state.keep()
    assert not state.is_kept
    again = State(folders, text(until=NOW + 60, usd_per_hour=36.0))
    assert again.lease.until == NOW + 600
    assert again.read()[2] == pytest.approx(1.0, abs=0.01)


def test_a_hung_disk_does_not_stop_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(system, "DISK_S", 0.05)
    monkeypatch.setattr(system, "write_whole", lambda *_: hangs.wait())
    state = State([str(tmp_path)], text(until=NOW + 60))
    before = threading.active_count()
    for _ in range(3):
        state.keep()
        assert not state.is_kept
    assert threading.active_count() == before + 1  # a single thread waits, not one for each call
    hangs.set()


@pytest.mark.parametrize("jump_s", [-86400.0, 0.0, 86400.0])
def test_the_deadline_does_not_wait_for_a_clock_that_jumps(tmp_path: Path, clocks: Clocks, jump_s: float) -> None:
    state = State([str(tmp_path)], text(until=NOW + 600))
    clocks.wall += jump_s
    for _ in range(6):
        left = state.read()[1]
        assert left is not None
        clocks.pass_s(100)
    left = state.read()[1]
    assert left is not None
    assert left <= 0


def test_spending_counts_pauses_at_the_price_of_stopped_nodes(tmp_path: Path, clocks: Clocks) -> None:
    terms = text(budget_usd=200.0, usd_per_hour=36.0, stopped_usd_per_hour=3.6, spent_usd=5.0)
    state = State([str(tmp_path)], terms)
    clocks.pass_s(3600)
    assert state.read()[2] == pytest.approx(41.0)
    state.keep()
    clocks.pass_s(7200)  # while stopped
    again = State([str(tmp_path)], terms)
    assert again.read()[2] == pytest.approx(41.0 + 7.2)
    clocks.pass_s(100)
    assert again.read()[2] == pytest.approx(41.0 + 7.2 + 1.0)
    # If the state is lost, the whole time counts as running.
    assert State([str(tmp_path / "lost")], terms).read()[2] == pytest.approx(5.0 + 36.0 * (3600 + 7200 + 100) / 3600)


@pytest.mark.parametrize(
    ("heard", "asked", "least"),
    [
        ({}, [], None),
        ({}, ["10.0.0.2"], 0.0),  # never heard from: it may be busy
        ({"10.0.0.2": (90.0, 500.0)}, ["10.0.0.2"], 510.0),
        ({"10.0.0.2": (90.0, 0.0)}, ["10.0.0.2", "10.0.0.1"], 10.0),  # busy ten seconds ago; 10.0.0.1 is this node
        ({"10.0.0.2": (90.0, 500.0), "10.0.0.3": (40.0, 0.0)}, ["10.0.0.2", "10.0.0.3"], 60.0),  # dead, or cut off
        ({"10.0.0.9": (100.0, 30.0)}, [], 30.0),  # a worker, to which the head has reported
    ],
)
def test_the_least_idle_time_of_others(heard: Any, asked: list[str], least: float | None) -> None:
    one = Neighbors("/")
    one.heard, one.asked, one.own = heard, asked, ["10.0.0.1"]
    found = one.find_least(clock=100.0)
    assert (None if found is None else found[0]) == least


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder of a node, in which the program runs without touching this machine."""
    monkeypatch.setattr(system, "RUN", str(tmp_path / "run"))
    monkeypatch.setattr(neighbors, "PORT", 0)
    monkeypatch.setattr(metadata, "read_tag", lambda: "")
    (tmp_path / "run").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "proc").mkdir()
    return tmp_path


FORK = multiprocessing.get_context("fork")


def start(root: Path, armed: str) -> tuple[Any, Any]:
    """Starts the program in a process of its own, because its threads never end.

    Returns the process, and a queue for the reason why it ends the node.
    """
    said = FORK.SimpleQueue()

    def end(why: str) -> None:
        said.put(why)
        os._exit(0)

    process = FORK.Process(target=Agent("demo", armed, root=str(root), end=end).run)
    process.start()
    return process, said


def run(root: Path, armed: str) -> str:
    """Runs the program until it would switch the node off; returns the reason."""
    process, said = start(root, armed)
    process.join()
    assert process.exitcode == 0
    return str(said.get())


def test_it_ends_the_node_at_the_deadline(quiet: Path) -> None:
    now = time.time()
    assert run(quiet, text(now, until=float(int(now)) + 1.0)) == "lifetime"


@pytest.mark.parametrize("tag", ["later", "", None])
def test_at_a_boot_after_its_deadline_it_asks_for_its_tag_first(
    quiet: Path, monkeypatch: pytest.MonkeyPatch, tag: str | None
) -> None:
    """The lease may have changed without the disk recording it.

    Without metadata, the program does not wait for long.
    """
    now = float(int(time.time()))
    monkeypatch.setattr(agent, "BOOT_S", 0.5)
    monkeypatch.setattr(agent, "TAG_S", 0.5)
    later = text(now - 50, until=now + 3.0)

    def read_tag() -> str | None:
        time.sleep(0.2)
        return later if tag == "later" else tag

    monkeypatch.setattr(metadata, "read_tag", read_tag)
    assert run(quiet, text(now - 100, until=now - 10)) == "lifetime"
    assert (time.time() >= now + 3.0) is (tag == "later")


def test_at_its_deadline_it_asks_for_its_tag_once_more(quiet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag may hold a change of the last minute that did not reach the node over ssh."""
    now = float(int(time.time()))
    later = text(now + 1, until=now + 5.0)
    monkeypatch.setattr(metadata, "read_tag", lambda: later if time.time() >= now + 2 else "")
    assert run(quiet, text(now, until=now + 2.5)) == "lifetime"
    assert time.time() >= now + 5


def test_a_node_without_threads_ends_as_well(quiet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork bomb, for example, the program cannot look at anything, but the deadline still counts."""

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(agent, "BOOT_S", 0.5)
    now = time.time()
    assert run(quiet, text(now, until=float(int(now)) + 1.0)) == "lifetime"


def test_it_ends_an_idle_node(quiet: Path) -> None:
    assert run(quiet, text(idle_s=2.0)) == "idle"


def test_it_ends_the_node_when_the_budget_is_spent(quiet: Path) -> None:
    assert run(quiet, text(time.time(), budget_usd=1.0, usd_per_hour=3600.0, spent_usd=0.5)) == "budget"


def test_a_look_that_fails_or_hangs_keeps_the_node(quiet: Path, clocks: Clocks) -> None:
    """The program does not know whether the node is idle. The deadline still counts."""
    one = Agent("demo", text(idle_s=60.0, until=NOW + 50.0), root=str(quiet / "none"))
    for _ in range(100):
        one.looks.note(Use("it cannot be determined"), clocks.boot)
        clocks.pass_s(1)
    assert one.find_idle()[0] == 0.0
    left = one.state.read()[1]
    assert left is not None
    assert left < 0


def test_it_answers_and_takes_another_lease(quiet: Path) -> None:
    now = time.time()
    working, _ = start(quiet, text(now, idle_s=3600.0))
    while not (quiet / "run" / "lease.sock").exists():
        assert working.is_alive()
    shown = control.ask({"show": True})
    assert shown["lease"] == text(now, idle_s=3600.0)
    assert shown["saved"]
    later = text(now + 1, until=float(int(now)) + 3.0)
    assert control.ask({"set": later})["lease"] == later
    assert control.ask({"set": "damaged"})["lease"] == later
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:  # its request is invalid
        peer.connect(str(quiet / "run" / "lease.sock"))
        peer.sendall(b"[]")
    working.join(timeout=60)
    assert working.exitcode == 0
    assert json.loads((quiet / "var/lib/cluster-lease/state.json").read_text())["lease"] == later


def test_warnings(quiet: Path) -> None:
    (quiet / "dev" / "pts").mkdir(parents=True)
    (quiet / "dev" / "pts" / "0").write_text("")
    lease = Lease(set_at=NOW, until=NOW + 590, then="stop")
    said = warn.render_warning("demo", lease, End("lifetime", 590.0))
    assert (
        said == "cluster demo: all nodes stop in 10 minutes, because its lifetime ends (cluster lease +4h changes it)"
    )
    warn.warn_all(str(quiet), "demo", End("lifetime", 590.0), said)
    assert said in (quiet / "dev" / "pts" / "0").read_text()
    (event,) = [json.loads(path.read_text()) for path in quiet.rglob("events/*.json")]
    assert (event["event"], event["cluster"], event["text"]) == ("lease-ending", "demo", said)


def test_it_warns_once_and_again_after_the_end_was_put_off(quiet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[float] = []
    monkeypatch.setattr(warn, "warn_all", lambda *words: said.append(words[2].left_s))
    one, lease = Agent("demo", "", root=str(quiet)), Lease(until=1.0)
    for left_s in (700.0, 600.0, 500.0, 3600.0, 590.0, 10.0):
        before = threading.active_count()
        one.warn(lease, End("lifetime", left_s))
        while threading.active_count() > before:
            pass
    assert said == [600.0, 590.0]
