"""The nodes' own role, and the operator's least policy: every call of a real run is one that they allow."""

import json
import re
from typing import Any

import pytest

from ec2_sandbox.paths import find_leftovers, paths_of
from iam_calls import find_denied
from job_steps import hosts_of
from project import REPOSITORY, Project
from waits import until

pytestmark = pytest.mark.sandbox

# Tries each access with MXNet's own S3 code, and prints the result of each.
PROBE = """
import json, os
import mxnet as mx
def write(url):
    mx.nd.save(url, [mx.nd.ones(3)])
def read(url):
    assert mx.recordio.MXRecordIO(url, 'r').read()
for what, url in json.loads(os.environ["ACCESSES"]):
    try:
        globals()[what](url)
    except mx.MXNetError as error:
        print('tried', what, url, 'denied' if 'AccessDenied' in str(error) else error)
    else:
        print('tried', what, url, 'done')
"""


def write_toml(project: Project, **changed: str) -> None:
    """Writes the shipped cluster.toml with a role and a folder for results. changed: other values in TOML, by key."""
    text = (REPOSITORY / "cluster.toml").read_text()
    lines = {
        "instance_profile": '"auto"',
        "results": '"s3://cluster-demo/results/"',
        "args": json.dumps(["--num-epochs", "2", "--data-train", "s3://cluster-demo/digits/train/"]),
        **changed,
    }
    for key, value in lines.items():
        line = f"{key} = {value}".replace("\\", r"\\")
        text, found = re.subn(rf"^(# )?{key} = .*$", line, text, count=1, flags=re.MULTILINE)
        assert found == 1, key
    project.write(text)


def put_digits(project: Project) -> None:
    project.run("data", "demo", "digits")
    project.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")


def calls(project: Project) -> list[dict[str, Any]]:
    return [json.loads(line) for line in project.run("sandbox", "log", "--json").stdout.splitlines()]


def called_by(project: Project, caller: str) -> list[dict[str, Any]]:
    """The calls by this caller, without the dry run of the end of a node that does not exist."""
    found = [call for call in calls(project) if caller in (call["caller"] or "")]
    return [call for call in found if not call["dry_run"] or call["action"] == "RunInstances"]


def given(project: Project, action: str, parameter: str) -> str:
    """The policy document in the last such call."""
    return next(str(one["parameters"][parameter]) for one in reversed(calls(project)) if one["action"] == action)


def probe(project: Project, *accesses: tuple[str, str]) -> dict[tuple[str, str], str]:
    """Tries to `read` or to `write` each URL on the head; returns the results."""
    (project.directory / "probe.py").write_text(PROBE)
    given = f"ACCESSES={json.dumps(accesses)}"  # a URL in the command would become a path
    out = project.run("train", "--kv-store", "local", "-n", "1", "--env", given, "--", "python", "probe.py").stdout
    return {(what, url): how for what, url, how in re.findall(r"tried (\w+) (\S+) (.*)", out)}


@pytest.mark.slow
def test_jobs_use_the_nodes_role_with_least_permissions(project: Project) -> None:
    write_toml(project, script='"probe.py"')
    (project.directory / "probe.py").write_text(PROBE)
    project.run("sandbox", "start")
    put_digits(project)
    project.run("up")
    before = len(calls(project))
    name = min(path.name for path in (project.directory / "digits" / "train").glob("*.rec"))
    allowed = ("read", f"s3://cluster-demo/digits/train/{name}"), ("write", "s3://cluster-demo/results/ones")

    assert probe(project, *allowed) == dict.fromkeys(allowed, "done")
    readers = {call["caller"].split("/")[0] for call in calls(project)[before:] if call["action"] == "GetObject"}
    assert readers - {"arn:aws:iam::123456789012:user"} == {"arn:aws:sts::123456789012:assumed-role"}
    assert "GetSessionToken" not in {call["action"] for call in calls(project)}

    # The next command completes a job's files in S3 if no process was left to do so.
    project.run("train", "--detach", "--kv-store", "local", "-n", "1", "--", "sleep", "1000")
    project.run("exec", "--node", "node-0", "--", "pkill", "-KILL", "-f", "[n]ode supervise")
    until(lambda: not hosts_of(project)["node-0"].programs("supervise"), "a killed program runs")
    newest = json.loads(project.run("jobs", "--json").stdout)[0]
    folder = f"s3://cluster-demo/results/{newest['id']}/"
    project.run("data", "get", f"{folder}record.json", f"{folder}events", "./")
    kept = json.loads((project.directory / "record.json").read_text())
    assert (kept["state"], kept["error"]) == ("failed", "the supervisor on node-0 was killed")
    assert kept["error"] in (project.directory / "events").read_text().splitlines()[-1]

    # The same is true if processes were left that are ended later.
    record = f"/home/ubuntu/.cluster/jobs/{newest['id']}/record.json"
    words = ("sed", "-i", """s/"left": {}/"left": {"node-0": [[0, "no answer"]]}/""", record)
    project.run("exec", "--node", "node-0", "--", *words)
    (newest,) = [job for job in json.loads(project.run("jobs", "--json").stdout) if job["left"]]
    project.run("data", "rm", "--yes", f"{folder}record.json")
    project.run("stop", newest["id"])
    project.run("data", "get", f"{folder}record.json", "./")
    assert json.loads((project.directory / "record.json").read_text()) == {**kept, "left": {}}

    policy, by_nodes = given(project, "PutRolePolicy", "PolicyDocument"), called_by(project, ":assumed-role/")
    assert {"GetObject", "PutObject"} <= {call["action"] for call in by_nodes}
    assert not find_denied(by_nodes, policy)
    probed = [call for call in by_nodes if call["resource"] == "cluster-demo/results/ones"]
    elsewhere = [{**call, "resource": "cluster-demo/digits/ones"} for call in probed]
    assert "s3:PutObject on arn:aws:s3:::cluster-demo/digits/ones" in find_denied(elsewhere, policy)


@pytest.mark.slow
def test_every_command_works_with_the_printed_policy(project: Project) -> None:
    write_toml(project)
    put_digits(project)
    assert "cluster-us-east-1-demo" in project.run("up", "--dry-run").stdout
    project.run("up")
    project.run("verify")
    done = project.run("train")
    assert set(re.findall(r"\[worker \d (node-\d)\].*Train-accuracy", done.stdout)) == {"node-0", "node-1"}
    assert re.search(r"\[supervisor node-0\] the job's AWS credentials expire in [0-6] h \d+ min", done.stdout)
    project.run("resize", "3")
    project.run("resize", "1")
    project.run("stop", "--nodes", "--yes")
    project.run("start", "--yes")
    project.run("allow")
    project.run("status", "--json")
    project.run("list", "--json")
    project.run("data", "get", "s3://cluster-demo/digits/val/", "back/")
    project.run("data", "rm", "--recursive", "--yes", "s3://cluster-demo/digits/")

    receipt = project.run("down").stdout

    assert re.search(r"left +nothing", receipt)
    assert not find_denied(called_by(project, ":user/operator"), project.run("iam-policy").stdout)
    by_job = called_by(project, ":federated-user/")
    assert not by_job
    made = {call["action"] for call in calls(project)}
    assert {"PutRolePolicy", "DeleteRole", "CreateTags", "StopInstances", "StartInstances"} <= made
    project.run("sandbox", "stop", "--yes")
    assert not find_leftovers(paths_of(project.directory))


def test_nodes_without_the_profile_run_no_job(two_nodes: Project) -> None:
    text = (two_nodes.directory / "cluster.toml").read_text()
    changed = re.sub(r'^# instance_profile = "none"', 'instance_profile = "auto"', text, flags=re.MULTILINE)
    assert changed != text
    two_nodes.write(changed)
    try:
        done = two_nodes.run("train", "--kv-store", "local", "-n", "1", "--", "true", code=1)
    finally:
        two_nodes.write(text)
    assert "node-0: this instance has no credentials" in done.stderr
    assert "[worker" not in done.stdout
