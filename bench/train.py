"""`cluster train` beside launch.py typed by hand, on the same two sandbox nodes, with the same settings.

By hand means: over ssh on the head, the wheel's own tools/launch.py (with Thread.isAlive put back, as every Python
since 3.9 needs it), the same processes on each node, the same script and arguments, and on every node a file with the
environment, as the guides say. What `cluster train` does beside that counts for it: looking at the nodes, temporary
credentials, supervision, the search for what is left.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.rounds import interleave, render_timings

CLUSTER = str(Path(sys.executable).parent / "cluster")
REPOSITORY = Path(__file__).parents[1]
ARGUMENTS = ["--network", "mlp", "--num-epochs", "30", "--disp-batches", "10"]
SSH_CONFIG = """\
Host *
  IdentityFile ~/.cluster/ssh/id_ed25519
  UserKnownHostsFile ~/.cluster/ssh/known_hosts
  LogLevel ERROR
"""
# Prints what a process of a job sees, for the one that is started by hand.
PROGRAM = "import json, os, sys; print('SEEN', json.dumps([dict(os.environ), sys.executable, os.getcwd()]))"


class Cluster:
    """A sandbox cluster of two nodes in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        text = (REPOSITORY / "cluster" / "default.toml").read_text()
        lines = [
            f"args = {json.dumps(ARGUMENTS)}" if line.startswith("args = ") else line for line in text.splitlines()
        ]
        (folder / "cluster.toml").write_text("\n".join(lines))

    def run(self, *words: str) -> str:
        """`cluster WORDS...`, in the folder."""
        return must_run([CLUSTER, *words], cwd=self.folder, env=self.env)

    def ssh(self, address: str, command: str) -> str:
        """A command on a node."""
        (key,) = (self.folder / "state").rglob("id_ed25519")
        options = ["-i", str(key), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        return must_run(["ssh", *options, "-o", "LogLevel=ERROR", f"ubuntu@{address}", command])


def must_run(words: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command; end the benchmark if it fails."""
    done = subprocess.run(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{shlex.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def prepare_by_hand(cluster: Cluster) -> tuple[str, str]:
    """Put on the nodes what launch.py by hand needs; the head's address, and the command to type there."""
    nodes = json.loads(cluster.run("status", "--json"))["nodes"]
    seen = cluster.run("train", "--kv-store", "local", "-n", "1", "-s", "1", "--", "python", "-c", PROGRAM)
    line = next(line for line in seen.splitlines() if "worker] SEEN" in line)
    env, python, tree = json.loads(line.partition("SEEN ")[2])
    exports = {key: value for key, value in env.items() if key.startswith(("S3_", "AWS_")) or key == "CLUSTER_DATA_URL"}
    exports["OMP_NUM_THREADS"] = "1"  # what `cluster train` chooses for these processes on two cores
    words = [python, f"{tree}/scripts/train_mnist.py", *ARGUMENTS, "--kv-store", "dist_sync"]
    script = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in exports.items())
    script += f"exec {shlex.join(words)}\n"
    hosts = "".join(f"{node['private_ip']}\n" for node in nodes)
    for node in nodes:
        cluster.ssh(node["public_ip"], f"printf %s {shlex.quote(script)} >run.sh")
    head = nodes[0]["public_ip"]
    cluster.ssh(head, f"printf %s {shlex.quote(SSH_CONFIG)} >.ssh/config; printf %s {shlex.quote(hosts)} >hosts")
    site = f"{Path(python).parents[1]}/lib/python3*/site-packages"
    return head, f"{python} {site}/mxnet/tools/launch.py -n 2 -s 2 -H hosts --launcher ssh bash run.sh 2>&1"


def run() -> str:
    """The same job both ways, in turn."""
    folder = Path(tempfile.mkdtemp(prefix="cluster-bench-"))
    cluster = Cluster(folder)
    try:
        cluster.run("up")
        cluster.run("data", "demo", "digits")
        cluster.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
        head, command = prepare_by_hand(cluster)

        def by_hand() -> None:
            output = cluster.ssh(head, command)
            if output.count("Epoch[29] Validation-accuracy") != 2:
                sys.exit(f"the job by hand did not do its work:\n{output}")

        def by_cluster() -> None:
            output = cluster.run("train", "--kv-store", "dist_sync")
            if output.count("Epoch[29] Validation-accuracy") != 2:
                sys.exit(f"the job did not do its work:\n{output}")

        timings = interleave({"cluster train": by_cluster, "launch.py by hand": by_hand})
    finally:
        cluster.run("sandbox", "reset")
        shutil.rmtree(folder)
    return render_timings(
        "`cluster train` beside launch.py by hand",
        timings,
        commands={
            "all": "sudo python -m bench train",
            "cluster train": "cluster train --kv-store dist_sync",
            "by hand, on the head": "python .../mxnet/tools/launch.py -n 2 -s 2 -H hosts --launcher ssh bash run.sh",
        },
        notes="train_mnist.py, MLP, 30 epochs of the digits from s3://, 2 workers and 2 servers on 2 sandbox nodes.",
    )
