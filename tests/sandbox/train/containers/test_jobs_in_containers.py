"""Jobs in containers on real hosts, with rootless podman and images from a registry with TLS and a password.

test_random_kills.py kills each program of such jobs.
"""

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from container_nodes import PASSWORD, ContainerNodes, container_nodes
from job_steps import STRANGER, Tell, all_pids, borrowed, check, command_line, namespace_of, running
from oci_images import mxnet_image, plain_image
from odd_words import VALUE, WORDS
from real_registry import USER
from secret_watch import Watch, files_with, has_any, watching
from waits import until

pytestmark = pytest.mark.sandbox

LOOK = """
import json, os, sys
home = os.path.expanduser("~")
print(json.dumps({
    "uid": os.getuid(), "python": sys.executable, "keys": os.path.exists(home + "/.ssh"), "cwd": os.getcwd(),
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize, "seen": os.listdir("/seen"),
    "env": dict(os.environ), "words": sys.argv[1:],
    "system": open("/etc/debian_version").read().strip(),
}))
with open(os.environ["CLUSTER_OUTPUT_DIR"] + "/written", "w") as stream:
    stream.write(os.environ["CLUSTER_RANK"])
"""
# As PyTorch's flight recorder does with NCCL, in a pipe of the agent's folder and a file of the job's.
RECORDS = """
import os, pickle, time
entry = {"process_group": ("0", "default_pg"), "collective_seq_id": 7, "profiling_name": "nccl:gather"}
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + "0.pipe"
os.mkfifo(pipe)
print("waits", flush=True)
with open(pipe) as stream:
    stream.read()
with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + "0", "wb") as stream:
    pickle.dump({"entries": [entry | {"state": "started"}]}, stream)
time.sleep(600)
"""
AUTH = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
EPOCHS = ("--network", "mlp", "--num-epochs", "3")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerNodes]:
    with container_nodes(tmp_path_factory.mktemp("containers"), nodes=1, framework="none") as nodes:
        yield nodes


@pytest.fixture(scope="module")
def digits(shared: ContainerNodes) -> None:
    """[data] url has what the shipped scripts train on."""
    shared.project.run("data", "demo", "digits")
    shared.project.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")


@pytest.fixture
def nodes(shared: ContainerNodes) -> Iterator[ContainerNodes]:
    with borrowed(shared.project):
        yield shared
    until(lambda: not shared.containers(), f"containers are left: {shared.containers()}")


@pytest.fixture(scope="module")
def plain(shared: ContainerNodes) -> str:
    return shared.push(plain_image(), "tests/plain:latest")


@dataclass(frozen=True)
class Seen:
    """The first job, for which the nodes pull the image: what it printed, and all that could be seen meanwhile."""

    done: "subprocess.CompletedProcess[str]"
    record: dict[str, Any]
    watch: Watch


@pytest.fixture(scope="module")
def first(shared: ContainerNodes, plain: str) -> Seen:
    shared.project.run("exec", "--", "sh", "-c", "mkdir -p seen && touch seen/$(hostname)")
    settings = {"mounts": ["~/seen:/seen:ro"], "shm_size": "100m", "env": {"OF_JOB": VALUE}}
    with watching() as watch, shared.configured(plain, **settings):
        done = shared.project.run("train", "--launcher", "env", "--", "python3", "-c", LOOK, *WORDS)
    return Seen(done, json.loads(shared.project.run("jobs", "--json").stdout)[0], watch)


def test_what_a_process_sees(nodes: ContainerNodes, plain: str, first: Seen) -> None:
    """The node user's id, the image's Python, the job's variables, a mount, its own /dev/shm, and no ssh keys."""
    seen = {
        node: json.loads(text)
        for node, text in re.findall(r"^\[worker \d (node-\d)\] (\{.*)$", first.done.stdout, re.MULTILINE)
    }
    assert set(seen) == {"node-0"}, first.done.stdout
    for node, told in seen.items():
        rank = node[-1]
        assert (told["uid"], told["python"], told["keys"]) == (1000, "/usr/bin/python3", False)
        assert (told["shm"], len(told["seen"])) == (100 << 20, 1)
        assert told["env"]["CLUSTER_RANK"] == rank
        assert (told["env"]["OF_JOB"], told["words"]) == (VALUE, list(WORDS))
        root = nodes.hosts[node].root
        written = root / told["env"]["CLUSTER_OUTPUT_DIR"].lstrip("/") / "written"
        assert (written.read_text(), written.stat().st_uid) == (rank, (root / "home/ubuntu").stat().st_uid)
    assert first.record["image"] == f"{plain.removesuffix(':latest')}@{plain_image().digest}"


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
def test_digits_with_the_images_mxnet(nodes: ContainerNodes) -> None:
    """`framework = "none"`: launch.py and MXNet come from the image; nodes have neither."""
    with nodes.configured(nodes.push(mxnet_image(), "tests/mxnet:1.7")):
        done = nodes.project.run(
            "train", "--kv-store", "dist_sync", "--launcher", "ssh", "-n", "2", "-s", "1", "--", *EPOCHS
        )
    assert accuracy(done.stdout + done.stderr) > 0.8
    record = json.loads(nodes.project.run("jobs", "--json").stdout)[0]
    assert (record["launcher"], record["workers"], record["exit_code"]) == ("ssh", 2, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
def test_digits_with_a_mounted_environment(nodes: ContainerNodes, plain: str) -> None:
    """`framework = "mxnet"`: the nodes' environment is mounted into an image that has only Python."""
    with nodes.configured(plain, framework="mxnet"):
        done = nodes.project.run("train", "-n", "2", "--kv-store", "dist_sync", "--", *EPOCHS)
    assert accuracy(done.stdout + done.stderr) > 0.8


def accuracy(message: str) -> float:
    """The last validation accuracy that a script has reported."""
    found = re.findall(r"[Vv]alidation[- ]accuracy[=:] ?([0-9.]+)", message)
    assert found, message
    return float(found[-1])


def test_the_engine_of_a_process_is_killed(nodes: ContainerNodes, plain: str, record_property: Tell) -> None:
    """Before, the stacks of its Python are shown, and what PyTorch would record."""
    command = ("--", "sh", "-c", f'(env -i setsid {" ".join(STRANGER)} &); exec python3 -c "$0"', RECORDS)
    with nodes.configured(plain), running(nodes.project, "--launcher", "env", command=command, waiting=1) as job:
        (stack,) = json.loads(nodes.project.run("stacks", "--json").stdout)
        assert stack["location"].startswith("<string>:")
        assert [(one["number"], one["call"]) for one in stack["collectives"]] == [(7, "gather")]
        head = job.hosts["node-0"]
        on_head = {pid: " ".join(command_line(pid)) for pid in all_pids() if namespace_of(pid) == head.namespace}
        job.kill(min(pid for pid, line in on_head.items() if re.match("(\\S*/)?podman ", line) and job.id in line))
        output = "signal 9: podman, which runs its container, was killed"
        check("in containers: podman killed", job, (137, output), record_property)


def test_the_password_is_found_nowhere(nodes: ContainerNodes, first: Seen) -> None:
    """It is in no command line and no file of a node, nor in the project's folder, during the pull and later."""
    watch = first.watch
    assert "GET /v2/tests/plain/manifests/" in nodes.registry.log.read_text()
    assert not watch.lines_with(PASSWORD)
    # The user's own commands on this machine, and their children, have the variable. No process on a node has it.
    inside = {host.namespace for host in nodes.hosts.values()}
    holders = {env for env, spaces in watch.namespaces.items() if PASSWORD.encode() in env and spaces & inside}
    assert not holders
    assert len([env for env, spaces in watch.namespaces.items() if spaces & inside]) > 10
    assert PASSWORD not in first.done.stdout + first.done.stderr
    assert [path for host in nodes.hosts.values() for path in files_with(host.root, [PASSWORD, AUTH])] == []
    files = [path for path in nodes.project.directory.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in files if has_any(path, [PASSWORD, AUTH])] == []


TRAIN = ("train", "-v", "--launcher", "env", "--", "python3", "-c", "print('runs')")


@pytest.mark.slow
def test_three_nodes_take_one_image_from_the_registry(tmp_path: Path) -> None:
    image = mxnet_image()
    (tmp_path / "images").mkdir()
    with container_nodes(tmp_path / "images", nodes=3, framework="none") as nodes:
        with nodes.configured(nodes.push(image, "chain:latest")):
            done = nodes.project.run(*TRAIN, timeout_s=600)
            again = nodes.project.run(*TRAIN)
        assert done.stdout.count("] runs\n") == again.stdout.count("] runs\n") == 3
        assert done.stderr.count("has the image from another node") == 2, done.stderr
        assert "another node" not in again.stderr
        pulled = nodes.registry.pulls("chain")
        assert [pulled.count(f"/v2/chain/blobs/sha256:{layer.sha256}") for layer in image.layers] == [1, 1]
        listed = nodes.project.run("exec", "--", "podman", "images", "--no-trunc", "--format", "{{.ID}}").stdout
        assert [line.partition(" sha256:")[2] for line in listed.splitlines()] == [image.id] * 3
        for host in nodes.hosts.values():
            assert not list((host.root / "home/ubuntu/.cluster/images").glob("*"))
            assert not list((host.root / "home/ubuntu/.cluster/files").glob("*/image-*"))
