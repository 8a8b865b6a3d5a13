"""Compares hosts of this checkout's sandbox with those of another checkout's, in turn, while both sandboxes run.

git worktree add ../before COMMIT && make -C ../before install
sudo python -m bench.sandbox_beside ../before
"""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from bench.__main__ import write_section
from bench.provision import message
from bench.sandbox import IMAGE, SIZES, host_memory_mb, launch, terminate
from bench.support.command import CLUSTER
from bench.support.rounds import describe_machine

ROUNDS = 9
TITLE = "## The sandbox beside another commit"
SETTINGS = 'name = "beside"\ncloud = "sandbox"\n'


@contextmanager
def running(command: str) -> Iterator[tuple[Any, str, Path]]:
    """Starts a sandbox by a checkout's command. Yields an EC2 client, an image, and the sandbox's folder."""
    with tempfile.TemporaryDirectory(prefix="cluster-bench-") as name:
        folder = Path(name)
        (folder / "cluster.toml").write_text(SETTINGS)
        subprocess.run((command, "sandbox", "start"), cwd=folder, check=True, capture_output=True)
        try:
            shell = subprocess.run(
                ("bash", "-euc", f'eval "$({command} sandbox env)"; exec env -0'),
                cwd=folder, check=True, capture_output=True, text=True,
            )  # fmt: skip
            env = dict(line.split("=", 1) for line in shell.stdout.split("\0") if "=" in line)
            session = boto3.Session(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], region_name="us-east-1")
            url, ca = env["AWS_ENDPOINT_URL"], env["AWS_CA_BUNDLE"]
            parameters = session.client("ssm", endpoint_url=url, verify=ca)
            image = parameters.get_parameter(Name=IMAGE)["Parameter"]["Value"]
            yield session.client("ec2", endpoint_url=url, verify=ca), image, folder
        finally:
            subprocess.run((command, "sandbox", "stop"), cwd=folder, check=True, capture_output=True)


def run(other: Path) -> str:
    """Runs the benchmark and returns its section of RESULTS.md."""
    commit = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"), cwd=other, capture_output=True, text=True, check=True
    )
    names = ("this", commit.stdout.strip())
    lines = [
        TITLE,
        "",
        describe_machine(),
        "",
        f"Medians of {ROUNDS} rounds in turn (min to max), after one that does not count.",
        "",
        f"| what | {names[0]} | {names[1]} | ratio |",
        "|---|---|---|---|",
    ]
    with running(CLUSTER) as this, running(str(other / ".venv/bin/cluster")) as before:
        sandboxes = dict(zip(names, (this, before), strict=True))
        for count in SIZES:
            taken: dict[str, dict[str, list[float]]] = {what: {name: [] for name in names} for what in ("up", "gone")}
            for number in range(ROUNDS + 1):
                for name, (ec2, image, _) in sandboxes.items():
                    up_s, ids = launch(ec2, image, count)
                    gone_s = terminate(ec2, ids)
                    if number:
                        taken["up"][name].append(up_s)
                        taken["gone"][name].append(gone_s)
            lines.append(_row(f"{count} hosts, RunInstances to all running, s", [*taken["up"].values()]))
            lines.append(_row(f"{count} hosts, TerminateInstances to all gone, s", [*taken["gone"].values()]))
            message("\n".join(lines[-2:]))
        memory = []
        for ec2, image, folder in sandboxes.values():
            _, ids = launch(ec2, image, max(SIZES))
            memory.append([host_memory_mb(folder)])
            terminate(ec2, ids)
        lines.append(_row(f"an idle host of {max(SIZES)}, own memory (PSS), MB", memory))
    return "\n".join([*lines, "", "- `sudo python -m bench.sandbox_beside ../before`", ""])


def _row(what: str, found: list[list[float]]) -> str:
    this, before = (statistics.median(values) for values in found)
    cells = [f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" for values in found]
    return f"| {what} | {' | '.join(cells)} | {this / before:.2f} |"


if __name__ == "__main__":
    write_section(TITLE, run(Path(sys.argv[1]).resolve()))
