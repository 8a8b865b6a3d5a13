"""What is secret in a job is in the environment of its workers and servers, and nowhere else.

Canaries are given in each way that there is for secrets, and looked for in every process list from before the job
starts until it has ended, on the nodes' disks, in what is told of the job, and in S3. So are the job's own temporary
credentials.
"""

import json
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from job_steps import Host, hosts_of
from project import Project, processes_of

pytestmark = pytest.mark.sandbox

EVERYWHERE = "canaryTokenOfTheUser0123456789"
OF_SERVERS = "canaryPasswordOfServers0123456789"
OF_WORKERS = "canaryKeyOfWorkers0123456789"
FROM_HERE = "canaryFromTheUsersOwnEnvironment0123456789"
WITHOUT_VALUE = "canaryOfAnOrdinaryNameThatWasGivenWithoutItsValue0123456789"
OF_SERVERS_WITHOUT_VALUE = "canaryTheSameForServers0123456789"
IN_A_URL = "canaryPasswordInAnAddress0123456789"
PLAIN = "canaryWithAnOrdinaryName0123456789"
JOB = f"""
command = ["sh", "-c", "echo begun; while [ ! -e ~/go ]; do sleep 0.1; done; if [ $DMLC_ROLE = worker ]; then \
kill -ABRT $$; fi; sleep 600"]
setup = ["true"]
servers = 1

[env]
MY_TOKEN = "{EVERYWHERE}"
GREETING = "{PLAIN}"
DATABASE = "postgres://me:{IN_A_URL}@10.0.0.99/db"

[env_server]
DB_PASSWORD = "{OF_SERVERS}"

[env_worker]
API_KEY = "{OF_WORKERS}"
"""
LOOK_EVERY_S = 0.02
PLACES = ("home", "root", "tmp", "run", "etc", "var/log", "var/tmp", "dev/shm")
OF_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass
class Watch:
    """The command lines and environments of every process on this machine and its hosts, while it watched."""

    command_lines: set[str] = field(default_factory=set)
    holders: dict[bytes, set[str]] = field(default_factory=dict)  # of each environment
    done: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.time)
    _known: dict[str, bytes] = field(default_factory=dict)

    def look(self) -> None:
        while not self.done.wait(LOOK_EVERY_S):
            for entry in os.listdir("/proc"):
                if entry.isdigit():
                    self._look_at(entry)

    def _look_at(self, entry: str) -> None:
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes()
            if self._known.get(entry) == words:  # its environment was looked at
                return
            env = Path(f"/proc/{entry}/environ").read_bytes()
            if Path(f"/proc/{entry}/cmdline").read_bytes() != words:  # another program's by now: the next look takes it
                return
        except OSError:  # it has ended meanwhile
            return
        line = words.replace(b"\0", b" ").decode(errors="replace").strip()
        self._known[entry] = words
        self.command_lines.add(line)
        self.holders.setdefault(env, set()).add(line)

    def lines_with(self, secret: str) -> list[str]:
        return [line for line in self.command_lines if secret in line]

    def holders_of(self, secret: str) -> set[str]:
        return set().union(*(lines for env, lines in self.holders.items() if secret.encode() in env))


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


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What there was to see of one job."""

    job: str
    watch: Watch
    secrets: dict[str, str]
    said: str
    record: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def with_results(two_nodes: Project) -> Iterator[tuple[Project, dict[str, Host]]]:
    """The shared cluster, whose jobs leave what is told of them in S3."""
    path = two_nodes.directory / "cluster.toml"
    kept = path.read_text()
    (two_nodes.directory / "an-object").mkdir()
    (two_nodes.directory / "an-object" / "file").write_text("x")
    two_nodes.run("data", "put", "--create-bucket", "an-object/", "s3://cluster-secrets/an-object/")
    two_nodes.write(re.sub(r"^# results = .*$", 'results = "s3://cluster-secrets/results/"', kept, flags=re.MULTILINE))
    (two_nodes.directory / "secret.toml").write_text(JOB)
    try:
        yield two_nodes, hosts_of(two_nodes)
    finally:
        two_nodes.write(kept)
        (two_nodes.directory / "secret.toml").unlink()


ENDS = ["a worker dumps its core", pytest.param("the supervisor is killed", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=ENDS)
def seen(request: pytest.FixtureRequest, with_results: tuple[Project, dict[str, Host]]) -> Seen:
    """A job that ends badly, from before its start to what is told of it afterwards."""
    project, hosts = with_results
    here = {"PASSED_ON_PASS": FROM_HERE, "BUILD_LABEL": WITHOUT_VALUE, "SHARD_LABEL": OF_SERVERS_WITHOUT_VALUE}
    own = replace(project, env={**project.env, **here})
    given = ("--env", "BUILD_LABEL", "--env-server", "SHARD_LABEL", "--env-worker", "PASSED_ON_PASS")
    with watching() as watch:
        with own.running("train", "--job", "secret.toml", *given) as process:
            assert process.stdout is not None
            shown = ""
            while shown.count(" begun\n") < 4:  # scheduler, server and workers
                line = process.stdout.readline()
                assert line, project.messages.read_text()
                shown += line
            (job,) = re.findall(r"^job (\S+): 2 workers", project.messages.read_text(), re.MULTILINE)
            envs = list(processes_of("CLUSTER_JOB_ID", job).values())
            of_job = next(env for env in envs if "AWS_SECRET_ACCESS_KEY" in env)
            secrets = {name: of_job[name] for name in OF_AWS}
            secrets |= {"env": EVERYWHERE, "env_server": OF_SERVERS, "env_worker": OF_WORKERS}
            secrets |= {"--env NAME": WITHOUT_VALUE, "--env-server NAME": OF_SERVERS_WITHOUT_VALUE}
            secrets |= {"--env-worker NAME": FROM_HERE, "the password of a URL": IN_A_URL}
            assert files_on(hosts, watch.began, *secrets.values()) == set()
            if request.param.startswith("a worker"):
                for host in hosts.values():
                    (host.root / "home/ubuntu/go").touch()
            else:
                os.kill(hosts["node-0"].programs("supervise")[0], signal.SIGKILL)
            shown += process.communicate(timeout=30)[0]
        shown += project.messages.read_text()
        records = project.run("jobs", "--json").stdout
        told = [("jobs",), ("logs", "--json", job)]
        shown += "".join(done.stdout + done.stderr for done in (project.run(*words, code=None) for words in told))
    assert files_on(hosts, watch.began, *secrets.values()) == set()
    record_on_disk = f"node-0:home/ubuntu/.cluster/jobs/{job}/record.json"
    assert files_on(hosts, watch.began, PLAIN) == {record_on_disk}  # what is there is found
    for host in hosts.values():
        (host.root / "home/ubuntu/go").unlink(missing_ok=True)
    folder = project.directory / f"published-{job}"
    project.run("data", "get", f"s3://cluster-secrets/results/{job}/", str(folder))
    (record,) = [one for one in json.loads(records) if one["id"] == job]
    return Seen(job=job, watch=watch, secrets=secrets, said=shown + records, record=record, folder=folder)


def files_on(hosts: dict[str, Host], since: float, *secrets: str) -> set[str]:
    """The files with a secret in them, of all that were written or changed on the nodes since a moment."""
    found = set()
    for host in hosts.values():
        for place in PLACES:
            for folder, _, names in os.walk(host.root / place):
                for path in (Path(folder, name) for name in names):
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode) and status.st_ctime > since and has_any(path, secrets):
                        found.add(f"{host.name}:{path.relative_to(host.root)}")
    return found


def has_any(path: Path, secrets: Iterable[str]) -> bool:
    content = path.read_bytes()
    return any(secret.encode() in content for secret in secrets)


def test_no_command_line_ever_had_a_secret(seen: Seen) -> None:
    assert len(seen.watch.command_lines) > 20
    assert [line for line in seen.watch.command_lines if "/train/node role" in line]
    hits = {name: seen.watch.lines_with(secret) for name, secret in seen.secrets.items()}
    assert {name: lines for name, lines in hits.items() if lines} == {}


def test_none_but_those_that_need_a_secret_had_it_in_their_environment(seen: Seen) -> None:
    for secret in seen.secrets.values():
        holders = seen.watch.holders_of(secret)
        assert holders
        assert not [line for line in holders if re.search(r"/node/\w+\.py|launch\.py|\bssh", line)], holders
    worker_envs = [env for env in seen.watch.holders if EVERYWHERE.encode() in env and b"DMLC_ROLE=worker" in env]
    assert worker_envs
    assert not [env for env in worker_envs if OF_SERVERS.encode() in env]
    assert [env for env in worker_envs if FROM_HERE.encode() not in env] == []
    schedulers = [env for env in seen.watch.holders if b"DMLC_ROLE=scheduler" in env]
    assert schedulers
    for name in OF_AWS:
        assert not [env for env in schedulers if seen.secrets[name].encode() in env], name


def test_nothing_that_is_told_of_the_job_has_a_secret(seen: Seen) -> None:
    """Its record shows that there was one, and not what it was."""
    assert seen.job in seen.said
    assert [name for name, secret in seen.secrets.items() if secret in seen.said] == []
    names = ("MY_TOKEN", "DB_PASSWORD (servers)", "API_KEY (workers)", "PASSED_ON_PASS (workers)")
    assert {seen.record["env"][name] for name in names} == {"***"}
    # Whatever it is called: the user did not type this value, so it may well be a secret.
    assert seen.record["env"]["BUILD_LABEL"] == seen.record["env"]["SHARD_LABEL (servers)"] == "***"
    assert seen.record["env"]["DATABASE"] == "postgres://me:***@10.0.0.99/db"
    assert seen.record["env"]["GREETING"] == PLAIN  # its name does not say that it is one


def test_nothing_in_s3_has_a_secret(seen: Seen) -> None:
    paths = [path for path in seen.folder.rglob("*") if path.is_file()]
    assert "record.json" in {path.name for path in paths}
    assert [path for path in paths if has_any(path, seen.secrets.values())] == []
