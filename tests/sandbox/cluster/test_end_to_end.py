"""The main job, with the real command: up, data, train, status, down; nothing is left.

test_verify_nodes.py has `cluster verify`.
"""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from ec2_sandbox.paths import find_leftovers, paths_of
from project import Project, processes_of, shipped
from waits import until

pytestmark = pytest.mark.sandbox


def accuracies(output: str) -> dict[str, float]:
    """Returns the last validation accuracy that each node's worker printed."""
    return {
        node: float(value)
        for node, value in re.findall(r"\[worker \d+ (node-\d+)\].*Validation-accuracy=([0-9.]+)", output)
    }


def test_a_clusters_life(project: Project) -> None:
    """Planned, killed while it is made, completed and deleted: nothing is left."""
    project.write(shipped(framework="none", results=f"s3://{RESULTS}/"))
    check_dry_run(project)
    kill_up(project)
    project.run("data", "put", "--create-bucket", "cluster.toml", f"s3://{RESULTS}/cluster.toml")
    project.run("up")
    nodes = json.loads(project.run("status", "--json").stdout)["nodes"]
    assert [(node["name"], node["role"], node["state"]) for node in nodes] == [
        ("node-0", "head", "running"),
        ("node-1", "worker", "running"),
    ]
    assert len(running_instances(project)) == 2
    again = project.run("up")
    assert "nothing to do" in again.stderr
    assert again.stderr.count("nothing to change") == 2
    assert json.loads(project.run("status", "--json").stdout)["nodes"] == nodes
    leave_run(project)
    receipt = run_to_the_end(project)
    assert "2 x instance" in receipt
    assert re.search(r"left +nothing", receipt)
    check_report(project)
    second = project.run("down")
    assert second.stdout == "cluster demo: nothing to delete\n"
    assert "no nodes" in project.run("status").stdout
    assert "no nodes" in project.run("train", code=1).stderr
    project.run("sandbox", "stop", "--yes")
    assert not find_leftovers(paths_of(project.directory))
    assert not list((project.directory / "state").rglob("id_ed25519"))


def check_dry_run(project: Project) -> None:
    """A dry run shows the plan and does nothing."""
    shown = project.run("up", "--dry-run").stdout
    for words in ("launch 2 nodes", "c5.xlarge", "ssh from", "encrypted", "cluster-demo"):
        assert words in shown
    assert json.loads(project.run("status", "--json").stdout)["nodes"] == []
    assert not running_instances(project)


def kill_up(project: Project) -> None:
    """Kills `up` once instances run, which it then sets up."""
    with project.following("up") as process:
        until(lambda: running_instances(project), "nothing is launched")
        process.kill()
        process.wait(timeout=60)
    assert "Traceback" not in project.messages.read_text()


RESULTS = "cluster-life"
ENV = ("--down", "--launcher", "env", "--kv-store", "none", "--")


def leave_run(project: Project) -> None:
    """`cluster run --down` that is interrupted while its job runs deletes nothing."""
    with project.following("run", *ENV, "sh", "-c", "echo begun; sleep 600") as process:
        assert process.stdout is not None
        assert "begun" in process.stdout.readline(), project.messages.read_text()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    output = project.messages.read_text()
    assert process.returncode == 130
    assert "cluster demo is not deleted; cluster down deletes it" in output
    (job,) = re.findall(r"^job (\S+) continues", output, re.MULTILINE)
    project.run("stop", job)
    assert len(running_instances(project)) == 2


def run_to_the_end(project: Project) -> str:
    """`cluster run --down` with a failing job copies its files, deletes the cluster, and has the job's exit code."""
    script = (
        "[ $CLUSTER_HOST = node-1 ] || exec sleep 600; echo saved > own.txt; echo Epoch[0] Train-accuracy=0.5; exit 3"
    )
    done = project.run("run", *ENV, "sh", "-c", script, code=3)
    assert "estimate: 1 h at $" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: job ")
    assert [path.read_text() for path in project.directory.glob("results/*/own.txt")] == ["saved\n"]
    return done.stdout


def check_report(project: Project) -> None:
    """The last job is shown by its copy in S3: its cluster is gone."""
    done = project.run("report", "--json")
    (found,) = json.loads(done.stdout)
    assert (found["state"], found["first_error"]["node"]) == ("failed", "node-1")
    assert found["curves"]["accuracy"]["together"]["mean"] == 0.5
    assert f"no nodes (cluster up); showing the jobs in s3://{RESULTS}/" in done.stderr
    page = project.directory / project.run("report").stdout.strip()
    assert "exit code 3" in page.read_text()


def running_instances(project: Project) -> list[str]:
    """Returns the ids from the sandbox's EC2, whatever the tags."""
    hosts = json.loads(project.run("sandbox", "status", "--json").stdout)["hosts"]
    return [host["instance_id"] for host in hosts if host["state"] in {"pending", "running"}]


def test_the_demo_runs_as_it_is_typed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Runs `make demo` in the checkout itself; its sandbox is not one of the tests'."""
    root = request.config.rootpath
    if subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "cluster.toml"], cwd=root, check=False).returncode:
        pytest.skip("cluster.toml has been edited")
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        ["make", "demo"], cwd=root, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(accuracies(done.stdout)) == {"node-0", "node-1"}
    assert min(accuracies(done.stdout).values()) >= 0.95
    assert re.search(r"left +nothing", done.stdout)
    assert not find_leftovers(paths_of(root))
    (job,) = re.findall(r"^job (\S+): done", done.stderr, re.MULTILINE)
    assert not processes_of(job)
