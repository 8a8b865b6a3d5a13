"""Compares `cluster train` with launcher = "torchrun" to torchrun by hand, on two sandbox nodes each.

By hand means one torchrun on each node over ssh, both started at the same time from this machine, with the same
PyTorch, script, arguments, OMP_NUM_THREADS and rendezvous as in the job of `cluster train`. Its data is on the nodes'
disks before it starts; `cluster train` brings it there in the first round, which does not count. ssh is unmodified
OpenSSH. The time of `cluster train` includes its additional work: checking the nodes, temporary credentials,
supervision, the record, and the search for leftover processes.

The job trains for more than a minute, with one thread per process, because the two nodes share this machine's cores.
Both ways run at once, each on its own cluster, as in bench/train.py. In turn, the machine's speed would differ by more
than the ways do.
"""

import os
import shlex
from pathlib import Path

from bench.support.command import CLUSTER
from bench.support.jobs import Cluster, Job, clusters, measure, render_table
from bootstrap.runtime.code import SCRIPTS_DIR
from node.engines.torch import PORTS

BOOTSTRAP = 'framework = "pytorch"\ntorch = "torch==2.13.0"'
TRAIN = [CLUSTER, "train"]
BY_HAND = "torchrun by hand"
SETTINGS = 'launcher = "torchrun"\nenv = { OMP_NUM_THREADS = "1" }'
JOB = Job(
    script="train_mnist_torch.py", arguments=("--disp-batches", "10"), epochs=300, settings=SETTINGS, at_once=True
)


def prepare_by_hand(cluster: Cluster, job: Job) -> dict[str, list[str]]:
    """Writes a script to each node that starts its torchrun. Returns the command that runs all scripts."""
    nodes = cluster.find_nodes()
    exports, python, tree = cluster.see_process()
    commands = []
    for rank, node in enumerate(nodes):
        words = [
            *(f"{Path(python).parent}/torchrun", "--nnodes", str(len(nodes)), "--node-rank", str(rank)),
            *("--nproc-per-node", "1", "--max-restarts", "0"),
            *("--master-addr", nodes[0]["private_ip"], "--master-port", str(PORTS[0])),
            *(f"{tree}/{SCRIPTS_DIR}/{job.script}", *job.words),
        ]
        cluster.run("cp", "digits", f"{node['name']}:")
        cluster.write_script(node["public_ip"], "by-hand.sh", {**exports, "CLUSTER_DATA_DIR": "digits/"}, words)
        commands.append(shlex.join(cluster.ssh_words(node["public_ip"], "bash by-hand.sh 2>&1")))
    return {BY_HAND: ["bash", "-c", " & ".join([*commands, "wait"])]}


def run() -> str:
    """Runs the job both ways, at once. Returns the section of RESULTS.md."""
    load = os.getloadavg()[0]
    with clusters(2, BOOTSTRAP) as made:
        table = render_table(measure(made, JOB, prepare_by_hand, TRAIN), JOB, base=BY_HAND)
    lines = [
        '## `cluster train` with launcher = "torchrun" next to torchrun by hand',
        "",
        f"Load average (1 minute) before: {load:.1f}.",
        "",
        "train_mnist_torch.py, MLP, DistributedDataParallel over Gloo, digits from the nodes' disks, torch 2.13.0, one",
        "process on each of 2 sandbox nodes, OMP_NUM_THREADS=1. By hand: a torchrun on each node over ssh, both",
        "started at the same moment. Medians (min to max) of the rounds; every other round goes the other way around.",
        "Ratio: the wall time to that by hand in the same round. At once: each on a cluster of its own, so that both",
        "have the same machine, and half of it. First batch: from the command to the script's first line on its speed",
        "(10 batches). End: from the last line of the last epoch to the end of the command. samples/s: of all",
        "ranks, the median of all lines. Training CPU: of the script's processes, from first batch to sixth last",
        "epoch. CPU beside: of everything else on the nodes meanwhile, as a share of it.",
        "",
        *table,
    ]
    return "\n".join([*lines, "", "- all: `sudo python -m bench torch`", ""])
