"""A job runs again from its capsule, and a problem report has no secrets, by the real commands."""

import re
import tarfile
from collections.abc import Iterator

import pytest

from job_steps import borrowed
from project import Project

pytestmark = pytest.mark.sandbox

TRAIN = """
import argparse, os
import mxnet as mx
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--kv-store")
mx.random.seed(parser.parse_args().seed)
data, net = mx.nd.random.normal(shape=(64, 8)), mx.gluon.nn.Dense(1)
net.initialize(mx.init.Xavier())
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 4})
for epoch in range(5):
    with mx.autograd.record():
        loss = ((net(data) - data.sum(axis=1, keepdims=True)) ** 2).mean()
    loss.backward()
    trainer.step(64)
    print("Epoch[%d] loss=%.9f" % (epoch, loss.asscalar()), flush=True)
print("login with password=hunter2hunter2 as", os.environ["GREETING"])
"""
SECRETS = (
    "hunter2hunter2",
    "canaryOfAToken0123",
    "canaryInAnAddress0123",
    "canaryWithAnOrdinaryName0123",
    "canaryHere0123",
)


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    with (
        borrowed(two_nodes),
        two_nodes.configured(
            env={"MY_TOKEN": SECRETS[1], "DATABASE": f"postgres://me:{SECRETS[2]}@10.0.0.9/db", "GREETING": SECRETS[3]}
        ),
    ):
        (two_nodes.directory / "train.py").write_text(TRAIN)
        two_nodes.env["SOME_API_KEY"] = SECRETS[4]
        yield two_nodes
        del two_nodes.env["SOME_API_KEY"]


def find_losses(text: str) -> list[str]:
    return re.findall(r"Epoch\[\d\] loss=\S+", text)


def read_all(project: Project, name: str) -> str:
    with tarfile.open(project.directory / name) as archive:
        assert sum(one.size for one in archive if not one.name.startswith("files/")) < 1_000_000
        return "\n".join(archive.extractfile(one).read().decode(errors="replace") for one in archive if one.isreg())


def test_a_job_runs_again_and_a_report_has_no_secrets(nodes: Project) -> None:
    """With the files of then, which are only on the head, although others are here now."""
    done = nodes.run("train", "-n", "1", "--kv-store", "local", "train.py", "--seed", "7")
    losses = find_losses(done.stdout)
    assert len(set(losses)) == 5
    (nodes.directory / "train.py").write_text("print('another')")
    assert nodes.run("capsule", "-o", "run.capsule").stdout == "run.capsule\n"
    found = read_all(nodes, "run.capsule")
    assert find_losses(found)[:5] == losses
    assert '"read_only": []' in found  # the health of its nodes
    assert "hunter2hunter2" not in found.replace(TRAIN, "")
    assert all(secret not in found for secret in (SECRETS[1], SECRETS[2], SECRETS[4]))
    shown = nodes.run("replay", "run.capsule", "--dry-run").stdout
    assert re.findall(r"^(differs|missing) .*", shown, re.MULTILINE) == []
    assert shown.startswith("same: command, files, processes, environment, ")
    assert find_losses(nodes.run("replay", "run.capsule").stdout) == losses
    assert (nodes.directory / "train.py").read_text() == "print('another')"
    assert nodes.run("debug").stdout == "cluster-debug.tar.gz\n"
    report = read_all(nodes, "cluster-debug.tar.gz")
    assert find_losses(report) == losses
    assert '"instance_type": "' in report
    assert [secret for secret in (*SECRETS, "123456789012") if secret in report] == []
