"""`make test-aws`: runs the main job in a real AWS account, and adds what it saw to bench/AWS.md.

Two small instances without GPUs, and then one GPU spot instance, if the account's quota and EC2's capacity allow it:
`data put`, `up`, `train`, a killed worker, `down` and its receipt. It shows plans and prices first, and asks. It
deletes what it created, also after Ctrl-C; if it is killed, the clusters end by their leases. What it cannot delete, it
names, and keeps the folder from which `cluster down` deletes it.

`--cloud sandbox` rehearses it on this machine: the sandbox plays the account.
"""

import argparse
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.support.command import CLUSTER

RESULTS = Path(__file__).with_name("AWS.md")
LIFETIME, BUDGET_USD = "1h", 1  # of each of the two clusters
KILLED = 137
PASSED = "The main job passed, and nothing is left."
GPU_TYPE = "g4dn.xlarge"
TOML = """\
name = "{name}"
cloud = "{cloud}"
[provision]
region = "{region}"
nodes = {nodes}
instance_type = "{type}"
market = "{market}"
[lease]
lifetime = "{lifetime}"
budget_usd = {budget_usd}
[train]
script = "train_mnist.py"
args = ["--network", "mlp", "--num-epochs", "5"]
kv_store = "{kv_store}"
[data]
url = "s3://{bucket}/digits/"
results = "s3://{bucket}/results/"
"""


class StepError(Exception):
    """A command of the run ended otherwise than it should."""


class NotLaunchedError(StepError):
    """`up` failed."""


@dataclass(kw_only=True)
class Run:
    """The clusters of one run, in folders below `folder`. name: what the names of clusters and buckets begin with.

    rows: of the table: a command, its exit code, and its seconds. buckets: by cluster, those to delete.
    """

    name: str
    folder: Path
    cloud: str
    rows: list[tuple[str, int, float]] = field(default_factory=list)
    buckets: dict[str, str] = field(default_factory=dict)

    def type(self, cluster: str, *words: str, code: int = 0, show: bool = False) -> str:
        """Runs `cluster WORDS...` for one of the clusters, and returns its stdout.

        Its messages appear. show: its stdout does, too. Raises StepError for another exit code than `code`.
        """
        command = shlex.join(["cluster", *words])
        print(f"\n{cluster}$ {command}", flush=True)
        began_at = time.monotonic()
        process = subprocess.Popen([CLUSTER, *words], cwd=self.folder / cluster, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            output = process.stdout.read()
            ended = process.wait()
        except KeyboardInterrupt:  # the command gets Ctrl-C as well, and cleans up
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        if show:
            print(output, flush=True)
        self.rows.append((f"{cluster}: `{command}`", ended, time.monotonic() - began_at))
        if ended != code:
            error = NotLaunchedError if words[0] == "up" else StepError
            raise error(f"{command}: exit code {ended} instead of {code}")
        return output

    def kill_worker(self, cluster: str) -> None:
        """Kills a worker of a running job with SIGKILL; the job must end with its exit code."""
        job = self.type(cluster, "train", "--detach", "--", "--num-epochs", "100000").split()[-1]
        while True:
            record = json.loads(self.type(cluster, "jobs", job, "--json"))[0]
            workers = [one for one in record["processes"] if one["role"] == "worker" and one["pid"]]
            if record["state"] == "running" and workers:
                break
            if record["state"] not in ("starting", "running"):
                raise StepError(f"job {job} is {record['state']} before a worker could be killed")
            time.sleep(1)
        self.type(cluster, "exec", "--node", workers[-1]["node"], "--", "sudo", "kill", "-9", str(workers[-1]["pid"]))
        self.type(cluster, "logs", "--follow", "--plain", job, code=KILLED)

    def main_job(self, cluster: str) -> None:
        """Runs what the README promises, except `down`."""
        bucket = f"s3://{self.name}-{cluster}/"
        self.buckets[cluster] = bucket
        self.type(cluster, "data", "put", "--create-bucket", "../digits", f"{bucket}digits/")
        self.type(cluster, "up", "--yes")
        self.type(cluster, "verify", show=True)
        self.type(cluster, "train", "--plain")
        self.kill_worker(cluster)

    def end(self, cluster: str) -> str:
        """Deletes a cluster and its bucket. Returns the receipt."""
        receipt = self.type(cluster, "down", "--yes", "--json")
        if cluster in self.buckets:
            self.type(cluster, "data", "rm", "--recursive", "--yes", self.buckets[cluster])
        if self.cloud == "sandbox":
            self.type(cluster, "sandbox", "stop", "--yes")
        return json.dumps(json.loads(receipt))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs everything. Returns 0, or 1 if a step failed or something was left."""
    parser = argparse.ArgumentParser(prog="make test-aws", description="Runs the main job in your AWS account.")
    parser.add_argument("--cloud", choices=["aws", "sandbox"], default="aws")
    parser.add_argument("--region", default=os.environ.get("AWS_REGION", "us-east-1"))
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--results", type=Path, help=f"default: {RESULTS.name}; none for a rehearsal")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = f"cluster-test-{secrets.token_hex(3)}"
    run = Run(name=name, folder=Path(tempfile.mkdtemp(prefix=f"{name}-")), cloud=asked.cloud)
    clusters = write_clusters(run, region=asked.region)
    for cluster in clusters:
        run.type(cluster, "up", "--dry-run", show=True)
    print(f"\nThis costs less than ${len(clusters) * BUDGET_USD}: each cluster ends after {LIFETIME} at most.")
    if not asked.yes and input("Launch them, and delete everything afterwards? [y/N] ").lower() not in ("y", "yes"):
        shutil.rmtree(run.folder)
        return 1
    run.rows.clear()
    outcome = attempt(run, clusters)
    results = asked.results or (RESULTS if asked.cloud == "aws" else Path(os.devnull))
    write_results(results, run, outcome, where=f"{asked.cloud}, {asked.region}")
    print("\n".join(outcome), flush=True)
    return 0 if outcome[-1] == PASSED else 1


def write_clusters(run: Run, *, region: str) -> tuple[str, ...]:
    """Writes a folder with cluster.toml for each cluster. Returns their names: two small nodes, and a GPU on spot."""
    kinds = {"cpu": (2, "c6i.large", "on-demand", "dist_sync"), "gpu": (1, GPU_TYPE, "spot", "local")}
    for cluster, (nodes, type_, market, kv_store) in kinds.items():
        (run.folder / cluster).mkdir()
        text = TOML.format(
            name=f"{run.name}-{cluster}", cloud=run.cloud, region=region, nodes=nodes, type=type_, market=market,
            kv_store=kv_store, lifetime=LIFETIME, budget_usd=BUDGET_USD, bucket=f"{run.name}-{cluster}",
        )  # fmt: skip
        (run.folder / cluster / "cluster.toml").write_text(text)
    return tuple(kinds)


def attempt(run: Run, clusters: Sequence[str]) -> list[str]:
    """Runs the job on each cluster, and deletes everything. Returns lines, of which the last is the outcome."""
    messages: list[str] = []
    has_failed = False
    try:
        run.type(clusters[0], "data", "demo", "../digits")
        for cluster in clusters:
            try:
                run.main_job(cluster)
            except StepError as error:
                messages.append(f"{cluster}: {error}")
                has_failed |= cluster == "cpu" or not isinstance(error, NotLaunchedError)  # a GPU needs a quota
    except KeyboardInterrupt:
        has_failed = True
        messages.append("interrupted")
    finally:
        left = delete(run, clusters, messages)
    return [*messages, "Something failed." if has_failed or left else PASSED]


def delete(run: Run, clusters: Sequence[str], messages: list[str]) -> bool:
    """Deletes the clusters and buckets. Adds receipts and failures to `messages`. Returns whether anything is left.

    Then the folders stay: `cluster down` needs them.
    """
    is_left = False
    for cluster in clusters:
        try:
            messages.append(f"receipt of {cluster}: {run.end(cluster)}")
        except StepError as error:
            is_left = True
            bucket = run.buckets.get(cluster, "no bucket")
            messages.append(f"{cluster}: {error}; run cluster down in {run.folder / cluster}, and look at {bucket}")
    if not is_left:
        shutil.rmtree(run.folder)
    return is_left


def write_results(path: Path, run: Run, outcome: Sequence[str], *, where: str) -> None:
    """Appends a section with the date, the region, each command, and the receipts."""
    rows = [f"| {what} | {code} | {seconds:.0f} |" for what, code, seconds in run.rows]
    table = ["| command | exit code | seconds |", "|---|---|---|", *rows]
    before = path.read_text() if path.exists() else ""
    title = f"## {datetime.now(UTC):%Y-%m-%d}, {where}"
    path.write_text("\n".join([before, title, "", *table, "", *(f"- {line}" for line in outcome), ""]))


if __name__ == "__main__":
    sys.exit(main())
