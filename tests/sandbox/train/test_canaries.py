"""Secrets stay where they are: canaries are planted on the user's side, and nodes are searched for them."""

import base64
import os
import re
import subprocess
from pathlib import Path

import pytest

from ec2_sandbox.paths import find_leftovers, paths_of
from project import REPOSITORY, Project, processes_of
from secret_watch import files_with, watching

pytestmark = pytest.mark.sandbox

SECRET = "canaryS3cret/0123456789abcdefghijklmnop+"
TOKEN = "canaryT0ken//0123456789abcdefghijklmnop=="
PASSWORD = "canaryPassw0rd0123456789"
# A worker on each node that runs until it is stopped, with the job's credentials in its environment.
WAIT = "import os, time; print('here', flush=True); time.sleep(600)"


def plant(home: Path) -> list[str]:
    """Makes a home like those of users; returns the secrets that must not be on a node."""
    (home / ".ssh").mkdir(parents=True)
    key = home / ".ssh" / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text(
        f"[default]\naws_access_key_id = AKIACANARY0000000000\naws_secret_access_key = {SECRET}\n"
        f"aws_session_token = {TOKEN}\n"
    )
    (home / ".netrc").write_text(f"machine example.invalid login me password {PASSWORD}\n")
    return [body_of(key), SECRET, TOKEN, PASSWORD]


def body_of(key: Path) -> str:
    """A line from the end of a private key, where its secret half is."""
    lines = key.read_text().strip().splitlines()[1:-1]
    assert len(base64.b64decode("".join(lines))) > 100
    return lines[-2]


def roots(job: str) -> list[Path]:
    """The root folders of the hosts that a job runs on, as seen from this machine."""
    found = {
        os.stat(f"/proc/{pid}/ns/mnt").st_ino: Path(f"/proc/{pid}/root") for pid in processes_of("CLUSTER_JOB_ID", job)
    }
    return list(found.values())


@pytest.mark.slow
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
                temporary = [given["AWS_SECRET_ACCESS_KEY"], given["AWS_SESSION_TOKEN"]]
                hosts = roots(job)
                pids = {os.readlink(f"/proc/{pid}/ns/pid") for pid in processes_of("CLUSTER_JOB_ID", job)}
                on_disk = [path for root in hosts for path in files_with(root, canaries + temporary)]
            said += project.messages.read_text()
        assert len(hosts) == 2
        assert on_disk == []
        everywhere = [*canaries, *temporary]
        assert not [line for canary in everywhere for line in watch.lines_with(canary)]
        assert len(pids) == 2
        seen = [env for env, namespaces in watch.namespaces.items() if namespaces & pids]
        assert len(seen) > 10
        assert not [env for env in seen if any(canary.encode() in env for canary in canaries)]
        assert not [canary for canary in everywhere if canary in said]
    finally:
        project.run("sandbox", "reset", "--yes")
    assert not find_leftovers(paths_of(tmp_path))
