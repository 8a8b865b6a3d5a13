"""Hosts from hostfiles and from the allocations of batch schedulers."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bootstrap.ssh.host_list import HostsConfig, find_batch_job, parse_slurm, read_host_list
from foundation.errors import ConfigError, UsageError
from foundation.settings import check
from node.protocol import BatchJob


def test_numbers_of_tasks_for_other_hosts_are_refused() -> None:
    """As in a step of srun on some of the hosts. Without -H, the step's job then has no known allocation."""
    with pytest.raises(UsageError, match=r"3 hosts, but the numbers of tasks \(2\(x2\)\) are for 2"):
        parse_slurm("a b c", "2(x2)")


@pytest.mark.parametrize("line", ["gpu1 slots=2", "gpu1:2", "gpu1,gpu2", "gpu[1-4]"])
def test_other_forms_of_a_line_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "hosts").write_text(f"gpu0\n{line}\n")
    with pytest.raises(UsageError, match="is not \\[user@\\]host") as caught:
        read_host_list(str(tmp_path / "hosts"), {})
    assert line in caught.value.message
    assert "name it again" in str(caught.value.hint)


def test_the_allocation_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "nodes"
    file.write_text("\ufeff# all\r\nn1  # the head\r\n\nn1\nme@n2:2222")
    assert read_host_list("pbs", {"PBS_NODEFILE": str(file)}) == ["n1", "n1", "me@n2:2222"]
    assert read_host_list(str(file), {}) == ["n1", "n1", "me@n2:2222"]
    file.write_text("n1 2 all.q@n1 UNDEFINED\n")
    assert read_host_list("sge", {"PE_HOSTFILE": str(file)}) == ["n1", "n1"]
    called: list[Any] = []

    def run(words: Any, **_: Any) -> Any:
        called.append(words)
        return subprocess.CompletedProcess(words, 0, "gpu07\ngpu08\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    slurm = {"SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_TASKS_PER_NODE": "4(x2)"}
    assert read_host_list("slurm", slurm) == ["gpu07", "gpu08"]  # with --exclusive, these are the CPUs
    assert read_host_list("slurm", {**slurm, "SLURM_NTASKS": "8"}) == ["gpu07"] * 4 + ["gpu08"] * 4
    assert read_host_list("slurm", {**slurm, "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"}) == ["gpu07", "gpu08"]
    assert called[0] == ("scontrol", "show", "hostnames", "gpu[07-08]")


@pytest.mark.parametrize(
    ("source", "environ", "message"),
    [
        ("pbs", {}, r"-H pbs: \$PBS_NODEFILE is not set"),
        ("slurm", {"SLURM_JOB_NODELIST": ""}, r"-H slurm: \$SLURM_JOB_NODELIST is not set"),
        ("sge", {}, r"-H sge: \$PE_HOSTFILE is not set"),
        ("pbs", {"PBS_NODEFILE": "/nowhere"}, r"-H pbs: \$PBS_NODEFILE = /nowhere: cannot be read: No such file"),
        ("sge", {"PE_HOSTFILE": "empty"}, r"-H sge: \$PE_HOSTFILE = empty: names no host"),
        ("./pbs", {"PBS_NODEFILE": "/nowhere"}, "--hostfile ./pbs: cannot be read: No such file"),
        ("empty", {}, "--hostfile empty: names no host"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, environ: dict[str, str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    with pytest.raises(UsageError, match=message) as caught:
        read_host_list(source, environ)
    assert caught.value.hint


def test_scontrol_is_missing_or_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    environ = {"SLURM_JOB_NODELIST": "n[1-2]"}
    with pytest.raises(UsageError, match=r"scontrol show hostnames n\[1-2\]: .*No such file"):
        read_host_list("slurm", environ)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Invalid hostlist' >&2; exit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    with pytest.raises(UsageError, match="Invalid hostlist") as caught:
        read_host_list("slurm", environ)
    assert "-H FILE" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("more", "number"),
    [
        ({}, "7"),
        ({"SGE_TASK_ID": "undefined"}, "7"),
        ({"SGE_TASK_ID": "3"}, "7.3"),
        ({"PE_HOSTFILE": "/nowhere"}, None),
    ],
)
def test_the_batch_job_of_this_process(tmp_path: Path, more: dict[str, str], number: str | None) -> None:
    (tmp_path / "hosts").write_text("n1 2 all.q@n1 UNDEFINED\nn2 2 all.q@n2 UNDEFINED\n")
    found = find_batch_job({"PE_HOSTFILE": str(tmp_path / "hosts"), "JOB_ID": "7", **more})
    assert found == (number and BatchJob("sge", number, ("n1", "n1", "n2", "n2")))


@pytest.mark.parametrize("name", ["", "-oProxyCommand=id", "a b", "lab:0", "$(id)", "a@b@c"])
def test_what_is_not_a_host_is_refused_in_cluster_toml(name: str) -> None:
    with pytest.raises(ConfigError, match=r"names\[1\] = .*must be a host that ssh reaches"):
        check(HostsConfig, {"names": ["lab", name]}, source="cluster.toml")
