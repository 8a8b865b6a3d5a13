"""A job's secrets are in the environment of its workers and servers, and nowhere else.

Canaries are passed in every way that a job takes secrets. They must not appear in any process list from before the
job starts until it has ended, on the nodes' disks, in output about the job, or in S3. The same is true for the job's
own temporary credentials. The user's own keys, of ssh and of AWS, are in no environment on a node either.
"""

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ec2_sandbox import control
from job_steps import Host, hosts_of
from project import Project, processes_of
from secret_watch import Watch, files_with, has_any, watching

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
OF_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Everything that could be seen of one job."""

    job: str
    watch: Watch
    secrets: dict[str, str]
    own: tuple[str, ...]  # the user's keys
    of_nodes: set[str]  # their pid namespaces
    output: str
    record: dict[str, Any]
    folder: Path


def keys_of_the_user(project: Project) -> tuple[str, ...]:
    """The secret half of the ssh key, and the secret key of AWS."""
    [key] = (project.directory / "state").rglob("id_ed25519")
    info = control.find_running(project.directory)
    assert info is not None
    return key.read_text().splitlines()[-3], control.environment(info)["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def seen(two_nodes: Project) -> Seen:
    """A job whose workers dump their core, observed from before its start until after its end."""
    (two_nodes.directory / "an-object").write_text("x")
    two_nodes.run("data", "put", "--create-bucket", "an-object", "s3://cluster-secrets/an-object")
    (two_nodes.directory / "secret.toml").write_text(JOB)
    with two_nodes.configured(results="s3://cluster-secrets/results/"):
        found = observe(two_nodes)
    (two_nodes.directory / "secret.toml").unlink()
    return found


def observe(project: Project) -> Seen:
    hosts, keys = hosts_of(project), keys_of_the_user(project)
    here = {"PASSED_ON_PASS": FROM_HERE, "BUILD_LABEL": WITHOUT_VALUE, "SHARD_LABEL": OF_SERVERS_WITHOUT_VALUE}
    own = dataclasses.replace(project, env={**project.env, **here})
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
            envs = list(processes_of(job).values())
            of_job = next(env for env in envs if "AWS_SECRET_ACCESS_KEY" in env)
            secrets = {name: of_job[name] for name in OF_AWS}
            secrets |= {"env": EVERYWHERE, "env_server": OF_SERVERS, "env_worker": OF_WORKERS}
            secrets |= {"--env NAME": WITHOUT_VALUE, "--env-server NAME": OF_SERVERS_WITHOUT_VALUE}
            secrets |= {"--env-worker NAME": FROM_HERE, "the password of a URL": IN_A_URL}
            assert files_on(hosts, watch.began, *secrets.values()) == set()
            for host in hosts.values():
                (host.root / "home/ubuntu/go").touch()
            shown += process.communicate(timeout=30)[0]
        shown += project.messages.read_text()
        records = project.run("jobs", "--json").stdout
        told = [("jobs",), ("logs", "--json", job)]
        shown += "".join(done.stdout + done.stderr for done in (project.run(*words, code=None) for words in told))
    assert files_on(hosts, watch.began, *secrets.values()) == set()
    assert files_on({"node-0": hosts["node-0"]}, 0.0, *keys) == set()
    record_on_disk = f"node-0:home/ubuntu/.cluster/jobs/{job}/record.json"
    assert files_on(hosts, watch.began, PLAIN) == {record_on_disk}  # the search finds a value on disk
    for host in hosts.values():
        (host.root / "home/ubuntu/go").unlink(missing_ok=True)
    folder = project.directory / f"published-{job}"
    project.run("data", "get", f"s3://cluster-secrets/results/{job}/", str(folder))
    (record,) = [one for one in json.loads(records) if one["id"] == job]
    return Seen(
        job=job, watch=watch, secrets=secrets, own=keys, of_nodes={host.namespace for host in hosts.values()},
        output=shown + records, record=record, folder=folder,
    )  # fmt: skip


def files_on(hosts: dict[str, Host], since: float, *secrets: str) -> set[str]:
    return {f"{host.name}:{path}" for host in hosts.values() for path in files_with(host.root, secrets, since=since)}


def test_no_command_line_ever_had_a_secret(seen: Seen) -> None:
    assert len(seen.watch.command_lines) > 20
    assert [line for line in seen.watch.command_lines if "/node agent" in line]
    hits = {name: seen.watch.lines_with(secret) for name, secret in seen.secrets.items()}
    assert {name: lines for name, lines in hits.items() if lines} == {}
    assert not [line for secret in seen.own for line in seen.watch.lines_with(secret)]


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
    on_nodes = [env for env, spaces in seen.watch.namespaces.items() if spaces & seen.of_nodes]
    assert len(on_nodes) > 10
    assert not [env for env in on_nodes if any(secret.encode() in env for secret in seen.own)]


def test_nothing_that_is_told_of_the_job_has_a_secret(seen: Seen) -> None:
    """The record shows that there was a secret, but not its value."""
    assert seen.job in seen.output
    assert [name for name, secret in seen.secrets.items() if secret in seen.output] == []
    assert not [secret for secret in seen.own if secret in seen.output]
    names = ("MY_TOKEN", "DB_PASSWORD (servers)", "API_KEY (workers)", "PASSED_ON_PASS (workers)")
    assert {seen.record["env"][name] for name in names} == {"***"}
    # Whatever its name: the user did not type this value, so it may well be a secret.
    assert seen.record["env"]["BUILD_LABEL"] == seen.record["env"]["SHARD_LABEL (servers)"] == "***"
    assert seen.record["env"]["DATABASE"] == "postgres://me:***@10.0.0.99/db"
    assert seen.record["env"]["GREETING"] == PLAIN  # its name does not suggest a secret


def test_nothing_in_s3_has_a_secret(seen: Seen) -> None:
    paths = [path for path in seen.folder.rglob("*") if path.is_file()]
    assert "record.json" in {path.name for path in paths}
    assert [path for path in paths if has_any(path, seen.secrets.values())] == []
