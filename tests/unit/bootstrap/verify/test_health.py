"""The health of a node: the output of its programs, the behavior of its disks, and the verdict."""

import errno
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from msgspec import to_builtins

from bootstrap.verify.checks import Offset
from bootstrap.verify.node_health import (
    Findings,
    NodeFinding,
    check_health,
    describe_health,
    find_unhealthy,
)
from cluster.nodes.health_check import refuse_unhealthy
from foundation.decode import convert
from foundation.errors import ClusterError
from local_nodes import LocalConnection, LostConnection, channels, local_node
from node import health
from node.setup import health_report as observe
from node_facts import make_programs
from provision.preflight.machines import Hardware

# Messages of the kernel on machines with NVIDIA's GPUs.
BOOT = """\
[    0.000000] Linux version 6.8.0-1021-aws (buildd@lcy02-amd64-095) (x86_64-linux-gnu-gcc-12)
[    4.120011] nvidia: loading out-of-tree module taints kernel.
[    4.523112] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.127.05  Release Build
"""
FELL_OFF = """\
[ 4254.197816] NVRM: GPU at PCI:0000:5d:00: GPU-f1906b9b-557a-e961-045c-9fe4be3ce012
[ 4254.197854] NVRM: GPU Board Serial Number: 1653923026510
[ 4254.197860] NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 4254.197871] NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.
"""
FELL_OFF_DATED = (
    "Mar 21 20:18:56 ip-10-0-0-4 kernel: [   65.315783] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', "
    "name=<unknown>, GPU has fallen off the bus.\n"
)
FELL_OFF_OLD = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"
REMAPPED = (
    "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.\n"
)
OF_PROGRAM = (
    "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 0)\n"
)
CHANNEL = "NVRM: Xid (0000:03:00): 14, Channel 00000001\n"

LOST, NOT_SUPPORTED = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_SUPPORTED
# What NVML reports for a GPU: numbers of errors in place of values that it does not.
A10G: dict[str, Any] = {
    "Name": "NVIDIA A10G",
    "PciInfo": SimpleNamespace(busId="00000000:00:1E.0"),
    "TotalEccErrors": 0,
    "RemappedRows": (0, 0, 0, 0),
    "RetiredPagesPendingStatus": pynvml.NVMLError(NOT_SUPPORTED),
    "CurrentClocksThrottleReasons": 1,  # idle
    "HandleByIndex": None,
}


def fake_nvml(monkeypatch: pytest.MonkeyPatch, *gpus: dict[str, Any], init: Callable[[], None] = lambda: None) -> None:
    """Has NVML report these GPUs, each as A10G but for its own values."""

    def answer(name: str, gpu: int) -> Any:
        found = (A10G | gpus[gpu])[name]
        if isinstance(found, pynvml.NVMLError):
            raise found
        return gpu if name == "HandleByIndex" else found

    for name in A10G:
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda gpu, *_, name=name: answer(name, gpu))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(gpus))
    monkeypatch.setattr(pynvml, "nvmlInit", init)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)


def report(**more: Any) -> health.Report:
    """The report of a healthy node without GPUs."""
    healthy: dict[str, Any] = {
        "now": 1_700_000_000.0,
        "memory_mib": 7900,
        "read_only": [],
        "gpus": None,
        "driver_error": None,
        "xids": [],
        "kept": {},
    }
    return convert(to_builtins({**healthy, **more}), health.Report)


# -- NVML --------------------------------------------------------------------------------------------------------------


def test_every_fault_that_nvml_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, unknown = pynvml.NVMLError(LOST), pynvml.NVMLError(NOT_SUPPORTED)
    fake_nvml(
        monkeypatch,
        {"Name": "Tesla T4", "RemappedRows": unknown, "RetiredPagesPendingStatus": 0},
        {"TotalEccErrors": 2},
        {"RemappedRows": (0, 0, 1, 0)},
        {"RemappedRows": (0, 0, 1, 1)},
        {"RetiredPagesPendingStatus": 1},
        {"CurrentClocksThrottleReasons": 0x48},
        {"CurrentClocksThrottleReasons": 0x20},
        {"CurrentClocksThrottleReasons": 0x80},
        {"CurrentClocksThrottleReasons": 0x1 | 0x2 | 0x4 | 0x10 | 0x100},  # idle, or limits that somebody set
        {"HandleByIndex": lost},
        {"TotalEccErrors": lost},
        {"TotalEccErrors": unknown, "RemappedRows": unknown, "CurrentClocksThrottleReasons": unknown},  # without ECC
    )
    found, error = observe.describe_gpus(10.0)
    assert found is not None
    assert error is None
    assert found[0] == health.Gpu(
        name="Tesla T4", bus="00000000:00:1E.0", ecc_uncorrected=0, retired_pending=False, throttled=()
    )
    assert [health.judge_gpu(gpu) for gpu in found] == [
        [],
        ["2 uncorrected ECC errors"],
        ["a row of its memory waits to be remapped, which needs a reset"],
        ["a row of its memory could not be remapped"],
        ["a page of its memory waits to be retired, which needs a reset"],
        ["clocks throttled: hardware slowdown, hardware thermal slowdown"],
        ["clocks throttled: software thermal slowdown"],
        ["clocks throttled: hardware power brake"],
        [],
        ["GPU is lost"],
        ["GPU is lost"],
        [],
    ]


# -- the kernel log ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (BOOT + OF_PROGRAM + CHANNEL + REMAPPED, []),
        (FELL_OFF_DATED, ["Xid 79 (0000:01:00): fell off the bus"]),
        (
            BOOT + FELL_OFF + FELL_OFF + FELL_OFF_OLD,
            ["Xid 79 (0000:5d:00): fell off the bus", "Xid 79 (0000:01:00): fell off the bus"],
        ),
    ],
)
def test_the_kernel_log(log: str, found: list[str]) -> None:
    assert health.judge(report(xids=health.parse_xids(log))) == found


def test_the_ways_to_the_kernel_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    make_programs(tmp_path, dmesg="echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    make_programs(tmp_path, sudo='shift; [ "$1" = dmesg ] && echo "NVRM: Xid (PCI:0000:01:00): 79, off"')
    assert health.parse_xids(observe.read_kernel_log()) == (("0000:01:00", 79, "off"),)
    make_programs(tmp_path, sudo="exit 1")
    make_programs(tmp_path, journalctl="echo 'kernel: NVRM: Xid (PCI:0000:02:00): 48, DBE'")
    assert health.parse_xids(observe.read_kernel_log()) == (("0000:02:00", 48, "DBE"),)
    make_programs(tmp_path, journalctl="exit 1")
    assert observe.read_kernel_log() is None


# -- disks and memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "found"), [(errno.EROFS, "Read-only file system"), (errno.ENOSPC, None), (errno.EDQUOT, None)]
)
def test_disks_that_cannot(number: int, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkstemp", fail)
    expected = () if found is None else ((str(tmp_path), found),)
    assert observe.find_read_only([str(tmp_path)]) == expected
    messages = [] if found is None else [f"{tmp_path} cannot be written to: {found}"]
    assert health.judge(report(read_only=expected)) == messages


@pytest.mark.parametrize(
    ("found_mib", "type_mib", "is_short"),
    [
        (467, 512, False),  # t3.nano
        (2014716, 2097152, False),  # p5.48xlarge
        (12000, 16384, True),  # a module of four is missing
    ],
)
def test_missing_memory(found_mib: int, type_mib: int, *, is_short: bool) -> None:
    assert health.is_short(found_mib, type_mib) is is_short


# -- all nodes together ------------------------------------------------------------------------------------------------

TYPE = Hardware(gpus=8, memory_mib=2097152)
H100S = [{"name": "NVIDIA H100 80GB HBM3", "ecc_uncorrected": 0, "throttled": []}] * 8


def findings(reports: dict[str, health.Report]) -> Findings:
    return {name: NodeFinding(report=one, offset=Offset(ahead_s=0.0, error_s=0.1)) for name, one in reports.items()}


@pytest.mark.parametrize(
    ("second", "reasons"),
    [
        ({}, None),
        ({"gpus": H100S[:7]}, ("7 of 8 GPUs",)),
        ({"gpus": [{**H100S[0], "ecc_uncorrected": 2}, *H100S[1:]]}, ("GPU 0: 2 uncorrected ECC errors",)),
        ({"gpus": None}, None),  # no driver: the image's fault, not the node's
        ({"memory_mib": 1500000}, ("1500000 MiB of memory, and its type has 2097152 MiB",)),
        ({"read_only": [["/home", "mounted read-only"]]}, ("/home cannot be written to: mounted read-only",)),
        (
            {"gpus": H100S[:7], "xids": [["0000:ca:00", 79, "GPU has fallen off the bus."]]},
            ("7 of 8 GPUs", "Xid 79 (0000:ca:00): fell off the bus"),
        ),
    ],
)
def test_one_of_two_nodes(second: dict[str, Any], reasons: tuple[str, ...] | None) -> None:
    whole = {"memory_mib": 2014716, "gpus": H100S}
    found = findings({"node-0": report(**whole), "node-1": report(**{**whole, **second})})
    expected = {} if reasons is None else {"node-1": reasons}
    assert find_unhealthy(found, dict.fromkeys(("node-0", "node-1"), TYPE)) == expected


def test_memory_that_all_nodes_lack_is_no_fault_of_one() -> None:
    """The kernel may be configured to use less, or the nodes may be a sandbox on a small machine."""
    short = findings({"node-0": report(), "node-1": report()})
    assert find_unhealthy(short, dict.fromkeys(("node-0", "node-1"), TYPE)) == {}


# -- on nodes ----------------------------------------------------------------------------------------------------------


def test_nodes_are_looked_at_over_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that is lost meanwhile leaves the findings of the others."""
    monkeypatch.setenv("HOME", str(tmp_path))
    nodes = [*(local_node(index) for index in range(2)), local_node(2, LostConnection())]
    try:
        found, errors = describe_health(nodes)
    finally:
        for channel in channels(nodes):
            channel.end()
    assert list(found) == ["node-0", "node-1"]
    assert {name: error.hint for name, error in errors.items()} == {"node-2": "cluster status"}
    assert find_unhealthy(found, {}) == {}
    assert all(abs(one.offset.ahead_s) <= one.offset.error_s for one in found.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("vendors", [["0x8086", "0x10de"], ["0x8086"]])
def test_a_driver_that_has_no_gpu_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendors: list[str]
) -> None:
    """As on a CPU type with a Deep Learning AMI, which has the driver's library."""

    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    for number, vendor in enumerate(vendors):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
    monkeypatch.setattr(observe, "DEVICES", f"{tmp_path}/*/vendor")
    fake_nvml(monkeypatch, init=fail)
    assert observe.describe_gpus(10.0) == (None, "Driver Not Loaded" if "0x10de" in vendors else None)


def test_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, init=lambda: time.sleep(5))
    assert observe.describe_gpus(0.1) == (None, "did not answer within 0.1 s")


@pytest.mark.parametrize(
    ("unhealthy", "named", "refused"),
    [
        ({"node-1": ("7 of 8 GPUs",)}, (), None),
        ({"node-0": ("7 of 8 GPUs",)}, (), "node-0, the head, is unhealthy: 7 of 8 GPUs"),
        ({"node-1": ("7 of 8 GPUs",)}, ("node-1:22",), "node-1, which [train] hosts names, is unhealthy: 7 of 8 GPUs"),
    ],
)
def test_what_no_job_can_do_without(
    unhealthy: dict[str, tuple[str, ...]], named: tuple[str, ...], refused: str | None
) -> None:
    hosts = [LocalConnection(local_node(index).host).host for index in range(2)]
    if refused is None:
        refuse_unhealthy(unhealthy, hosts, named=named)
        return
    with pytest.raises(ClusterError) as error:
        refuse_unhealthy(unhealthy, hosts, named=named)
    assert error.value.message == refused
    assert "sudo reboot" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("found", "reasons", "status", "message"),
    [
        ({"gpus": H100S}, (), "ok", "no faults: disks, memory, 8 GPUs, kernel log"),
        (
            {"gpus": H100S, "xids": None},
            (),
            "unchecked",
            "no faults: disks, memory, 8 GPUs; its kernel log cannot be read",
        ),
        ({}, ("7 of 8 GPUs", "its clock is 9.0 s behind"), "failed", "7 of 8 GPUs; its clock is 9.0 s behind"),
    ],
)
def test_the_check_of_verify(found: dict[str, Any], reasons: tuple[str, ...], status: str, message: str) -> None:
    check = check_health("node-1", report(**found), reasons, TYPE)
    assert (check.status, check.result) == (status, message)
