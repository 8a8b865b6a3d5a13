"""What is secret stays where it is: canaries are planted on the user's side, and nodes are searched for them."""

import base64
import mmap
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from project import REPOSITORY, Project, processes_of
from sandbox.place import find_leftovers, place_of

pytestmark = pytest.mark.sandbox

SECRET = "canaryS3cret/0123456789abcdefghijklmnop+"
TOKEN = "canaryT0ken//0123456789abcdefghijklmnop=="
PASSWORD = "canaryPassw0rd0123456789"
# A worker that stays until it is told to go, on each node, with the job's credentials in its environment.
WAIT = "import os, time; print('here', flush=True); time.sleep(600)"


@dataclass
class Watch:
    """Every command line and environment that any process on this machine had while it watched, hosts' and ours."""

    command_lines: set[bytes] = field(default_factory=set)
    environments: dict[str, set[bytes]] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        here = os.readlink("/proc/self/ns/pid")
        while not self.done.wait(0.05):
            for entry in os.listdir("/proc"):
                if not entry.isdigit():
                    continue
                try:
                    self.command_lines.add(Path(f"/proc/{entry}/cmdline").read_bytes())
                    if os.readlink(f"/proc/{entry}/ns/pid") != here:
                        found = self.environments.setdefault(os.readlink(f"/proc/{entry}/ns/pid"), set())
                        found.add(Path(f"/proc/{entry}/environ").read_bytes())
                except OSError:  # it has ended meanwhile
                    continue


@contextmanager
def watching() -> Iterator[Watch]:
    watch = Watch()
    thread = threading.Thread(target=watch.look)
    thread.start()
    try:
        yield watch
    finally:
        watch.done.set()
        thread.join()


def plant(home: Path) -> list[bytes]:
    """A home as users have it; returns what must not be found on a node."""
    (home / ".ssh").mkdir(parents=True)
    key = home / ".ssh" / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id = AKIACANARY0000000000\naws_secret_access_key = {SECRET}\n"
        f"aws_session_token = {TOKEN}\n"
    )
    (home / ".netrc").write_text(f"machine example.invalid login me password {PASSWORD}\n")
    return [body_of(key), SECRET.encode(), TOKEN.encode(), PASSWORD.encode()]


def body_of(key: Path) -> bytes:
    """What makes a private key private: a line from the end of it, where its secret half is."""
    lines = key.read_text().strip().splitlines()[1:-1]
    assert len(base64.b64decode("".join(lines))) > 100
    return lines[-2].encode()


def roots(job: str) -> list[str]:
    """The root folders of the hosts that a job runs on, as seen from here."""
    found = {os.stat(f"/proc/{pid}/ns/mnt").st_ino: f"/proc/{pid}/root" for pid in processes_of("CLUSTER_JOB_ID", job)}
    return list(found.values())


def files_with(root: str, canaries: list[bytes]) -> list[str]:
    """The files that hold a canary, of all that a node's programs may have written."""
    hits = []
    for folder in ("home", "root", "tmp", "run", "var/log", "var/tmp", "etc/ssh", "dev/shm"):
        for place, _, names in os.walk(f"{root}/{folder}"):
            for name in names:
                path = os.path.join(place, name)
                if os.path.isfile(path) and not os.path.islink(path) and holds(path, canaries):
                    hits.append(path)
    return hits


def holds(path: str, canaries: list[bytes]) -> bool:
    try:
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                return False
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return any(content.find(canary) >= 0 for canary in canaries)
    except FileNotFoundError:  # replaced meanwhile, by another that is found, too
        return False


def test_no_canary_is_found_on_a_node(tmp_path: Path) -> None:
    home = tmp_path / "home"
    canaries = plant(home)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    project = Project(
        tmp_path,
        env={
            "HOME": str(home),
            "XDG_CACHE_HOME": cache,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_SESSION_TOKEN": TOKEN,
            "PIP_CONFIG_FILE": os.environ.get("PIP_CONFIG_FILE", os.devnull),
        },
    )
    project.write((REPOSITORY / "cluster.toml").read_text())
    try:
        with watching() as watch:
            said = project.run("up").stderr
            (key,) = (tmp_path / "state").rglob("id_ed25519")
            canaries.append(body_of(key))
            said += project.run("exec", "--", "true").stderr
            said += project.run("verify", code=None).stderr
            with project.running("train", "--", "python", "-c", WAIT) as process:
                assert process.stdout is not None
                waiting = {"node-0", "node-1"}
                while waiting:
                    line = process.stdout.readline()
                    assert line, project.messages.read_text()
                    waiting -= set(re.findall(r"^\[worker . (node-\d)\] here$", line))
                (job,) = re.findall(r"^job (\S+): 2 workers", project.messages.read_text(), re.MULTILINE)
                envs = processes_of("CLUSTER_JOB_ID", job).values()
                given = next(env for env in envs if "AWS_SECRET_ACCESS_KEY" in env)
                temporary = [given["AWS_SECRET_ACCESS_KEY"].encode(), given["AWS_SESSION_TOKEN"].encode()]
                hosts = roots(job)
                pids = {os.readlink(f"/proc/{pid}/ns/pid") for pid in processes_of("CLUSTER_JOB_ID", job)}
                on_disk = [path for root in hosts for path in files_with(root, canaries + temporary)]
            said += project.messages.read_text()
        assert len(hosts) == 2
        assert on_disk == []
        everywhere = [*canaries, *temporary]
        assert not [line for line in watch.command_lines if any(canary in line for canary in everywhere)]
        assert len(pids) == 2
        seen = set().union(*(watch.environments[namespace] for namespace in pids))
        assert len(seen) > 10
        assert not [env for env in seen if any(canary in env for canary in canaries)]
        assert not [canary for canary in everywhere if canary.decode() in said]
    finally:
        project.run("sandbox", "reset")
    assert not find_leftovers(place_of(tmp_path))
