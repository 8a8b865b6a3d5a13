"""Volumes on real hosts: the head's disk over NFS, for which the sandbox's hosts use sshfs, and S3 over s3fs.

One row measures these nodes, which have no framework, by `cluster verify --deep`.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from ec2_sandbox import control
from job_steps import Host, all_pids, command_line, ec2_of, hosts_of, namespace_of
from preloaded import Started
from project import Project, project_in
from secret_watch import watching
from waits import until

pytestmark = pytest.mark.sandbox

BUCKET = "volumes-of-tests"
DEAD = "no answer for 7 s|Input/output error|the connection is lost"
"""By what notices it first: the question to the server, sshfs, or the job's own process."""
DEAD_S = 90.0
"""How long the tests wait for the end of a job whose server is dead. It takes ten seconds on an idle machine."""
TOML = f"""
name = "volumes"
cloud = "sandbox"
[provision]
nodes = 2
[bootstrap]
framework = "none"
sync = ["train.py", "writer.py"]
[train]
script = "train.py"
[[volumes]]
mount = "/shared"
source = "head"
size_gib = 1
[[volumes]]
mount = "/s3"
source = "s3://{BUCKET}/a/folder/"
[sandbox]
packages = ["sshfs", "s3fs", "fuse2fs"]
"""
WRITER = """
import os, socket, sys, time
print("writes", flush=True)
while True:
    with open(os.path.join(sys.argv[1], socket.gethostname()), "w") as stream:
        stream.write(str(time.time()))
    time.sleep(0.3)
"""
COPIES = """
import os, pathlib
data, output = (pathlib.Path(os.environ[f"CLUSTER_{name}_URL"]) for name in ("DATA", "OUTPUT"))
(output / f"rank-{os.environ['RANK']}").write_text((data / "file").read_text())
print("copied")
"""


@dataclass(frozen=True)
class Volumes:
    """A cluster with the volumes of TOML."""

    project: Project

    @property
    def head(self) -> Host:
        return hosts_of(self.project)["node-0"]

    def run(self, node: str, script: str, *, code: int | None = 0) -> str:
        """Runs a script as the node's user; returns its output. Without ssh, which takes longer than the script."""
        inside = ("nsenter", "--target", str(hosts_of(self.project)[node].pid), "--user", "--mount", "--pid", "--net")
        done = subprocess.run(
            (*inside, "--setuid", "1000", "--setgid", "1000", "bash", "-c", script),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert code is None or done.returncode == code, f"{script}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def train(self, *words: str, code: int = 0) -> str:
        done = self.project.run("train", "--plain", *words, code=code)
        return done.stdout + done.stderr

    def servers(self) -> list[int]:
        """The pids of the head's server for volumes and of its connections."""
        return [
            pid
            for pid in all_pids()
            if ("/usr/sbin/exportfs" in command_line(pid) or command_line(pid)[:1] == ["sftp-server"])
            and namespace_of(pid) == self.head.namespace
        ]

    def mounted(self, node: str) -> dict[str, str]:
        """The types of a node's mounted volumes, by folder."""
        lines = (hosts_of(self.project)[node].root / "proc/1/mountinfo").read_text().splitlines()
        fields = [line.split() for line in lines]
        return {words[4]: words[words.index("-") + 1] for words in fields if words[4] in ("/shared", "/s3")}

    def has_booted(self, node: str) -> bool:
        """Whether a node runs, and has not mounted its volumes."""
        try:
            return self.mounted(node) == {}
        except (KeyError, OSError):  # its host does not run
            return False

    @contextmanager
    def writing(self, folder: str) -> Iterator["Writing"]:
        """Runs a job that writes to a folder on both nodes."""
        with self.project.following("train", "--plain", "writer.py", folder) as process:
            assert process.stdout is not None
            shown = iter(process.stdout)
            for _ in range(2):
                next(line for line in shown if line.endswith("writes\n"))
            yield Writing(self.project, process)


@dataclass
class Writing:
    project: Project
    process: Started

    def end(self) -> str:
        """Checks that the job fails in time; returns the command's messages."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=DEAD_S)
        output = self.project.messages.read_text()
        assert self.process.poll() == 1, output
        return output


def write_files(project: Project) -> None:
    project.write(TOML)
    (project.directory / "train.py").write_text("print('trains')\n")
    (project.directory / "writer.py").write_text(WRITER)


def make_bucket(project: Project) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        ec2_of(project, monkeypatch)
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="a/folder/")  # s3fs 1.97 mounts no empty folder without an object
        s3.put_object(Bucket=BUCKET, Key="a/folder/uploaded/file", Body=b"x")


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volumes]:
    with project_in(tmp_path_factory.mktemp("volumes")) as project:
        write_files(project)
        project.run("sandbox", "start")
        make_bucket(project)
        project.run("up")
        yield Volumes(project)


@pytest.fixture
def again(volumes: Volumes) -> Iterator[Volumes]:
    """The cluster; afterwards its volumes are mounted again."""
    try:
        yield volumes
    finally:
        control.disarm_faults(volumes.project.directory, "all")
        volumes.project.run("up")


def test_all_nodes_mount_the_disk_of_the_head_and_a_bucket(volumes: Volumes) -> None:
    assert volumes.mounted("node-0") == {"/shared": "fuse.ext4", "/s3": "fuse.s3fs"}
    assert volumes.mounted("node-1") == {"/shared": "fuse.sshfs", "/s3": "fuse.s3fs"}
    for folder in ("/shared", "/s3"):
        volumes.run("node-1", f"mkdir {folder}/made && echo from-1 >{folder}/made/file")
        assert volumes.run("node-0", f"cat {folder}/made/file; stat -c %U {folder}/made/file") == "from-1\nubuntu\n"
        volumes.run("node-0", f"rm -r {folder}/made")
    # A folder that another tool has uploaded has no object of its own. New versions of s3fs show it only if asked to.
    assert volumes.run("node-0", "ls -AR /s3; rm /s3/uploaded/file") == "/s3:\nuploaded\n\n/s3/uploaded:\nfile\n"
    for folder in ("/shared", "/s3"):
        assert volumes.run("node-1", f"ls -A {folder}") == ""
    output = volumes.project.run("up").stderr
    assert "mounted" not in output


def test_the_keys_of_a_bucket_are_in_memory_only(again: Volumes) -> None:
    again.run("node-1", "sudo umount /s3")
    with watching() as watch:
        again.project.run("up")
    assert again.mounted("node-1")["/s3"] == "fuse.s3fs"
    environments = [
        dict(pair.split(b"=", 1) for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in pair)
        for pid in all_pids()
        if command_line(pid)[:1] == ["s3fs"] and namespace_of(pid) == hosts_of(again.project)["node-1"].namespace
    ]
    [secrets] = [[env[b"AWSSECRETACCESSKEY"].decode(), env[b"AWSSESSIONTOKEN"].decode()] for env in environments]
    for secret in secrets:
        assert watch.lines_with(secret) == []
        found = again.run(
            "node-1", f"sudo grep -rlF {secret[:30]} /run /etc /home /root /tmp /var /dev/shm 2>/dev/null || true"
        )
        assert found == ""


def test_a_job_ends_with_a_server_that_does_not_answer(again: Volumes) -> None:
    with again.writing("/shared") as job:
        stopped = again.servers()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            output = job.end()
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGKILL)
    address = again.head.address
    assert re.search(rf"failed: .*node-1.*: volume /shared of node-0 \({address}\): ({DEAD})", output), output
    assert "may still run" not in output


def test_data_and_results_on_a_volume(volumes: Volumes) -> None:
    project = volumes.project
    data = '[data]\nurl = "/shared/data"\nresults = "/shared/results"\n'
    project.write(TOML + data)
    try:
        output = volumes.train("--", "sh", "-c", "echo $CLUSTER_DATA_URL trains")
        assert 'data.url = "/shared/data": there is no such folder' in output
        volumes.run("node-1", "mkdir -p /shared/data && echo content >/shared/data/file")
        output = volumes.train("-v", "--name", "on-volume", "--", "python3", "-c", COPIES)
        assert "no such folder" not in output
        [job] = re.findall(r"^job ([0-9a-f-]+): 2 processes", output, re.MULTILINE)
        assert f"results: /shared/results/{job}/" in output
        files = volumes.run("node-1", f"cd /shared/results/{job} && cat rank-0 rank-1 && find . -type f | sort")
        lines = files.split()
        assert lines[:2] == ["content", "content"]
        assert {"./rank-0", "./rank-1", "./record.json", "./events"} <= set(lines[2:])
        record = json.loads(volumes.run("node-1", f"cat /shared/results/{job}/record.json"))
        assert (record["state"], record["exit_code"]) == ("done", 0)
    finally:
        project.write(TOML)


def test_the_node_with_a_slow_link_is_named(volumes: Volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    project, node = volumes.project, hosts_of(volumes.project)["node-1"].instance_id
    ec2_of(project, monkeypatch)
    boto3.client("s3").put_object(Bucket=BUCKET, Key="deep/data.bin", Body=bytes(20_000_000))
    project.write(f'{TOML}[data]\nurl = "s3://{BUCKET}/deep/"\n')
    control.cause_fault(project.directory, f"link instance={node} mbit=40")
    try:
        done = project.run("verify", "--deep", "--json", code=1)
    finally:
        control.cause_fault(project.directory, f"link instance={node} mbit=0")
        project.write(TOML)
    checks: list[dict[str, Any]] = json.loads(done.stdout)
    measures = {(check["node"], check["subject"]): check for check in checks if check["check"] == "measure"}
    assert sorted(measures) == [
        (name, subject)
        for name in ("node-0", "node-1")
        for subject in ("DCGM level 2", "S3 read", "disk read", "disk write")
    ]
    assert [check["node"] for check in checks if check["subject"] == "S3 read" and check["status"] == "failed"] == [
        "node-1"
    ]
    assert measures["node-1", "S3 read"]["value"] < 0.6 * measures["node-1", "S3 read"]["median"]
    for name in ("node-0", "node-1"):
        assert measures[name, "disk write"]["value"] > 0
        assert measures[name, "DCGM level 2"]["result"] == "not measured: no dcgmi"
    assert "node-1: measure, S3 read" in done.stderr
    assert "cause: it is far from the others" in done.stderr
    assert "measuring takes one to four minutes" in done.stderr
    left = project.run("exec", "--", "find", ".", "/tmp", "-xdev", "-type", "f", "-size", "+10M", code=None).stdout
    assert "tmp" not in left


@pytest.mark.slow
def test_volumes_after_a_reboot_a_stop_and_a_resize(again: Volumes) -> None:
    project = again.project
    again.run("node-1", "echo kept >/shared/kept")
    again.run("node-1", "sudo reboot", code=None)
    until(lambda: again.has_booted("node-1"), "node-1 has booted again")
    until(lambda: again.project.run("train", "--", "cat", "/shared/kept", code=None).returncode == 0, timeout_s=120)
    assert again.mounted("node-1") == {"/shared": "fuse.sshfs", "/s3": "fuse.s3fs"}
    output = project.run("stop", "--nodes", "-y").stderr
    assert "not unmounted" not in output
    project.run("start", "-y")
    assert again.mounted("node-0") == {"/shared": "fuse.ext4", "/s3": "fuse.s3fs"}
    assert again.run("node-1", "cat /shared/kept") == "kept\n"
    project.run("resize", "3", "-y")
    assert "node-2" in hosts_of(project, again=True)
    try:
        assert again.run("node-2", "cat /shared/kept; echo new >/s3/of-2") == "kept\n"
        assert again.run("node-0", "cat /s3/of-2; rm /s3/of-2 /shared/kept") == "new\n"
        rows = json.loads(project.run("verify", "--json").stdout)
        found = {row["subject"]: row for row in rows if row["check"] == "volumes"}
        assert set(found) == {"/shared", "/s3"}
        assert all(row["status"] == "ok" for row in found.values())
        assert found["/shared"]["result"] == "written by node-0, read by node-1, node-2"
        assert "verify" not in again.run("node-1", "ls -A /s3 /shared")
    finally:
        project.run("resize", "2", "-y")


@pytest.mark.slow
def test_a_dead_server_delays_neither_stop_nor_down(volumes: Volumes) -> None:
    project = volumes.project
    stopped = volumes.servers()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    output = project.run("down", "-y", timeout_s=120)
    assert "not unmounted" not in output.stderr
    assert "shared volume" in output.stdout
    project.run("up")  # for other tests
