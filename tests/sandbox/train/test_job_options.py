"""The options of `cluster train` and of a job file reach the processes of a job, on the nodes that they name."""

import json
from collections import Counter
from typing import Any

import pytest

from project import Project

pytestmark = pytest.mark.sandbox

NAMES = ("ROLE", "NODE_HOST", "INTERFACE")
SHOW = f"""
import json, os, resource, sys
env = {{name: os.environ.get("DMLC_" + name) for name in {NAMES!r}}}
env.update((key, value) for key, value in os.environ.items() if key.startswith(("CLUSTER_", "MY_", "OMP_", "MXNET_")))
env.update(cwd=os.getcwd(), path=__file__, files=resource.getrlimit(resource.RLIMIT_NOFILE)[0], words=sys.argv[1:])
env.update(prepared=os.path.exists("/tmp/prepared"), output=os.path.isdir(env["CLUSTER_OUTPUT_DIR"]))
print("SEEN " + json.dumps(env), flush=True)
"""


def seen(output: str) -> list[dict[str, Any]]:
    """The output of the processes of a job that runs SHOW."""
    return [json.loads(line.partition("SEEN ")[2]) for line in output.splitlines() if "] SEEN {" in line]


def test_a_job_file_says_it_all(two_nodes: Project) -> None:
    (two_nodes.directory / "show.py").write_text(SHOW)
    (two_nodes.directory / "job.toml").write_text(
        """
script = "show.py"
args = ["it's"]
name = "tuned"
workers = 3
servers = 1
hosts = ["node-1", "node-0", "node-1"]
sync_dst_dir = "~/the job"
setup = ["touch /tmp/prepared", "echo prepared $(hostname)"]
open_files = 1000
env = { MY_A = "job", MY_B = "job", OMP_NUM_THREADS = "3" }
env_server = { MY_B = "server" }
env_worker = { MY_C = "worker" }
"""
    )
    try:
        done = two_nodes.run(
            "train", "-v", "--job", "job.toml", "--env", "MY_A=line", "--env-worker", "OMP_NUM_THREADS=5"
        )
    finally:
        two_nodes.run("exec", "--", "rm", "-rf", "the job", "/tmp/prepared", code=None)
    assert "3 workers, 1 server on 2 nodes, kv_store dist_sync: tuned" in done.stderr
    assert "OMP_NUM_THREADS=3 (yours)" in done.stderr
    assert done.stdout.count(" prepared ") == 2
    found = seen(done.stdout)
    # launch.py's order: servers first, then workers, each on the next host of the file.
    placed = Counter((env["ROLE"], env["CLUSTER_HOST"]) for env in found)
    assert placed == Counter(
        {("scheduler", "node-0"): 1, ("server", "node-1"): 1, ("worker", "node-0"): 1, ("worker", "node-1"): 2}
    )
    for env in found:
        assert (env["CLUSTER_JOB_NAME"], env["MY_A"], env["words"][0]) == ("tuned", "line", "it's")
        assert env["MY_B"] == ("server" if env["ROLE"] == "server" else "job")
        assert env.get("MY_C") == ("worker" if env["ROLE"] == "worker" else None)
        assert env["OMP_NUM_THREADS"] == ("5" if env["ROLE"] == "worker" else "3")
        assert (env["cwd"], env["path"]) == ("/home/ubuntu/the job", "/home/ubuntu/the job/show.py")
        assert (env["prepared"], env["output"], env["INTERFACE"]) == (True, True, "eth0")
        assert env["files"] == 1000 or env["ROLE"] == "scheduler"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--kv-store", "dist_async", "--gc-type", "2bit"],
        ["--kv-store", "dist_sync_device", "--p3"],
        ["--kv-store", "device", "-n", "1"],
        ["-n", "4", "-s", "1"],
    ],
    ids=" ".join,
)
def test_the_shipped_script_trains_with_every_store(two_nodes: Project, words: list[str]) -> None:
    arguments = ["--network", "mlp", "--num-epochs", "2", "--benchmark", "1", "--num-examples", "640"]
    (two_nodes.directory / "job.toml").write_text(f"args = {json.dumps(arguments)}\n")
    done = two_nodes.run("train", "--job", "job.toml", *words)
    assert "Epoch[1] Train-accuracy=" in done.stdout
