"""Compares `cluster train` with launch.py by hand, on the same two sandbox nodes, or at once (see jobs.py).

By hand means the wheel's own tools/launch.py over ssh on the head, with Thread.isAlive restored, which Python has
lacked since 3.9. It runs the same processes on each node with the same script and arguments, and each node has a file
with the environment, as in the guides. ssh is unmodified OpenSSH. launch.py runs once with the settings that
`cluster train` chooses, and once with launch.py's defaults, which leave OMP_NUM_THREADS unset and start as many servers
as workers. The time of `cluster train` includes its additional work: checking the nodes, temporary credentials,
supervision, the record, and the search for leftover processes.

This work takes some time once for each job, so a longer job is measured, too, and one with two workers on each node,
where the settings differ by more than a variable. The cost of supervision during training is measured by the CPU time
of all processes on the nodes other than the job's own, from the first batch to the sixth last epoch. It cannot slow the
training down by more than the CPU time that it uses.
"""

import shlex
from pathlib import Path

from bench.support.command import CLUSTER
from bench.support.jobs import Cluster, Job, clusters, measure, render_table
from bootstrap.runtime.code import SCRIPTS_DIR

SSH_CONFIG = """\
Host *
  IdentityFile ~/.cluster/ssh/id_ed25519
  UserKnownHostsFile ~/.cluster/ssh/known_hosts
  LogLevel ERROR
"""
TRAIN = [CLUSTER, "train", "--kv-store", "dist_sync"]
WITH_OURS = "launch.py by hand, the same settings"
WITH_DEFAULTS = "launch.py by hand, its defaults"
SERVERS = 2  # as many as `cluster train` chooses on two nodes of two cores


def _make_job(*, epochs: int, workers: int = 2, at_once: bool = False) -> Job:
    return Job(
        script="train_mnist.py", arguments=("--network", "mlp", "--disp-batches", "10"), epochs=epochs,
        settings=f"workers = {workers}", workers=workers, at_once=at_once,
    )  # fmt: skip


JOBS = (_make_job(epochs=60), _make_job(epochs=60, workers=4), _make_job(epochs=240, at_once=True))


def prepare_by_hand(cluster: Cluster, job: Job) -> dict[str, list[str]]:
    """Writes the files that launch.py by hand needs to the nodes. Returns the command for each way."""
    nodes = cluster.find_nodes()
    exports, python, tree = cluster.see_process("--kv-store", "local", "-n", "1")
    exports.pop("OMP_NUM_THREADS")  # chosen for one process on a node
    words = [python, f"{tree}/{SCRIPTS_DIR}/{job.script}", *job.words, "--kv-store", "dist_sync"]
    hosts = "".join(f"{node['private_ip']}\n" for node in nodes)
    head = nodes[0]["public_ip"]
    # The setting that `cluster train` chooses for these processes on two cores.
    for file, settings in (("ours.sh", {"OMP_NUM_THREADS": "1"}), ("defaults.sh", {})):
        for node in nodes:
            cluster.write_script(node["public_ip"], file, {**exports, **settings}, words)
    cluster.ssh(head, f"printf %s {shlex.quote(SSH_CONFIG)} >.ssh/config; printf %s {shlex.quote(hosts)} >hosts")
    site = f"{Path(python).parents[1]}/lib/python3*/site-packages"
    launch = f"{python} {site}/mxnet/tools/launch.py -n {job.workers} -H hosts --launcher ssh"
    return {
        WITH_OURS: cluster.ssh_words(head, f"{launch} -s {SERVERS} bash ours.sh 2>&1"),
        WITH_DEFAULTS: cluster.ssh_words(head, f"{launch} bash defaults.sh 2>&1"),
    }


def run() -> str:
    """Runs the jobs in all ways, in turn or at once. Returns the section of RESULTS.md."""
    with clusters(2) as made:
        runs = {job: measure(made, job, prepare_by_hand, TRAIN) for job in JOBS}
    lines = [
        "## `cluster train` beside launch.py by hand",
        "",
        "train_mnist.py, MLP, digits read from s3://, dist_sync, on 2 sandbox nodes. Medians (min to max) of the",
        "rounds; every other round goes the other way around. Ratio: the wall time to that of the same settings by",
        "hand in the same round, since this machine is faster in one minute than in the next. At once: each on a",
        "cluster of its own, so that both have the same machine, and half of it. First batch: from the",
        "command to the first line of MXNet's Speedometer (10 batches). samples/s: of all workers, the median of",
        "all lines. Training CPU: of the job's own processes from the first batch to the sixth last epoch; the work",
        "is the same each time, so that this tells how fast the machine was. CPU beside: of all that runs on the nodes",
        "beside them meanwhile, as a share of it.",
    ]
    for job, found in runs.items():
        lines += ["", *render_table(found, job, base=WITH_OURS)]
    return "\n".join([*lines, "", "- all: `sudo python -m bench train`", ""])
