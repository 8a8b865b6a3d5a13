"""What `cluster verify` finds on a node: compute and disk. Pure, but for reading the probe's own text."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bootstrap.apply import ReadyNode
from bootstrap.environment.cuda import explain_missing_libraries
from bootstrap.ssh.node_program import parse_message, read_program
from foundation.errors import ClusterError

Kind = Literal["connection", "compute", "s3", "clock", "disk", "ports"]
Status = Literal["ok", "warning", "failed", "unchecked"]
EVERYWHERE = "all nodes"
"""The node of a check that is about none in particular."""

EXPECTED = [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
COMPUTE_TIMEOUT_S = 600.0  # a wheel with PTX alone for a GPU is compiled at its first use, which takes minutes
MIN_FREE_BYTES = 1 << 30
_GIB = 1 << 30
_MISSING = re.compile(r"\b(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that was looked at.

    subject: which device, object, folder or peers. said: the result in a few words; cause and hint are for what is not
    as it should be: why, and the next command. `unchecked` is what could not be looked at for lack of a setting.
    """

    node: str
    check: Kind
    subject: str
    status: Status
    said: str
    cause: str | None = None
    hint: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResult:
    """How a probe's process ended. exit_code: None when it was ended for its time, below 0 when a signal ended it."""

    exit_code: int | None
    stdout: str
    stderr: str

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """The JSON lines that it printed, whatever stands between them."""
        found = []
        for line in self.stdout.splitlines():
            message = parse_message(line.encode("utf-8", "surrogatepass"))
            if message is not None:
                found.append(message)
        return tuple(found)

    @property
    def last_words(self) -> str:
        """The last line on stderr, or how it ended when there is none."""
        lines = self.stderr.strip().splitlines()
        return lines[-1][:500] if lines else f"it {self.ending}"

    @property
    def ending(self) -> str:
        """How it ended, in words that follow the name of what ended."""
        if self.exit_code is None:
            return "did not come to an end and was killed"
        if self.exit_code < 0:
            return f"was killed by signal {-self.exit_code}"
        return f"ended with exit code {self.exit_code}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A program that the environment's Python runs on every node, in a process of its own.

    modules: (name, source) in the order in which they are imported; `main` of the last is the program. order: a JSON
    value on its stdin, which may hold secrets. to_checks: what its end on a node means, pure.
    """

    check: Kind
    modules: tuple[tuple[str, str], ...]
    order: Mapping[str, Any] = field(repr=False)
    timeout_s: float
    to_checks: Callable[[ReadyNode, ProbeResult], tuple[Check, ...]]


def compute_probe() -> Probe:
    """ones((2,3))*2+1 on every GPU, or on the processor."""
    modules = (("verify_compute", read_program("verify_compute.py")),)
    return Probe(check="compute", modules=modules, order={}, timeout_s=COMPUTE_TIMEOUT_S, to_checks=check_compute)


def check_compute(node: ReadyNode, result: ProbeResult) -> tuple[Check, ...]:
    """A check for each device that was tried, and one for what kept MXNet from trying. Pure."""
    name = node.host.name
    said = {key: value for message in result.messages for key, value in message.items()}
    wheel, version = said.get("wheel") or "mxnet", said.get("version")
    checks = [_check_device(name, message, version) for message in result.messages if "device" in message]
    if result.exit_code != 0:
        checks.append(_check_end(node, result, wheel=wheel, version=version, device=said.get("trying")))
    elif not checks:
        checks.append(_failed(name, "MXNet", "it ended before it computed anything"))
    elif node.facts.gpus and not any(check.subject.startswith("gpu") for check in checks):
        gpus = len(node.facts.gpus)
        checks.append(
            _failed(
                name,
                "gpu",
                f"the driver reports {gpus} GPU(s), and {wheel} sees none",
                cause="it is a wheel without CUDA, or its CUDA is newer than the driver",
                hint='[bootstrap] mxnet = "auto" in cluster.toml, then cluster up',
            )
        )
    return tuple(checks)


def _check_device(node: str, message: Mapping[str, Any], version: str | None) -> Check:
    device = message["device"]
    if message.get("values") == EXPECTED:
        said = f"MXNet {version}: ones((2,3))*2+1 == 3"
        return Check(node=node, check="compute", subject=device, status="ok", said=said)
    if "values" in message:
        return _failed(node, device, f"MXNet {version}: ones((2,3))*2+1 came out as {message['values']}")
    error = summarize_error(message["error"])
    cause, hint = None, f"cluster exec --node {node} -- nvidia-smi"
    if "no kernel image" in error or "invalid device function" in error:
        cause = "the wheel has no code for this GPU"
        hint = "cluster oracle, which says what wheel has; then [bootstrap] mxnet in cluster.toml"
    elif "driver version is insufficient" in error:
        cause = "the NVIDIA driver of the image is older than the wheel's CUDA"
        hint = "[provision] ami in cluster.toml: an image with a newer driver"
    return _failed(node, device, error, cause=cause, hint=hint)


def _check_end(node: ReadyNode, result: ProbeResult, *, wheel: str, version: str | None, device: str | None) -> Check:
    name = node.host.name
    if version is None and (missing := _MISSING.search(result.stderr)):
        names = _find_missing(node, missing[1])
        return _failed(
            name,
            "import mxnet",
            f"{missing[1]} is missing",
            cause=explain_missing_libraries(names, wheel),
            hint="change cluster.toml, then cluster up",
        )
    if result.exit_code == 1:
        # An environment that a user or a job has damaged still counts as made.
        hint = f"cluster exec --node {name} -- rm -rf .cluster/env, then cluster up: it makes the environment anew"
        return _failed(name, device or "import mxnet", result.last_words, hint=hint if device is None else None)
    where = f"at {device}" if device else "while it was imported"
    hint = f"cluster exec --node {name} -- sudo dmesg"
    return _failed(name, device or "import mxnet", f"MXNet {result.ending} {where}", cause=result.last_words, hint=hint)


def _find_missing(node: ReadyNode, library: str) -> tuple[str, ...]:
    """All that the environment lacks, by facts, where the loader has named this one of them alone."""
    for checked in node.facts.checked.values():
        if library in checked.unresolved:
            return checked.unresolved
    return (library,)


def _failed(node: str, subject: str, said: str, *, cause: str | None = None, hint: str | None = None) -> Check:
    return Check(node=node, check="compute", subject=subject, status="failed", said=said, cause=cause, hint=hint)


def summarize_error(text: str) -> str:
    """The line of an MXNet error that says what it is: not its first, nor its stack. Pure."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"Error: |Check failed: ", line)] or lines or [""]
    return telling[-1][:300]


def check_disk(node: str, found: Sequence[tuple[str, int, int]]) -> tuple[Check, ...]:
    """A check for each file system of (path, device, free bytes). Pure."""
    checks = []
    for device in dict.fromkeys(device for _, device, _ in found):
        paths = [path for path, on, _ in found if on == device]
        free = min(size for _, on, size in found if on == device)
        short = free < MIN_FREE_BYTES
        checks.append(
            Check(
                node=node,
                check="disk",
                subject=" and ".join(paths),
                status="failed" if short else "ok",
                said=f"{free / _GIB:.1f} GiB free" if free >= _GIB / 10 else f"{free / (1 << 20):.1f} MiB free",
                cause="less than 1 GiB is left for a job's files" if short else None,
                hint=f"cluster exec --node {node} -- sh -c 'df -h; du -xh ~ | sort -h | tail'; or a larger "
                "[provision] volume_size_gib and a new cluster"
                if short
                else None,
            )
        )
    return tuple(checks)


def check_connection(node: str, error: ClusterError) -> Check:
    """A node with which the talk broke off. Pure."""
    return Check(
        node=node,
        check="connection",
        subject="ssh",
        status="failed",
        said="it could not be looked at to the end",
        cause=error.message,
        hint=error.hint or "cluster status",
    )
