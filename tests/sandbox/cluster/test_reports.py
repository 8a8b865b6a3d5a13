"""`cluster report` of real jobs, one of whose ranks computes 1.5 times as long as the other, in a browser."""

import json
import re
from pathlib import Path

import pytest

from chromium import load, needs_chromium
from project import Project, cluster_in, shipped
from real_torch import TORCH, real_torch

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, needs_chromium]

STEPS = 150
STEP = """
import time
def compute(rank):
    until = time.process_time() + 0.1 * (1.5 if rank == 1 else 1)
    while time.process_time() < until:
        sum(range(10000))
def show(step):
    print("Epoch[%d] Batch [%d-%d]\\tSpeed: 320.00 samples/sec\\tloss=%.4f"
        % (step // 50, step % 50 - 1, step % 50, 1 / (1 + step)), flush=True)
"""
MXNET = f"""{STEP}
import mxnet as mx
store, ones = mx.kv.create("dist_sync"), mx.nd.ones(4)
store.init(0, ones)
for step in range({STEPS}):
    compute(store.rank)
    store.push(0, ones)
    store.pull(0, ones)
    ones.wait_to_read()
    show(step)
"""
PYTORCH = f"""{STEP}
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range({STEPS}):
    compute(dist.get_rank())
    dist.all_reduce(torch.ones(4))
    show(step)
dist.destroy_process_group()
"""


def check_report(nodes: Project, program: str) -> None:
    job = nodes.run("train", "-n", "2", "--env", "OMP_NUM_THREADS=1", "--detach", "--", "python", "-c", program)
    nodes.run("logs", "-f", job.stdout.strip())
    page = Path(nodes.run("report", "-o", str(nodes.directory / "page.html")).stdout.strip())
    console, dom = load(page, "--dump-dom", "--window-size=390,844")
    assert console == []
    rows = map(json.loads, nodes.run("jobs", "--metrics", "--json").stdout.splitlines())
    losses = [row["numbers"]["loss"] for row in rows if row["rank"] == 0]
    [document] = json.loads(nodes.run("report", "--json").stdout)
    assert [value for _, value in document["curves"]["loss"]["ranks"]["rank 0"]["points"]] == losses
    figure = re.search(r"<figcaption>loss</figcaption>.*?</figure>", dom, re.DOTALL)
    assert figure is not None
    curve = re.search(r'class="curve s0"[^>]* d="([^"]*)"|d="([^"]*)"[^>]* class="curve s0"', figure[0])
    assert curve is not None
    drawn = re.findall(r"-?[\d.]+ -?[\d.]+", curve[1] or curve[2])
    times = {at for at, _ in document["curves"]["loss"]["ranks"]["rank 0"]["points"]}
    assert len(losses) == STEPS
    assert len(drawn) == len(times)  # lines that arrive together have one time
    assert document["slowest"]["label"] == "rank 1"
    assert "The slowest is rank 1: worker 1 on " in dom  # MXNet chooses the ranks


def test_the_report_of_a_real_mxnet_job(two_nodes: Project) -> None:
    with two_nodes.configured(kv_store="dist_sync"):
        check_report(two_nodes, MXNET)


def test_the_report_of_a_real_torch_job(tmp_path: Path) -> None:
    real_torch()  # skips the test if pip's indexes have none
    with cluster_in(tmp_path, shipped(framework="pytorch", torch=TORCH)) as nodes:
        check_report(nodes, PYTORCH)
