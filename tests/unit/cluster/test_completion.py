"""What a shell completes, asked as the shells' scripts ask."""

import os
import subprocess
from pathlib import Path

import pytest

from project import CLUSTER


def complete(folder: Path, *words: str) -> list[str]:
    """What may stand in place of the last word."""
    env = {
        **os.environ,
        "_CLUSTER_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("cluster", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([CLUSTER], cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("st",), ["status", "stop", "start"]),
        (("data", "p"), ["put", "pack"]),
        (("train", "--kv"), ["--kv-store"]),
        (("train", "--kv-store", "dist_s"), ["dist_sync", "dist_sync_device"]),
        (("ssh", "node-1"), ["node-1", "node-10", "node-11"]),
        (("exec", "--node", "node-11"), ["node-11"]),
    ],
)
def test_words(tmp_path: Path, words: tuple[str, ...], found: list[str]) -> None:
    (tmp_path / "cluster.toml").write_text('name = "demo"\n[provision]\nnodes = 12\n')
    below = tmp_path / "below"
    below.mkdir()
    assert complete(tmp_path, *words) == found
    assert complete(below, *words) == found


def test_a_broken_description_completes_nothing(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text("nodes = two")
    assert complete(tmp_path, "ssh", "node") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts(tmp_path: Path, shell: str) -> None:
    done = subprocess.run([CLUSTER, "completion", shell], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"_CLUSTER_COMPLETE={shell}_complete" in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)
