"""The main job, with the real command: up, data, train, status, down; nothing is left.

test_verify_nodes.py has `cluster verify`.
"""

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from project import Project, processes_of
from sandbox.place import find_leftovers, place_of

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def with_data(two_nodes: Project) -> Project:
    """Returns the shared cluster, with the digits in the bucket that the shipped cluster.toml names."""
    two_nodes.run("data", "demo", "digits")
    two_nodes.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
    return two_nodes


def accuracies(output: str) -> dict[str, float]:
    """Returns the last validation accuracy that each node's worker printed."""
    return {
        node: float(value)
        for node, value in re.findall(r"\[worker \d+ (node-\d+)\].*Validation-accuracy=([0-9.]+)", output)
    }


def test_a_cluster_is_planned_created_and_deleted_without_leftovers(project: Project) -> None:
    check_dry_run(project)
    interrupt_up(project, 1.5, signal.SIGKILL)
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
    receipt = project.run("down").stdout
    assert "2 x instance" in receipt
    assert re.search(r"left +nothing", receipt)
    second = project.run("down")
    assert second.stdout == "cluster demo: nothing to delete\n"
    assert "no nodes" in project.run("status").stdout
    assert "no nodes" in project.run("train", code=1).stderr
    project.run("sandbox", "stop")
    assert not find_leftovers(place_of(project.directory))
    assert not list((project.directory / "state").rglob("id_ed25519"))


@pytest.mark.slow  # the demo below does the same
@pytest.mark.parametrize(
    "network",
    [["mlp"], ["lenet", "--optimizer", "adam", "--lr", "0.001"]],
    ids=lambda n: n[0],
)
def test_training_reads_idx_files_from_s3_on_both_nodes(with_data: Project, network: list[str]) -> None:
    options = ["--num-epochs", "10", "--disp-batches", "5", "--network", *network]
    with_data.write(toml_with_args(with_data, options))
    done = with_data.run("train", "--kv-store", "dist_sync")
    found = accuracies(done.stdout)
    assert set(found) == {"node-0", "node-1"}
    assert min(found.values()) >= 0.95
    assert re.search(r"\[worker \d node-\d\].*Epoch\[0\] Batch \[0-5\]\tSpeed: [0-9.]+ samples/sec", done.stdout)


@pytest.mark.slow
def test_training_reads_record_shards_and_saves_its_model_to_s3(with_data: Project) -> None:
    options = ["--num-epochs", "12", "--data-train", "s3://cluster-demo/digits/train/"]
    options += ["--data-val", "s3://cluster-demo/digits/val/", "--model-prefix", "s3://cluster-demo/models/digits"]
    with_data.write(toml_with_args(with_data, options))
    found = accuracies(with_data.run("train").stdout)
    assert set(found) == {"node-0", "node-1"}
    assert min(found.values()) >= 0.95
    listed = with_data.run("data", "ls", "s3://cluster-demo/models/").stdout
    assert "digits-symbol.json" in listed
    assert "digits-0012.params" in listed


@pytest.mark.slow  # as examples/own-script, which test_examples.py runs
def test_a_script_of_the_users_own_runs_on_all_nodes(with_data: Project) -> None:
    (with_data.directory / "mymod.py").write_text("NAME = 'mine'")
    (with_data.directory / "mine.py").write_text(
        "import os, sys, mymod\n"
        "if os.environ['DMLC_ROLE'] == 'worker': print(mymod.NAME, sys.argv[1:], os.environ['CLUSTER_DATA_URL'])\n"
        "import mxnet as mx\n"
        "kv = mx.kv.create('dist_sync')\n"
        "print(kv.num_workers)\n"
    )
    text = toml_with_args(with_data, ["a b", "$(id)"]).replace('script = "train_mnist.py"', 'script = "mine.py"')
    before = (with_data.directory / "cluster.toml").read_text()
    with_data.write(text)
    try:
        done = with_data.run("train")
    finally:
        with_data.write(before)
    wanted = r"\[worker . node-\d\] mine \['a b', '\$\(id\)'\] s3://cluster-demo/digits/"
    assert len(re.findall(wanted, done.stdout)) == 2
    (with_data.directory / "mine.py").open("a").write("# takes '--kvstore'\n")
    done = with_data.run("train", "mine.py", "--epochs", "1")
    assert done.stdout.count(" mine ['--epochs', '1', '--kvstore', 'dist_sync'] ") == 2
    (with_data.directory / "mine.py").unlink()


def toml_with_args(project: Project, words: list[str]) -> str:
    text = (project.directory / "cluster.toml").read_text()
    text = re.sub(r"^args = .*$", lambda _: f"args = {json.dumps(words)}", text, flags=re.MULTILINE)
    return re.sub(r'^script = "[^"]*"', 'script = "train_mnist.py"', text, flags=re.MULTILINE)


def check_dry_run(project: Project) -> None:
    """A dry run shows the plan and does nothing; an `up` whose nodes could not be set up does nothing either."""
    shown = project.run("up", "--dry-run").stdout
    for words in ("launch 2 nodes", "c5.xlarge", "ssh from", "encrypted", "cluster-demo"):
        assert words in shown
    without_cache = replace(project, env={"XDG_CACHE_HOME": os.devnull})
    failed = without_cache.run("up", code=1).stderr
    assert "/dev/null/cluster: cannot write to the cache of files for the nodes" in failed
    assert json.loads(project.run("status", "--json").stdout)["nodes"] == []
    assert not running_instances(project)


def interrupt_up(project: Project, pause_s: float, number: signal.Signals) -> None:
    with project.running("up") as process:
        time.sleep(pause_s)
        os.killpg(process.pid, number)
        process.communicate(timeout=60)
    said = project.messages.read_text()
    assert "Traceback" not in said
    if number == signal.SIGINT:
        # Without a hint, it was interrupted before the command had looked at the cluster.
        assert re.search(r"error: interrupted\n(  try: (run )?cluster up|\Z)", said), said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("pause_s", [0.7, 1.5, 2.2, 3.0, 4.5])
def test_an_interrupted_up_is_completed_by_the_next(project: Project, pause_s: float, number: signal.Signals) -> None:
    """The pause varies the moment of the interruption. There are two nodes, no third, and `down` ends all of it."""
    interrupt_up(project, pause_s, number)
    project.run("up")
    nodes = json.loads(project.run("status", "--json").stdout)["nodes"]
    assert [node["state"] for node in nodes] == ["running", "running"]
    assert len(running_instances(project)) == 2
    project.run("verify")
    receipt = project.run("down").stdout
    assert re.search(r"left +nothing", receipt)
    assert not running_instances(project)


def running_instances(project: Project) -> list[str]:
    """Returns the ids from the sandbox's EC2, whatever the tags."""
    hosts = json.loads(project.run("sandbox", "status", "--json").stdout)["hosts"]
    return [host["instance_id"] for host in hosts if host["state"] in {"pending", "running"}]


@pytest.mark.slow
def test_a_lost_private_key_is_named(two_nodes: Project) -> None:
    (key,) = (two_nodes.directory / "state").rglob("id_ed25519")
    assert key.stat().st_mode & 0o777 == 0o600
    moved = key.with_name("elsewhere")
    key.rename(moved)
    try:
        assert "private key of cluster demo is not on this machine" in two_nodes.run("verify", code=1).stderr
        assert "cluster down" in two_nodes.run("up", code=1).stderr
    finally:
        moved.rename(key)
    two_nodes.run("verify")


@pytest.mark.slow
def test_damage_on_a_node_is_repaired(two_nodes: Project) -> None:
    """A killed run leaves an incomplete environment; the next run replaces it."""
    program = "import glob, os; [os.remove(p) for p in glob.glob(os.path.expanduser('~/.cluster/env/*/.complete'))]"
    two_nodes.run("train", "--kv-store", "dist_sync", "--", "python", "-c", program, code=None)
    done = two_nodes.run("up")
    assert "ready to train" in done.stderr
    two_nodes.run("verify")
    assert two_nodes.run("up").stderr.count("nothing to change") == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["up", "--nodes", "0"], 2, "at least 1"),
        (["up", "--nodes", "two"], 2, "two"),
        (["train", "--kv-store", "dist"], 2, "dist"),
        (["train", "--kv-store", "local"], 2, "separate models"),
        (["train", "-n", "0"], 2, "train.workers = 0"),
        (["train", "--env", "1=2"], 2, "NAME=VALUE"),
        (["nonsense"], 2, "no such command"),
        (["-c", "missing.toml", "up"], 2, "no such file"),
        (["status", "--jsn"], 2, "--json"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(
    two_nodes: Project, words: list[str], code: int, said: str
) -> None:
    done = two_nodes.run(*words, code=code)
    assert said in done.stderr
    assert not done.stdout


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
    assert not find_leftovers(place_of(root))
    (job,) = re.findall(r"^job (\S+): done", done.stderr, re.MULTILINE)
    assert not processes_of("CLUSTER_JOB_ID", job)
