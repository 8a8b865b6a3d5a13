"""The checks of `cluster verify`: compute, all_reduce, disk, clock, ports. Pure, except that it reads the probes."""

import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from bootstrap.apply import ReadyNode
from bootstrap.environment.cuda import explain_missing_libraries
from bootstrap.environment.framework import LABELS
from bootstrap.ssh.node_program import parse_message, read_program
from foundation.errors import ClusterError
from node.engines.engine import Framework

Kind = Literal[
    "connection", "health", "compute", "all_reduce", "container", "s3", "ports", "clock", "disk", "volumes", "measure"
]
"""In the order in which the checks of a node are shown."""
Status = Literal["ok", "warning", "failed", "unchecked"]
EVERYWHERE = "all nodes"
"""The node of a check of the whole cluster."""

MODULES: Mapping[Framework, str] = {"mxnet": "mxnet", "pytorch": "torch"}
"""A framework's module, which is also the key of [bootstrap] that chooses its version."""
EXPECTED = [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
COMPUTE_TIMEOUT_S = 600.0  # a wheel that has only PTX for a GPU is compiled at its first use, which takes minutes
BURN_IN_TIMEOUT_S = 1200.0
MIN_FREE_BYTES = 1 << 30
_GIB = 1 << 30
MAX_APART_S = 5.0
RANGES = ((9091, 9999), (10000, 49999))
"""The ports of the scheduler, and of ps-lite's servers and workers (first and last port, both included)."""
JOIN_TIMEOUT_S = 120.0
ALL_REDUCE_TIMEOUT_S = 4 * JOIN_TIMEOUT_S
"""Enough for the store, joining, the process group and the sum, each within JOIN_TIMEOUT_S."""
_STEPS = {
    "import": "importing PyTorch",
    "store": "connecting to the first node",
    "join": "waiting for the other nodes",
    "group": "connecting to the other nodes",
    "reduce": "adding up with the other nodes",
}
_MISSING = re.compile(r"\b(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


class Check(Struct, frozen=True, kw_only=True):
    """The result of one check.

    subject: the device, object, folder or peers. result: in a few words. cause, hint: the reason for a problem and the
    next command. status: `unchecked` if the check was not possible. value, median: a measure's number, and that
    of all nodes, in its unit.
    """

    node: str
    check: Kind
    subject: str
    status: Status
    result: str
    cause: str | None = None
    hint: str | None = None
    value: float | None = None
    median: float | None = None
    unit: str = ""


def _failed(
    kind: Kind, node: str, subject: str, message: str, *, cause: str | None = None, hint: str | None = None
) -> Check:
    return Check(node=node, check=kind, subject=subject, status="failed", result=message, cause=cause, hint=hint)


class ProbeResult(Struct, frozen=True, kw_only=True):
    """The result of a probe's process. exit_code: None after its timeout, below 0 if a signal ended it."""

    exit_code: int | None
    stdout: str
    stderr: str

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """The JSON lines in its output."""
        found = []
        for line in self.stdout.splitlines():
            message = parse_message(line.encode("utf-8", "surrogatepass"))
            if message is not None:
                found.append(message)
        return tuple(found)

    @property
    def last_words(self) -> str:
        """The last line on stderr; without one, how the process ended."""
        lines = self.stderr.strip().splitlines()
        return lines[-1][:500] if lines else f"it {self.ending}"

    @property
    def ending(self) -> str:
        """How the process ended, as the predicate of a sentence."""
        if self.exit_code is None:
            return "did not end in time and was killed"
        if self.exit_code < 0:
            return f"was killed by signal {-self.exit_code}"
        return f"ended with exit code {self.exit_code}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A program that runs on every node, in its own process.

    program: of node/__main__.py. modules: if it runs in the environment's Python, (name, source) in the order in which
    they are imported; `main` of the last is the program. order: a JSON value for its stdin, which may hold secrets.
    to_checks: turns a node's result into checks, pure.
    """

    check: Kind
    program: str = ""
    modules: tuple[tuple[str, str], ...] = ()
    order: Mapping[str, Any] = field(repr=False)
    timeout_s: float
    to_checks: Callable[[ReadyNode, ProbeResult], tuple[Check, ...]] = lambda *_: ()

    def find_checks(self, node: ReadyNode, result: ProbeResult) -> tuple[Check, ...]:
        """The checks, and a failure if the program did not get to its end and they do not say so. Pure."""
        checks = self.to_checks(node, result)
        if result.exit_code == 0 or any(check.status != "ok" for check in checks):
            return checks
        ended = _failed(self.check, node.host.name, "program", f"it {result.ending}", cause=result.last_words)
        return (*checks, ended)


def compute_probes(framework: Framework, *, is_deep: bool = False) -> tuple[Probe, ...]:
    """The probe of ones((2,3))*2+1 with the framework on every GPU, or on the CPU; () without a framework.

    is_deep: it also measures the GPUs, and another probe the disk.
    """
    modules = (("compute", read_program("probes/compute.py")),)
    order, timeout_s = {"framework": framework, "is_deep": is_deep}, BURN_IN_TIMEOUT_S if is_deep else COMPUTE_TIMEOUT_S
    compute = Probe(check="compute", modules=modules, order=order, timeout_s=timeout_s, to_checks=check_compute)
    burn_in = Probe(check="measure", program="burn_in", order={}, timeout_s=timeout_s)
    return (*([compute] if framework != "none" else []), *([burn_in] if is_deep else []))


def joint_probes(
    nodes: Sequence[ReadyNode],
    *,
    port: int,
    interfaces: Mapping[str, str | None],
    kv_store: str | None = None,
) -> dict[str, Probe]:
    """The probe with which each node, by name, takes part in one all_reduce of PyTorch, or measures MXNet's kv-store.

    port: a free port of the first node. interfaces: each node's network interface, by its name. PyTorch uses NCCL if
    all nodes have a GPU and a PyTorch for GPUs, else Gloo. kv_store: see nodes.verify.
    """
    is_mxnet = nodes[0].framework == "mxnet"
    is_nccl = all(node.facts.gpus and node.torch is not None and node.torch.has_cuda for node in nodes)
    backend = "nccl" if is_nccl else "gloo"
    names = [node.host.name for node in nodes]
    shared = {
        "nodes": [(node.host.name, node.host.private_ip) for node in nodes],
        "port": port,
        "backend": backend,
        "timeout_s": JOIN_TIMEOUT_S,
        "kv_store": kv_store,
    }
    program = "kv_store" if is_mxnet else "all_reduce"
    modules = ((program, read_program(f"probes/{program}.py")),)
    check = partial(check_all_reduce, names=names, backend=backend, port=port)
    return {
        node.host.name: Probe(
            check="measure" if is_mxnet else "all_reduce",
            modules=modules,
            order={**shared, "rank": rank, "interface": interfaces[node.host.name]},
            timeout_s=ALL_REDUCE_TIMEOUT_S,
            to_checks=(lambda *_: ()) if is_mxnet else check,
        )
        for rank, node in enumerate(nodes)
    }


def check_all_reduce(
    node: ReadyNode, result: ProbeResult, *, names: Sequence[str], backend: str, port: int
) -> tuple[Check, ...]:
    """The check of a node's part in the all_reduce. Pure.

    names: the nodes that take part; the first one runs the store, at `port`.
    """
    name, subject = node.host.name, "NCCL" if backend == "nccl" else "Gloo"
    values: dict[str, Any] = {key: value for message in result.messages for key, value in message.items()}
    missing = [other for other in values.get("missing", ()) if other != name]
    if "error" not in values and "sum" in values and values["sum"] == values["expected"]:
        others = f"with {len(names) - 1} other node{'s' if len(names) > 2 else ''}"
        words = f"all_reduce {others}" if len(names) > 1 else "all_reduce on this node only"
        return (Check(node=name, check="all_reduce", subject=subject, status="ok", result=words),)
    if "error" not in values and "sum" in values:
        words = f"the sum came out as {values['sum']}, not {values['expected']}"
        return (_failed("all_reduce", name, subject, words),)
    if missing and name == names[0]:
        cause = f"PyTorch failed there, or it could not connect to {name} at port {port}"
        hint = f"the all_reduce check of {missing[0]}; or cluster exec --node {missing[0]} -- python -c 'import torch'"
        return (_failed("all_reduce", name, subject, f"{', '.join(missing)} did not join", cause=cause, hint=hint),)
    if missing:
        words = f"not checked: {', '.join(missing)} did not join"
        return (Check(node=name, check="all_reduce", subject=subject, status="unchecked", result=words),)
    words = summarize_error(str(values["error"])) if "error" in values else result.last_words
    advice = None if values.get("step") == "import" else _look("sudo nft list ruleset", name)
    doing = _STEPS.get(values.get("step", ""), "starting")
    return (_failed("all_reduce", name, subject, f"failed while {doing}: {words}", hint=advice),)


def check_compute(node: ReadyNode, result: ProbeResult) -> tuple[Check, ...]:
    """A check for each tried device, and one for an error that ended the probe early. Pure."""
    name, label = node.host.name, LABELS[node.framework]
    values = {key: value for message in result.messages for key, value in message.items()}
    key = MODULES[node.framework]
    wheel, version = values.get("wheel") or key, values.get("version")
    checks = [
        _check_device(name, message, f"{label} {version}", key=key)
        for message in result.messages
        if "device" in message
    ]
    if result.exit_code != 0:
        checks.append(_check_end(node, result, wheel=wheel, version=version, device=values.get("trying")))
    elif not checks:
        checks.append(_failed("compute", name, label, "it ended before it computed anything"))
    elif node.facts.gpus and not any(check.subject.startswith(("gpu", "cuda")) for check in checks):
        gpus = len(node.facts.gpus)
        checks.append(
            _failed(
                "compute",
                name,
                "gpu",
                f"the driver reports {gpus} GPU(s), but {wheel} sees none",
                cause="it is a wheel without CUDA, or its CUDA is newer than the driver",
                hint=f'[bootstrap] {key} = "auto" in cluster.toml, then cluster up',
            )
        )
    return tuple(checks)


def _check_device(node: str, message: Mapping[str, Any], library: str, *, key: str) -> Check:
    device = message["device"]
    if message.get("values") == EXPECTED:
        text = f"{library}: ones((2,3))*2+1 == 3"
        return Check(node=node, check="compute", subject=device, status="ok", result=text)
    if "values" in message:
        return _failed("compute", node, device, f"{library}: ones((2,3))*2+1 came out as {message['values']}")
    error = summarize_error(message["error"])
    cause, hint = None, f"cluster exec --node {node} -- nvidia-smi"
    if "no kernel image" in error or "invalid device function" in error:
        cause = "the wheel has no code for this GPU"
        command = "cluster oracle" + (" --framework pytorch" if key == "torch" else "")
        hint = f"{command} lists the wheels with code for it; then set [bootstrap] {key} in cluster.toml"
    elif "driver version is insufficient" in error:
        cause = "the NVIDIA driver of the image is older than the wheel's CUDA"
        hint = "[provision] ami in cluster.toml: an image with a newer driver"
    return _failed("compute", node, device, error, cause=cause, hint=hint)


def _check_end(node: ReadyNode, result: ProbeResult, *, wheel: str, version: str | None, device: str | None) -> Check:
    name, subject = node.host.name, device or f"import {MODULES[node.framework]}"
    if version is None and node.framework == "mxnet" and (missing := _MISSING.search(result.stderr)):
        cause = explain_missing_libraries(_find_missing(node, missing[1]), wheel)
        hint = "change cluster.toml, then cluster up"
        return _failed("compute", name, subject, f"{missing[1]} is missing", cause=cause, hint=hint)
    if result.exit_code != 1:
        message = f"{LABELS[node.framework]} {result.ending} {f'at {device}' if device else 'during its import'}"
        hint = f"cluster exec --node {name} -- sudo dmesg"
        return _failed("compute", name, subject, message, cause=result.last_words, hint=hint)
    if device:
        return _failed("compute", name, subject, result.last_words)
    # An environment that a user or a job has damaged still counts as complete.
    hint = f"cluster exec --node {name} -- rm -rf .cluster/env, then cluster up, which makes the environment again"
    return _failed("compute", name, subject, result.last_words, hint=hint)


def _find_missing(node: ReadyNode, library: str) -> tuple[str, ...]:
    """All missing libraries of the environment, from the facts; the loader names only the first one."""
    for checked in node.facts.checked.values():
        if library in checked.unresolved:
            return checked.unresolved
    return (library,)


def summarize_error(text: str) -> str:
    """The line with the message in the text of an error of MXNet or PyTorch. Pure."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"Error: |Check failed: ", line)] or lines or [""]
    return telling[-1][:300]


def check_disk(node: str, found: Sequence[tuple[str, int, int]]) -> tuple[Check, ...]:
    """A check for each file system. found: (path, device, free bytes) each. Pure."""
    checks = []
    for device in dict.fromkeys(device for _, device, _ in found):
        paths = " and ".join(path for path, on, _ in found if on == device)
        free = min(size for _, on, size in found if on == device)
        message = f"{free / _GIB:.1f} GiB free" if free >= _GIB / 10 else f"{free / (1 << 20):.1f} MiB free"
        if free >= MIN_FREE_BYTES:
            checks.append(Check(node=node, check="disk", subject=paths, status="ok", result=message))
            continue
        hint = (
            f"cluster exec --node {node} -- sh -c 'df -h; du -xh ~ | sort -h | tail'; or a larger "
            "[provision] volume_size_gib and a new cluster"
        )
        cause = "less than 1 GiB is left for a job's files"
        checks.append(_failed("disk", node, paths, message, cause=cause, hint=hint))
    return tuple(checks)


def check_connection(node: str, error: ClusterError) -> Check:
    """The check for a node whose connection failed. Pure."""
    message, hint = "its checks did not finish", error.hint or "cluster status"
    return _failed("connection", node, "ssh", message, cause=error.message, hint=hint)


class Offset(Struct, frozen=True, kw_only=True):
    """A clock compared with this machine's, in seconds: it is `ahead_s` ahead, plus or minus `error_s`."""

    ahead_s: float
    error_s: float


def find_offset(sent: float, read: float, received: float) -> Offset:
    """The offset of a clock that was read between two moments of this machine's. In seconds since the epoch. Pure."""
    return Offset(ahead_s=read - (sent + received) / 2, error_s=max(0.0, received - sent) / 2)


def check_clocks(offsets: Mapping[str, Offset]) -> tuple[Check, ...]:
    """A check for each node; of a single one it cannot be known whether its clock or this machine's is wrong. Pure."""
    wrong = find_wrong(offsets)
    if len(offsets) == 1:
        wrong = frozenset(node for node, one in offsets.items() if abs(one.ahead_s) - one.error_s > MAX_APART_S)
    status: Status = "failed" if len(offsets) > 1 else "warning"
    return tuple(_check_clock(node, offset, status if node in wrong else "ok") for node, offset in offsets.items())


def find_wrong(offsets: Mapping[str, Offset]) -> frozenset[str]:
    """The nodes that are more than MAX_APART_S from the median clock. Of two nodes, this machine's decides. Pure."""
    if len(offsets) < 2:
        return frozenset()
    middle = statistics.median([*(offset.ahead_s for offset in offsets.values()), *([0.0] * (len(offsets) == 2))])
    apart_s = MAX_APART_S + max(offset.error_s for offset in offsets.values())
    return frozenset(
        node for node, offset in offsets.items() if abs(offset.ahead_s - middle) - offset.error_s > apart_s
    )


def _check_clock(node: str, offset: Offset, status: Status) -> Check:
    ahead = f"{abs(offset.ahead_s):.3f} s {'ahead of' if offset.ahead_s >= 0 else 'behind'}"
    words = f"{ahead} this machine's, ±{max(offset.error_s, 0.001):.3f} s"
    check = partial(Check, node=node, check="clock", subject="time", status=status, result=words)
    if status == "ok":
        return check()
    why = "the other nodes' clocks: its time service does not run"
    if status == "warning":
        why = "this machine's clock: one of the two is wrong"
    return check(
        cause=f"more than {MAX_APART_S:.0f} s from {why}",
        hint=f"cluster exec --node {node} -- sudo sh -c 'systemctl restart chrony || systemctl restart chronyd || "
        "systemctl restart systemd-timesyncd'",
    )


class PortTest(Struct, frozen=True, kw_only=True):
    """One connection from a node to a port of another. error: the node's words; None if it worked."""

    source: str
    target: str
    port: int
    error: str | None


def check_ports(
    listening: Mapping[str, Sequence[int]],
    refused: Mapping[str, str],
    attempts: Collection[PortTest],
    *,
    has_group: bool = True,
) -> tuple[Check, ...]:
    """Checks of the ports. Pure.

    There is a check for each node that the others connect to, and for each that cannot listen.
    listening: the ports of each node. refused: why a node cannot listen. has_group: whether the nodes are in a security
    group.
    """
    checks = [
        _failed("ports", node, "listening", why, cause="other programs have these ports", hint=_look("ss -ltn", node))
        for node, why in refused.items()
    ]
    for node, ports in listening.items():
        tried = [attempt for attempt in attempts if attempt.target == node]
        failed = [attempt for attempt in tried if attempt.error is not None]
        if failed:
            sources = dict.fromkeys(attempt.source for attempt in failed)
            is_all = len(sources) == len({attempt.source for attempt in tried})
            subject = "from every other node" if is_all else f"from {', '.join(sources)}"
            some_ports = {attempt.port for attempt in failed} < set(ports)
            words = (f"port {attempt.port}: {attempt.error}" if some_ports else attempt.error for attempt in failed)
            message = "; ".join(dict.fromkeys(map(str, words)))
            advice = _look("sudo nft list ruleset", node)
            cause = f"a firewall on {node} or in the network, which must let all TCP ports between the nodes through"
            if has_group:
                cause = f"the rule between members of the cluster's security group, or a firewall on {node}"
                advice = f"cluster up, which restores the rule; then {advice}"
            checks.append(_failed("ports", node, subject, message, cause=cause, hint=advice))
        elif ports:
            checks.append(_passed(node, ports, len(listening)))
    return tuple(checks)


def _look(command: str, node: str) -> str:
    return f"cluster exec --node {node} -- {command}"


def _passed(node: str, ports: Sequence[int], nodes: int) -> Check:
    listed = " and ".join(map(str, ports))
    others = f"{nodes - 1} other node{'s' if nodes > 2 else ''}"
    message = f"open for {others}" if nodes > 1 else "free; there is no other node"
    return Check(node=node, check="ports", subject=listed, status="ok", result=message)
