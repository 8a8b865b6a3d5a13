"""The health of one node: GPUs, kernel log, disks and memory. `look` observes; `judge` is pure.

It runs on a node before a job and after a failed one. Before a job, it comes over stdin and stores no files there. Its
report is a JSON object:

    now             seconds since the epoch
    memory_mib      MemTotal of /proc/meminfo; null if unknown
    read_only       [[path, reason], ...], the folders that a job writes to and that are not writable
    gpus            [gpu, ...]; null without NVIDIA's driver
    driver_error    why NVIDIA's driver does not work, or null
    xids            [[bus id, number, text], ...], from the kernel log since the boot; null if the user may not read it
    kept            the content of the file that `keep` writes on the head, or null

A gpu has: name, bus, error (why the driver cannot use it), ecc_uncorrected (errors since the driver was loaded),
remap_pending, remap_failed, retired_pending (true or false), throttled ([reason, ...]). A null means that the GPU does
not report the value.

Python 3.6 and later, standard library only.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple
from xml.etree import ElementTree as ET

Report = Dict[str, Any]
GPUS_TIMEOUT_S = 10.0
LOG_TIMEOUT_S = 5.0
THROTTLED_FOR_S = 0.1  # a reason that is gone after this time does not count
MAX_APART_S = 5.0
LEAST_MEMORY = 0.9  # of the type's memory: the kernel and its crash dump use a part
KERNEL_MIB = 256
KEPT = os.path.join(".cluster", "health.json")
_PCI = "/sys/bus/pci/devices"

# nvml.h
_NVML = "libnvidia-ml.so.1"
_NOT_SUPPORTED, _GPU_IS_LOST = 3, 15
_UNCORRECTED, _VOLATILE = 1, 0
_THROTTLED = (
    (0x08, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "hardware power brake"),
)
_SMI_THROTTLED = {
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "software thermal slowdown",
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "hardware power brake",
}

# The Xids that mean a fault of the GPU, not of a program (https://docs.nvidia.com/deploy/xid-errors/). 63 and 94 are
# left out: the memory has been repaired, or the row is pending, which the GPU itself reports.
XIDS = {
    48: "double-bit ECC error",
    62: "its micro-controller halted",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "fell off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "its system processor (GSP) does not answer",
    120: "error of its system processor (GSP)",
    140: "unrecovered ECC error",
    143: "failed to initialize",
}
RECOVERY_XID = 154
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),\s*(.*)")
_RECOVERY = re.compile(r"changed from .* to 0x([0-9a-fA-F]+) \(([^)]*)\)")


# -- observe -----------------------------------------------------------------------------------------------------------


def look() -> Report:
    """Observes this host. Returns the report. If the GPUs' driver hangs, waits for it for GPUS_TIMEOUT_S at most."""
    gpus, driver_error = look_at_gpus(GPUS_TIMEOUT_S)
    has_nvidia = gpus is not None or driver_error is not None or count_devices() > 0
    home = os.path.expanduser("~")
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - tempfile.gettempdir() fails on a full disk
    return {
        "now": time.time(),
        "memory_mib": read_memory("/proc/meminfo"),
        "read_only": find_read_only([home, os.path.join(home, ".cluster"), temporary]),
        "gpus": gpus,
        "driver_error": driver_error,
        "xids": parse_xids(read_kernel_log()) if has_nvidia else [],
        "kept": read_kept(),
    }


def read_memory(path: str) -> Optional[int]:
    """The memory of a host in MiB, from its /proc/meminfo; None if unknown."""
    try:
        with open(path) as stream:
            found = re.search(r"^MemTotal:\s+(\d+) kB$", stream.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) // 1024 if found else None


def find_read_only(folders: Iterable[str]) -> List[Tuple[str, str]]:
    """Finds the folders where no file can be written, one for each file system: [(path, reason), ...].

    A full disk does not count.
    """
    found, seen = [], set()
    for folder in folders:
        if not os.path.isdir(folder):
            continue  # for instance ~/.cluster before the first set-up
        device = os.stat(folder).st_dev
        if device in seen:
            continue
        seen.add(device)
        try:
            why = _try_to_write(folder)
        except PermissionError:
            why = None
        except OSError as error:
            why = None if error.errno in (errno.ENOSPC, errno.EDQUOT) else os.strerror(error.errno or 0)
        if why is not None:
            found.append((folder, why))
    return found


def _try_to_write(folder: str) -> Optional[str]:
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "mounted read-only"
    descriptor, path = tempfile.mkstemp(prefix=".cluster-health-", dir=folder)
    os.close(descriptor)
    os.unlink(path)
    return None


def read_kernel_log() -> Optional[str]:
    """The kernel's messages since the boot; None if this user may not read them."""
    for words in (["dmesg"], ["sudo", "-n", "dmesg"], ["journalctl", "-k", "-b", "-q", "--no-pager"]):
        if shutil.which(words[0]) is None:
            continue
        said = _run(words, LOG_TIMEOUT_S)
        if said is not None and said.strip():
            return said
    return None


def _run(words: Sequence[str], timeout_s: float) -> Optional[str]:
    """The output of a command; None if it fails or takes longer than timeout_s seconds."""
    try:
        done = subprocess.run(
            words,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def parse_xids(log: Optional[str]) -> Optional[List[Tuple[str, int, str]]]:
    """The Xid messages of a kernel log: [(bus id, number, text), ...]; None without a log. Pure."""
    if log is None:
        return None
    return [(bus, int(number), text.strip()[:200]) for bus, number, text in _XID.findall(log)]


def count_devices() -> int:
    """The number of NVIDIA's GPUs on the PCI bus, with a driver or without."""
    count = 0
    for device in os.listdir(_PCI) if os.path.isdir(_PCI) else ():
        try:
            vendor, kind = (_read(os.path.join(_PCI, device, name)) for name in ("vendor", "class"))
        except OSError:
            continue  # just removed
        count += vendor.strip() == "0x10de" and kind.startswith("0x03")
    return count


def _read(path: str) -> str:
    with open(path) as stream:
        return stream.read()


def read_kept() -> Optional[Any]:
    """The content of the file that `keep` has written on this host; None without a readable file."""
    try:
        with open(os.path.join(os.path.expanduser("~"), KEPT)) as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def keep(found: Mapping[str, Any]) -> None:
    """Stores the unhealthy nodes on this host, the head: {name: {"id": instance id, "reasons": [...]}}.

    Raises OSError.
    """
    path = os.path.join(os.path.expanduser("~"), KEPT)
    with open(path + ".new", "w") as stream:
        json.dump(found, stream)
    os.rename(path + ".new", path)


# -- GPUs --------------------------------------------------------------------------------------------------------------


def look_at_gpus(timeout_s: float) -> Tuple[Optional[List[Dict[str, Any]]], Optional[str]]:
    """Looks at the GPUs with NVML, or with nvidia-smi if NVML cannot be loaded.

    Returns (GPUs, driver error); (None, None) if the host has neither. Uses a thread, because the driver of a broken
    GPU can hang.
    """
    found = []  # type: List[Tuple[Optional[List[Dict[str, Any]]], Optional[str]]]

    def read() -> None:
        found.append(read_gpus())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else (None, "did not answer within %g s" % timeout_s)


def read_gpus() -> Tuple[Optional[List[Dict[str, Any]]], Optional[str]]:
    """Like look_at_gpus, but without a time limit."""
    try:
        library = ctypes.CDLL(_NVML)
    except OSError:
        return read_smi()
    nvml = Nvml(library)
    error = nvml.call("nvmlInit_v2")
    if error is not None:
        return None, error
    gpus = nvml.read_all()
    if any(gpu["throttled"] for gpu in gpus):
        time.sleep(THROTTLED_FOR_S)
        again = nvml.read_all()
        for gpu, later in zip(gpus, again):  # noqa: B905 - Python 3.10's; a GPU may be lost meanwhile
            gpu["throttled"] = [one for one in gpu["throttled"] or () if one in (later["throttled"] or ())]
    nvml.call("nvmlShutdown")
    return gpus, None


class _PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = [
        ("old_bus_id", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class Nvml:
    """NVIDIA's management library (https://docs.nvidia.com/deploy/nvml-api/): the part that reports faults of GPUs."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *args: Any) -> Optional[str]:
        """Calls a function. Returns the error in NVML's words, or None."""
        code = self._code(name, *args)
        return self._words(code) if code else None

    def _code(self, name: str, *args: Any) -> int:
        """The return code of a function; "not supported" if this driver does not have the function."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return _NOT_SUPPORTED
        return int(function(*args))

    def _words(self, code: int) -> str:
        explain = self._library.nvmlErrorString
        explain.restype = ctypes.c_char_p
        words = explain(code)
        return words.decode("utf-8", "replace") if words else "error %d" % code

    def read_all(self) -> List[Dict[str, Any]]:
        """Reads all GPUs that the driver counts."""
        count = ctypes.c_uint()
        if self._code("nvmlDeviceGetCount_v2", ctypes.byref(count)):
            return []
        return [self._read(index) for index in range(count.value)]

    def _read(self, index: int) -> Dict[str, Any]:
        device = ctypes.c_void_p()
        gpu = {"name": "", "bus": "", "error": None, "throttled": None}  # type: Dict[str, Any]
        gpu.update(dict.fromkeys(("ecc_uncorrected", "remap_pending", "remap_failed", "retired_pending")))
        gpu["error"] = self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        if gpu["error"] is not None:
            return gpu
        name, pci = ctypes.create_string_buffer(96), _PciInfo()
        if not self._code("nvmlDeviceGetName", device, name, ctypes.c_uint(96)):
            gpu["name"] = name.value.decode("utf-8", "replace")
        if not self._code("nvmlDeviceGetPciInfo_v3", device, ctypes.byref(pci)):
            gpu["bus"] = pci.bus_id.decode("ascii", "replace")
        errors = ctypes.c_ulonglong()
        code = self._code("nvmlDeviceGetTotalEccErrors", device, _UNCORRECTED, _VOLATILE, ctypes.byref(errors))
        if code == _GPU_IS_LOST:
            gpu["error"] = self._words(code)
        elif not code:
            gpu["ecc_uncorrected"] = errors.value
        corrected, uncorrected, pending, failed = (ctypes.c_uint() for _ in range(4))
        rows = [ctypes.byref(one) for one in (corrected, uncorrected, pending, failed)]
        if not self._code("nvmlDeviceGetRemappedRows", device, *rows):
            gpu["remap_pending"], gpu["remap_failed"] = bool(pending.value), bool(failed.value)
        retired = ctypes.c_uint()
        if not self._code("nvmlDeviceGetRetiredPagesPendingStatus", device, ctypes.byref(retired)):
            gpu["retired_pending"] = bool(retired.value)
        reasons = ctypes.c_ulonglong()
        if not self._code("nvmlDeviceGetCurrentClocksThrottleReasons", device, ctypes.byref(reasons)):
            gpu["throttled"] = [words for bit, words in _THROTTLED if reasons.value & bit]
        return gpu


def read_smi() -> Tuple[Optional[List[Dict[str, Any]]], Optional[str]]:
    """Like read_gpus, but with nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None, None
    try:
        done = subprocess.run(
            ["nvidia-smi", "-q", "-x"],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return None, "nvidia-smi: %s" % error.strerror
    said = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0 or "<nvidia_smi_log" not in said:
        words = (said + done.stderr.decode("utf-8", "replace")).strip().splitlines()
        return None, words[-1].strip()[:200] if words else "nvidia-smi ended with exit code %d" % done.returncode
    try:
        return parse_smi(said), None
    except ET.ParseError as error:
        return None, "nvidia-smi printed invalid XML: %s" % error


def parse_smi(text: str) -> List[Dict[str, Any]]:
    """The GPUs in the output of any version of `nvidia-smi -q -x`. Pure. Raises ParseError."""
    return [_parse_gpu(gpu) for gpu in ET.fromstring(text).iter("gpu")]  # noqa: S314 - see the import


def _parse_gpu(gpu: Any) -> Dict[str, Any]:
    def flag(path: str) -> Optional[bool]:
        return {"yes": True, "no": False}.get((gpu.findtext(path) or "").strip().lower())

    counts = [
        int(one.text.strip())
        for one in gpu.findall("ecc_errors/volatile/*")
        if "_uncorrectable" in one.tag and one.text and one.text.strip().isdigit()
    ]
    # Drivers before 450 have one count for each kind of error.
    old = gpu.findtext("ecc_errors/volatile/double_bit/total") or ""
    if old.strip().isdigit():
        counts.append(int(old))
    reasons = [one for kind in ("clocks_event_reasons", "clocks_throttle_reasons") for one in gpu.findall(kind + "/*")]
    active = {
        re.sub(r"^clocks_(event|throttle)_reason_", "", one.tag): (one.text or "").strip() == "Active"
        for one in reasons
    }
    return {
        "name": (gpu.findtext("product_name") or "").strip(),
        "bus": gpu.get("id") or "",
        "error": None,
        "ecc_uncorrected": sum(counts) if counts else None,
        "remap_pending": flag("remapped_rows/remapped_row_pending"),
        "remap_failed": flag("remapped_rows/remapped_row_failure"),
        "retired_pending": flag("retired_pages/pending_retirement"),
        "throttled": [words for tag, words in _SMI_THROTTLED.items() if active.get(tag)] if active else None,
    }


# -- judge: pure ------------------------------------------------------------------------------------------------------


def check(report: Any) -> Report:
    """Validates the report of another host, and returns it. Pure. Raises ValueError."""
    text, number, flag, nothing = str, int, bool, type(None)
    gpu = {
        **dict.fromkeys(("name", "bus"), (text,)),
        "error": (text, nothing),
        "ecc_uncorrected": (number, nothing),
        **dict.fromkeys(("remap_pending", "remap_failed", "retired_pending"), (flag, nothing)),
        "throttled": (list, nothing),
    }  # type: Dict[str, Tuple[type, ...]]
    lists = (list, nothing)
    whole = {
        "now": (int, float),
        "memory_mib": (number, nothing),
        "driver_error": (text, nothing),
        "read_only": (list,),
    }
    _check_types(report, dict(whole, gpus=lists, xids=lists, kept=(dict, nothing)))
    for one in report["gpus"] or ():
        _check_types(one, gpu)
    rows = [(row, (text, text)) for row in report["read_only"]]  # type: List[Tuple[Any, Tuple[type, ...]]]
    rows += [(row, (text, number, text)) for row in report["xids"] or ()]
    rows += [(one["throttled"], (text,) * len(one["throttled"])) for one in report["gpus"] or () if one["throttled"]]
    for row, types in rows:
        if not isinstance(row, (list, tuple)) or [type(value) for value in row] != list(types):
            raise ValueError("%.80r is not expected" % (row,))
    return dict(report)


def _check_types(found: Any, types: Mapping[str, Tuple[type, ...]]) -> None:
    if not isinstance(found, dict):
        raise ValueError("%.80r is not an object" % (found,))  # noqa: TRY004 - as for other messages
    for key, kinds in types.items():
        if not isinstance(found.get(key), kinds):
            raise ValueError("%s: %.80r is not expected" % (key, found.get(key)))  # noqa: TRY004 - as above


def judge(report: Mapping[str, Any], gpus: Optional[int] = None, memory_mib: Optional[int] = None) -> List[str]:
    """Why a node is unhealthy, in words; [] for a healthy one. Pure.

    gpus, memory_mib: those of its instance type; None if unknown. Without a driver, GPUs are not judged, because the
    fault is the image's.
    """
    found = ["%s cannot be written to: %s" % (path, why) for path, why in report["read_only"]]
    if memory_mib is not None and is_short(report["memory_mib"], memory_mib):
        found.append("%d MiB of memory, and its type has %d MiB" % (report["memory_mib"], memory_mib))
    if report["driver_error"] is not None:
        found.append("NVIDIA's driver: %s" % report["driver_error"])
    if report["gpus"] is not None:
        if gpus is not None and len(report["gpus"]) < gpus:
            found.append("%d of %d GPUs" % (len(report["gpus"]), gpus))
        for index, gpu in enumerate(report["gpus"]):
            found += ["GPU %d%s: %s" % (index, _shown(gpu["bus"]), why) for why in judge_gpu(gpu)]
    return found + judge_xids(report["xids"] or ())


def is_short(found_mib: Optional[int], type_mib: int) -> bool:
    """Whether a node lacks a part of the memory of its type. Pure."""
    return found_mib is not None and found_mib < LEAST_MEMORY * type_mib - KERNEL_MIB


def judge_gpu(gpu: Mapping[str, Any]) -> List[str]:
    """Why a GPU must not be used. Pure."""
    found = [gpu["error"]] if gpu["error"] is not None else []
    if gpu["ecc_uncorrected"]:
        found.append("%d uncorrected ECC errors" % gpu["ecc_uncorrected"])
    if gpu["remap_failed"]:
        found.append("a row of its memory could not be remapped")
    elif gpu["remap_pending"]:
        found.append("a row of its memory waits to be remapped, which needs a reset")
    if gpu["retired_pending"]:
        found.append("a page of its memory waits to be retired, which needs a reset")
    if gpu["throttled"]:
        found.append("clocks throttled: %s" % ", ".join(gpu["throttled"]))
    return found


def judge_xids(xids: Sequence[Sequence[Any]]) -> List[str]:
    """The faults that a kernel log reports, each once for each GPU. Pure.

    For a required recovery, the last message counts.
    """
    found = {}  # type: Dict[Tuple[str, int], Optional[str]]
    for bus, number, text in xids:
        if number in XIDS:
            found[bus, number] = "Xid %d%s: %s" % (number, _shown(bus), XIDS[number])
        action = _RECOVERY.search(text) if number == RECOVERY_XID else None
        if action is not None:
            needed = int(action.group(1), 16) != 0
            found[bus, number] = "Xid %d%s: needs %s" % (number, _shown(bus), action.group(2)) if needed else None
    return [words for words in found.values() if words is not None]


def _shown(bus: str) -> str:
    return " (%s)" % bus if bus else ""


def judge_all(
    reports: Mapping[str, Mapping[str, Any]],
    types: Mapping[str, Tuple[Optional[int], Optional[int]]],
    ahead_s: Mapping[str, float],
) -> Dict[str, List[str]]:
    """Why nodes are unhealthy, by name; only those that are. Pure.

    types: the number of GPUs and the memory in MiB of each node's type. ahead_s: by name, how far ahead a wrong clock
    is, in seconds. Missing memory counts only if at least one node has the memory of its type: if all nodes lack some,
    no single node is at fault.
    """
    whole = {
        name
        for name, report in reports.items()
        if types.get(name, (None, None))[1] is not None
        and report["memory_mib"] is not None
        and not is_short(report["memory_mib"], types[name][1] or 0)
    }
    found = {}
    for name, report in reports.items():
        gpus, memory_mib = types.get(name, (None, None))
        reasons = judge(report, gpus, memory_mib if whole else None)
        if name in ahead_s:
            reasons.append(say_clock(ahead_s[name]))
        if reasons:
            found[name] = reasons
    return found


def say_clock(ahead_s: float) -> str:
    """Describes a clock that is wrong by `ahead_s` seconds. Pure."""
    return "its clock is %.1f s %s" % (abs(ahead_s), "ahead" if ahead_s >= 0 else "behind")


def main() -> None:
    """Prints the report, as one line of JSON."""
    print(json.dumps(look()))
    sys.stdout.flush()
    os._exit(0)  # a thread may hang in the driver
