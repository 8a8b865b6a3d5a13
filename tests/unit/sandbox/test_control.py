"""The control side without a running sandbox."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from botocore.utils import should_bypass_proxies

from cluster.config import parse_config
from ec2_sandbox import control
from ec2_sandbox.errors import NotFoundError, SandboxError
from ec2_sandbox.hosts import hosts
from ec2_sandbox.paths import (
    DaemonStatus,
    HostStatus,
    SandboxPaths,
    find_daemon,
    find_processes,
    paths_of,
    read_arguments,
    read_json,
    write_json,
)
from foundation.errors import ConfigError
from foundation.progress import silent

INFO = control.SandboxInfo(
    id="00ff00ff",
    pid=1,
    endpoint_url="https://10.1.0.1:1234",
    ca_bundle=Path("/var/lib/ec2-sandbox/00ff00ff/ca.pem"),
    aws_dir=Path("/var/lib/ec2-sandbox/00ff00ff/aws"),
    region="eu-west-1",
    access_key_id="AKIAEXAMPLE",
    secret_access_key="not a secret",
    checkip_url="https://10.1.0.1:1234/.sandbox/checkip",
    private_cidr="10.1.0.0/16",
    public_cidr="198.18.0.0/20",
)


@pytest.mark.parametrize(
    ("environ", "kept"),
    [({}, ""), ({"NO_PROXY": "a.example, localhost"}, "a.example,"), ({"no_proxy": "b", "NO_PROXY": "a"}, "b,a,")],
)
def test_the_sandbox_is_reached_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], kept: str
) -> None:
    found = control.environment(INFO, environ)
    local = ["localhost", "127.0.0.1", "169.254.169.254", "10.1.0.1", "10.1.0.0/16", "198.18.0.0/20"]
    words = [*filter(None, kept.split(",")), *local]
    assert found["NO_PROXY"] == found["no_proxy"]
    assert sorted(found["NO_PROXY"].split(",")) == sorted(words)
    assert found["NO_PROXY"].startswith(kept)
    for name, value in {"https_proxy": "http://127.0.0.1:9", **found}.items():
        monkeypatch.setenv(name, value)
    assert should_bypass_proxies(INFO.endpoint_url)
    assert not should_bypass_proxies("https://pypi.org")


def test_a_sandbox_belongs_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert paths_of(tmp_path) == paths_of(tmp_path / "link")
    assert paths_of(tmp_path) != paths_of(tmp_path / "other")
    assert len(paths_of(tmp_path).interface) <= 15  # IFNAMSIZ


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SandboxError, match="needs Linux, and this is darwin"):
        control.start(tmp_path, region="us-east-1", report=silent)


def test_other_users_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["/here/cluster", "-c", "my file.toml", "up"])
    with pytest.raises(SandboxError, match="must be root") as caught:
        control.start(tmp_path, region="us-east-1", report=silent)
    assert caught.value.hint == "sudo -E /here/cluster -c 'my file.toml' up"


def test_missing_commands_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosts, "SBIN", ())
    for name in hosts.COMMANDS:
        if name not in ("sshd", "mkfs.ext4"):
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"needs sshd, mkfs\.ext4, which this machine does not have") as caught:
        hosts.check_machine()
    assert caught.value.hint == "ec2-sandbox setup"


def test_invalid_package_names_are_refused() -> None:
    with pytest.raises(ConfigError, match='has the name "--option=x"') as caught:
        parse_config({"name": "demo", "sandbox": {"packages": ["--option=x"]}}, source="cluster.toml")
    assert "sandbox.packages[0]" in caught.value.message


def test_status_is_written_atomically(tmp_path: Path) -> None:
    host = HostStatus(instance_id="i-1", state="running", private_ip="10.0.0.4", public_ip=None, pid=12)
    status = DaemonStatus(pid=7, port=8, hosts=(host,))
    write_json(tmp_path / "status.json", status, mode=0o600)
    assert read_json(tmp_path / "status.json", DaemonStatus) == status
    assert (tmp_path / "status.json").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_damaged_status_means_no_running_sandbox(tmp_path: Path) -> None:
    paths = SandboxPaths(id="00000000", state_dir=tmp_path)
    paths.status_file.write_text('{"pid": 1')
    assert find_daemon(paths) is None


def test_another_process_with_the_daemons_pid_is_not_the_daemon(tmp_path: Path) -> None:
    paths = SandboxPaths(id="00000000", state_dir=tmp_path)
    paths.status_file.write_text(json.dumps({"pid": os.getpid(), "port": 1, "hosts": []}))
    assert find_daemon(paths) is None


def test_a_daemon_that_ended_by_itself_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ec2_sandbox.paths.STATE_ROOT", tmp_path / "sandboxes")
    log = paths_of(tmp_path).daemon_log
    log.parent.mkdir(parents=True)
    log.write_text("starting\n" * 20 + "ModuleNotFoundError: No module named 'one'\n")
    with pytest.raises(NotFoundError, match=r"has crashed; its log ends with:\n(starting\n){9}ModuleNotFoundError"):
        control.find_required(tmp_path)


def test_processes_are_found_by_a_whole_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[subprocess.Popen[Any]] = [
        subprocess.Popen(("sh", "-c", "read _", argument), stdin=subprocess.PIPE)
        for argument in ("ec2-sandbox:0000test", "ec2-sandbox:0000test:i-1", "ec2-sandbox:0000test2",
                         "tail ec2-sandbox:0000test")
    ]  # fmt: skip
    try:
        assert set(find_processes("ec2-sandbox:0000test")) == {marked[0].pid, marked[1].pid}
    finally:
        for process in marked:
            process.kill()
            process.communicate()
    assert read_arguments(marked[0].pid) == []
