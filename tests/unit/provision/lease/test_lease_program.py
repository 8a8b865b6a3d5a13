"""The lease program of the nodes, run here: its folders are moved, and the programs that it calls are scripts."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from node import jobs
from project import REPOSITORY
from provision.lease.terms import Lease, render_lease
from provision.lease.user_data import MAX_BYTES, render_user_data
from waits import until

SHELLS = ("dash", "bash")
FULL = Lease(
    set_at=1.8e9, until=1.9e9, idle_s=1800.0, budget_usd=123456.78, then="stop", budget_until=1.85e9,
)  # fmt: skip
MIG = 'case "$1" in *apps*) {} ;; *) echo "[N/A]"; echo 3 ;; esac'  # one of two GPUs is divided
QUIET = {
    "curl": 'echo >>"$ROOT/looks"; exit 7',
    "shutdown": 'touch "$ROOT/off"',
    "poweroff": "exit 1",
    "nvidia-smi": "exit 1",
}


@dataclass
class FakeNode:
    """A node whose files are below a folder. commands: scripts that replace programs, by name."""

    root: Path
    commands: Mapping[str, str] = field(default_factory=dict)
    shell: str = "sh"

    def __post_init__(self) -> None:
        for folder in ("run", "saved", "hook", "bin", "proc/1", "proc/20", "dev/pts", "home"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "passwd").write_text(
            f"root:x:0:0::/nowhere:\nubuntu:x:{os.getuid() or 1000}:0::{self.root}/home:\n"
        )
        for name, text in {**QUIET, **self.commands}.items():
            (self.root / "bin" / name).write_text(f"#!/bin/sh\nROOT={self.root}\n{text}\n")
            (self.root / "bin" / name).chmod(0o755)
        self.add_process(1, "init", ticks=0)
        text = (REPOSITORY / "node/lease.sh").read_text()
        for before, after in {
            "PATH=/usr/local/sbin": f"PATH={self.root}/bin:/usr/local/sbin",
            "run=/run/cluster ": f"run={self.root}/run ",
            "saved=/var/lib/cluster-lease": f"saved={self.root}/saved",
            "/var/lib/cloud/scripts/per-boot": str(self.root / "hook"),
            "/var/lib/cloud/instance)": f"{self.root}/instance)",
            "/etc/passwd": str(self.root / "passwd"),
            "/proc/[0-9]*": f"{self.root}/proc/[0-9]*",
            "file#/proc/": f"file#{self.root}/proc/",
            "/proc/$parent": f"{self.root}/proc/$parent",
            "/dev/": f"{self.root}/dev/",
            "tag_every_s=60": "tag_every_s=1",
            "boot_s=20": "boot_s=1",
        }.items():
            assert before in text, before
            text = text.replace(before, after)
        self.program.write_text(text.replace(f"{self.root}/dev/null", "/dev/null"))

    @property
    def program(self) -> Path:
        return self.root / "run" / "lease.sh"

    def add_process(self, pid: int, command: str, *, name: str = "x", ticks: int = 0, parent: int = 1) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "cmdline").write_text(f"{command}\0")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 1\n")

    def add_job(self, state: str, *, ended_s_ago: float = 0.0, beside: bool = False) -> None:
        folder = self.root / "home/.cluster/jobs/20261128-000000-abcdef"
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(json.dumps({"spec": {"name": "x", "beside": beside}, "state": state}))
        at = time.time() - ended_s_ago
        os.utime(folder / "record.json", (at, at))

    def call(self, *words: str) -> str:
        done = subprocess.run(
            [self.shell, str(self.program), *words], capture_output=True, text=True, check=True, timeout=30
        )
        assert not done.stderr, done.stderr
        return done.stdout

    def show(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.call(*(words or ("show",))))
        return found

    def is_off(self) -> bool:
        return (self.root / "off").exists()

    def forget_use(self) -> None:
        """From now on, this node itself is idle for long. Waits until the program has looked for the end twice."""
        (self.root / "run/since").write_text("0\n")
        looks = self.root / "looks"
        wanted = looks.stat().st_size + 2 if looks.exists() else 2
        until(lambda: looks.exists() and looks.stat().st_size >= wanted, "the next look")


@dataclass
class Nodes:
    root: Path
    loops: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def make(self, shell: str = "sh", **commands: str) -> FakeNode:
        return FakeNode(self.root / "node", commands, shell)

    def start(self, node: FakeNode, lease: Lease | None) -> None:
        """Boots a node, whose program then runs in the background until the test's end."""
        text = "" if lease is None else render_lease(lease)
        script = f"exec {node.shell} {node.program} loop"
        (node.root / "run/others").mkdir(exist_ok=True)
        (node.root / "run/name").write_text("demo\n")
        node.call("set", text)
        self.loops.append(subprocess.Popen(["sh", "-c", script], start_new_session=True))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    for loop in made.loops:
        if loop.poll() is None:
            os.killpg(loop.pid, 9)
        loop.wait()


def lease_in(seconds: float, **more: Any) -> Lease:
    now = float(int(time.time()))
    return Lease(set_at=now, until=now + seconds, **more)


def test_the_newest_lease_counts_and_is_kept(nodes: Nodes) -> None:
    node = nodes.make("dash")
    older, newer = FULL, FULL._replace(set_at=FULL.set_at + 1, until=None)
    assert node.show("set", render_lease(newer))["lease"] == render_lease(newer)
    for text in (render_lease(older), "", "damaged", "set=2027-01-15T08:00:05Z until=$(id)"):
        assert node.show("set", text)["lease"] == render_lease(newer)
    assert (node.root / "saved/lease").read_text().strip() == render_lease(newer)
    assert node.show()["saved"] is True


def test_a_boot_uses_what_was_kept_and_saves_a_copy(nodes: Nodes) -> None:
    node = nodes.make(setsid="exit 0")
    changed = FULL._replace(set_at=FULL.set_at + 1)
    (node.root / "saved/lease").write_text(render_lease(changed) + "\n")
    node.call("boot", render_lease(FULL), "demo")
    assert node.show()["lease"] == render_lease(changed)
    assert (node.root / "saved/lease.sh").read_text() == node.program.read_text()
    shutil.rmtree(node.root / "run")  # the next boot, without user data
    hook = node.root / "hook/cluster-lease"
    subprocess.run([str(hook)], check=True)
    assert node.show()["lease"] == render_lease(changed)


def test_an_image_of_a_node_does_not_end_by_its_lease(nodes: Nodes) -> None:
    node = nodes.make(setsid="exit 0")
    text = render_lease(FULL)

    def boot(instance: str) -> None:
        (node.root / "instance").unlink(missing_ok=True)
        (node.root / "instance").symlink_to(f"/var/lib/cloud/instances/{instance}")
        (node.root / "run/lease").unlink(missing_ok=True)  # it is in memory

    boot("i-1")
    node.call("boot", text, "demo")
    boot("i-1")
    subprocess.run([str(node.root / "hook/cluster-lease")], check=True)
    assert node.show()["lease"] == text
    boot("i-2")
    subprocess.run([str(node.root / "hook/cluster-lease")], check=True)  # an instance of no cluster
    assert node.show()["lease"] == ""
    node.call("boot", "", "demo")  # a cluster without a lease
    assert node.show()["lease"] == ""


@pytest.mark.parametrize(
    ("shell", "lease"),
    [("dash", lambda: lease_in(3)), ("bash", lambda: lease_in(9999, budget_usd=1.0, budget_until=time.time() + 3))],
    ids=["time", "budget"],
)
def test_the_deadline_ends_the_node(nodes: Nodes, shell: str, lease: Callable[[], Lease]) -> None:
    node = nodes.make(shell)
    nodes.start(node, lease())
    until(node.is_off, "the end")


def test_a_shutdown_does_not_wait_for_the_program(nodes: Nodes) -> None:
    """systemd sends SIGTERM to all processes, and waits 90 s for those that ignore it."""
    node = nodes.make(curl='touch "$ROOT/asked"; exit 7')
    nodes.start(node, lease_in(3600))
    until((node.root / "asked").exists)
    os.killpg(nodes.loops[0].pid, signal.SIGTERM)
    assert nodes.loops[0].wait(60) == -signal.SIGTERM


def test_at_the_deadline_a_shutdown_ends_with_the_files_on_the_disk(nodes: Nodes) -> None:
    node = nodes.make(sync='touch "$ROOT/synced"', poweroff='[ -e "$ROOT/synced" ] && touch "$ROOT/forced"')
    nodes.start(node, lease_in(0))
    until(node.is_off)
    os.killpg(nodes.loops[0].pid, signal.SIGTERM)
    until((node.root / "forced").exists)


def test_a_later_lease_in_the_tag_counts_at_the_deadline(nodes: Nodes) -> None:
    """The first look at the tag fails."""
    asked = '[ -e "$ROOT/asked" ] || { touch "$ROOT/asked"; exit 7; }; cat "$ROOT/tag"'
    later = lease_in(3600)._replace(set_at=time.time() + 1)
    node = nodes.make(
        curl=f'case "$*" in *PUT*) echo token ;; *) {asked} ;; esac',
        sleep='[ "$1" = 1 ] || echo "$1" >"$ROOT/sleeps"; exec /bin/sleep "$@"',
    )
    (node.root / "tag").write_text(render_lease(later))
    nodes.start(node, lease_in(0))
    until((node.root / "sleeps").exists, "the next look")
    assert node.show()["lease"] == render_lease(later)
    assert not node.is_off()


def test_a_warning_comes_once_for_each_end(nodes: Nodes) -> None:
    """The head's own program adds it to the log of a running job."""
    node = nodes.make(runuser='echo "$*" >>"$ROOT/told"')
    node.add_job("running")
    nodes.start(node, lease_in(300))
    events = node.root / "run/events"
    until(lambda: events.is_dir() and list(events.iterdir()), "the event")
    (event,) = (json.loads(path.read_text()) for path in events.iterdir())
    assert (event["event"], event["cluster"]) == ("lease-ending", "demo")
    assert "all nodes end in 5 minutes, because its lifetime ends (cluster lease +4h changes it)" in event["text"]
    until((node.root / "told").exists)
    verb, *words = (node.root / "told").read_text().partition("/node jobs ")[2].split()
    assert words == ["20261128-000000-abcdef", *event["text"].split()]
    assert verb in jobs.VERBS
    node.call("set", render_lease(lease_in(400)._replace(set_at=time.time() + 1, then="stop")))
    until(lambda: len(list(events.iterdir())) == 2, "the second event")
    assert any("all nodes stop in" in path.read_text() for path in events.iterdir())


def use(node: FakeNode) -> str:
    """Why a node is in use, at the second look: the first one cannot measure the CPU. "" if it is not."""
    node.call("idle")
    node.call("idle")
    return (node.root / "run/why").read_text().strip()


JOB = "job 20261128-000000-abcdef has not ended"
SUPERVISOR = "/r/bin/python\0-Es\0/r/node\0supervise"


@pytest.mark.parametrize(
    ("job", "command", "gpus", "why"),
    [
        (None, "sleep 5", None, ""),
        (None, "sshd: ubuntu@notty", None, "ubuntu is logged in"),
        (None, "/usr/bin/ssm-session-worker ada", None, "somebody is logged in through Session Manager"),
        (None, "slurmstepd: [4.0]", None, "a batch job runs"),
        ("running", SUPERVISOR, None, JOB),
        ("running", "sleep 5", None, ""),  # its supervisor was killed
        ("ending", SUPERVISOR, None, JOB),  # its last files are copied to S3
        ("waiting", SUPERVISOR, None, ""),
        (None, "sleep 5", "echo 0; echo 4", ""),
        (None, "sleep 5", "echo 0; echo 93", "a GPU is busy: 93 %"),
        (None, "sleep 5", "exit 9", "the GPUs cannot be read"),
        (None, "sleep 5", MIG.format(":"), ""),
        (None, "sleep 5", MIG.format("echo 77"), "a program uses a GPU"),
        (None, "sleep 5", MIG.format("exit 9"), "a program uses a GPU"),
    ],
)
def test_what_uses_a_node(nodes: Nodes, job: str | None, command: str, gpus: str | None, why: str) -> None:
    node = nodes.make(**({} if gpus is None else {"nvidia-smi": gpus}))
    if gpus is not None:
        (node.root / "dev/nvidia0").touch()
    if job is not None:
        node.add_job(job)
    node.add_process(20, command, name=Path(command.partition(" ")[0].rstrip(":")).name[:15])
    assert use(node) == why


@pytest.mark.parametrize(("state", "why"), [("idle", ""), ("busy", "a kernel of a notebook is busy")])
def test_a_notebook_is_a_use_while_a_kernel_is_busy(nodes: Nodes, state: str, why: str) -> None:
    """On the head, its job runs; on another node, its agent is connected by ssh."""
    expected = (
        'header = "Authorization: token Abc-1"-sf -m 3 -K - http://127.0.0.1:8888/api/kernels?no_track_activity=1'
    )
    answer = json.dumps([{"id": "x", "execution_state": state}])
    node = nodes.make(curl=f"""said="$(cat)$*"; [ "$said" != '{expected}' ] || echo '{answer}'""")
    node.add_job("running", beside=True)
    node.add_process(20, SUPERVISOR)
    node.add_process(21, "sshd: ubuntu@notty", name="sshd")
    node.add_process(22, "/r/bin/python\0-Es\0/r/node\0agent", parent=21)
    server = node.root / "home/.cluster/notebook/run/x/jpserver-7.json"
    server.parent.mkdir(parents=True)
    server.write_text(json.dumps({"port": 8888, "token": "Abc-1"}, indent=2))
    assert use(node) == why


def test_the_end_of_a_job_is_a_use(nodes: Nodes) -> None:
    node = nodes.make()
    (node.root / "run/since").write_text(f"{time.time() - 1000:.0f}\n")
    (node.root / "run/ticks").write_text(f"0 {time.time() - 10:.0f}\n")
    assert int(node.call("idle")) >= 990
    node.add_job("done", ended_s_ago=100)
    assert 99 <= int(node.call("idle")) <= 110


@pytest.mark.parametrize(("ticks", "why"), [(100, ""), (1000, r"the CPU is busy: \d+ % of a core")])
@pytest.mark.parametrize("before", [0, 1 << 31], ids=["new", "old"])  # 192 cores take a day for so many ticks
def test_cpu_use(nodes: Nodes, before: int, ticks: int, why: str) -> None:
    node = nodes.make()
    (node.root / "run/ticks").write_text(f"{before} {time.time() - 10:.0f}\n")
    node.add_process(20, "python", ticks=before + ticks)
    node.call("idle")
    assert re.fullmatch(why, (node.root / "run/why").read_text().strip())


@pytest.mark.parametrize(("answer", "ends"), [("echo 0", False), ("exit 255", True)])
def test_the_head_ends_the_cluster_when_no_node_is_in_use(nodes: Nodes, answer: str, *, ends: bool) -> None:
    """A node that does not answer counts as idle from its last answer on."""
    told = 'case "$*" in *"lease.sh end"*) touch "$ROOT/told" ;; *) {} ;; esac'
    node = nodes.make(runuser=told.format(answer))
    ssh = node.root / "home/.cluster/ssh"
    ssh.mkdir(parents=True)
    (ssh / "id_ed25519").write_text("key")
    (ssh / "known_hosts").write_text("192.0.2.7 ssh-ed25519 A\n")
    nodes.start(node, Lease(set_at=time.time(), idle_s=5.0 if ends else 60.0))
    if ends:
        until(node.is_off, "the end", timeout_s=40)
        assert (node.root / "told").exists()
    else:
        for _ in range(2):
            node.forget_use()
        assert not node.is_off()
        assert node.show()["why"] in ("the node at 192.0.2.7 is not idle", "the CPU has not been measured yet")


def test_a_node_that_the_head_asks_does_not_end_by_itself(nodes: Nodes) -> None:
    node = nodes.make()
    nodes.start(node, Lease(set_at=time.time(), idle_s=60.0))
    node.call("idle")
    for _ in range(2):
        node.forget_use()
    assert not node.is_off()
    os.utime(node.root / "run/asked", (0, 0))  # it hears no more of the head
    until(node.is_off, "the end", timeout_s=40)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_user_data_is_a_shell_script_that_fits(shell: str) -> None:
    packed = render_user_data(FULL, cluster="a" * 32, user="ubuntu", authorized="ssh-ed25519 A " + "b" * 100)
    assert len(packed) <= MAX_BYTES - 1000  # leaves room for later additions
    text = gzip.decompress(packed).decode()
    assert text.startswith("#cloud-boothook\n#!/bin/sh\n")
    assert subprocess.run([shell, "-n"], input=text, text=True, check=False).returncode == 0
    head = text[: text.index("\n# Ends this node at the end of its cluster's lease.\nmkdir") + 1]
    output = subprocess.run(
        [shell], input=f'{head}printf "%s|" "$cluster" "$lease" "$program"', text=True, capture_output=True, check=True
    )
    assert output.stdout == f"{'a' * 32}|{render_lease(FULL)}|{(REPOSITORY / 'node/lease.sh').read_text()}|"
