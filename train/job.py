"""A training job: what it is (pure), and running it to its end through supervise.py on the head."""

import contextlib
import json
import secrets as random_secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import paramiko

from bootstrap.apply import ReadyNode
from bootstrap.connection import quote_command
from bootstrap.side_by_side import on_all
from provision.errors import ClusterError, ConfigError, JobError
from train.config import DataConfig, TrainConfig
from train.payload import NODE_DIR

START_TIMEOUT_S = 60
SILENCE_S = 15.0  # supervise.py speaks every 2 s
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run. `command` is what every worker, server and scheduler process executes in `cwd` on its node.

    Without servers there is no scheduler either: one worker, on the head, that nobody has to be introduced to.
    nodes_credentials: it uses the credentials of the head's instance profile, which supervise.py reads there.
    setup: the digest of the set-up commands whose exports its processes get, None when there are none.
    """

    id: str
    python: str
    node_dir: str
    hosts: tuple[tuple[str, str], ...]
    workers: int
    servers: int
    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    nodes_credentials: bool = False
    setup: str | None = None

    def order(self, *, secrets: Mapping[str, str]) -> dict[str, Any]:
        """The job as supervise.py takes it."""
        return {
            "job": self.id,
            "python": self.python,
            "workers": self.workers,
            "servers": self.servers,
            "start_timeout_s": START_TIMEOUT_S,
            "hosts": [{"name": name, "ip": ip} for name, ip in self.hosts],
            "command": list(self.command),
            "cwd": self.cwd,
            "env": dict(self.env),
            "secrets": dict(secrets),
            "nodes_credentials": self.nodes_credentials,
            "setup": self.setup,
        }


def new_job_id() -> str:
    """A name for a job: when it began, and something that nobody else has."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{random_secrets.token_hex(3)}"


def plan_job(
    config: TrainConfig,
    nodes: Sequence[ReadyNode],
    *,
    job_id: str,
    script: str,
    data: DataConfig,
    env: Mapping[str, str],
    command: Sequence[str] = (),
    nodes_credentials: bool = False,
) -> Job:
    """Decide what a job is; `script` is its absolute path on the nodes, `command` replaces it. Pure.

    `env`: variables that the cluster sets; [train] env goes over them. nodes_credentials: see Job.
    Raises ConfigError for what makes no sense.
    """
    head = nodes[0]
    distributed = config.kv_store.startswith("dist")
    workers = len(nodes) if config.workers == "auto" else config.workers
    servers = workers if config.servers == "auto" else config.servers
    if distributed and len(nodes) == 1 and workers == 1 and not command:
        raise ConfigError(
            f'train.kv_store = "{config.kv_store}": with one worker there is nobody to exchange gradients with',
            hint="cluster train --kv-store local, or more nodes",
        )
    if not distributed:
        servers = 0  # gradients stay in the worker's own memory
    if not distributed and workers > 1:
        raise ConfigError(
            f'train.kv_store = "{config.kv_store}": its {workers} workers would train {workers} models that know '
            "nothing of each other",
            hint="cluster train --kv-store dist_sync, or -n 1",
        )
    words = tuple(command) or (
        head.python,
        script,
        *config.args,
        "--kv-store",
        config.kv_store,
    )
    roles_per_node = -(-(workers + servers) // len(nodes))
    settings = {
        "PATH": f"{head.python.rpartition('/')[0]}:/usr/local/bin:/usr/bin:/bin",
        # Unset, every process takes all cores, and they fight over them: 17-28 s instead of 4 on 2 cores.
        "OMP_NUM_THREADS": str(max(1, min(node.facts.cores for node in nodes) // roles_per_node)),
        "PYTHONUNBUFFERED": "1",
        "CLUSTER_KV_STORE": config.kv_store,
    }
    urls = {"CLUSTER_DATA_URL": data.url, "CLUSTER_RESULTS_URL": data.results}
    settings |= {key: url for key, url in urls.items() if url is not None}
    return Job(
        id=job_id,
        python=head.python,
        node_dir=f"{head.code_dir}/{NODE_DIR}",
        hosts=tuple((node.host.name, node.host.private_ip) for node in nodes),
        workers=workers,
        servers=servers,
        command=words,
        cwd=head.project_dir or head.code_dir,
        env={**settings, **env, **config.env},
        nodes_credentials=nodes_credentials,
        setup=head.setup,
    )


def run_job(
    job: Job,
    nodes: Sequence[ReadyNode],
    *,
    secrets: Mapping[str, str],
    on_line: Callable[[str], None],
) -> None:
    """Run a job to its end, giving each line of its output to `on_line`; returns when all of it went well.

    On Ctrl-C the job is stopped everywhere before KeyboardInterrupt goes on. Raises JobError with the exit code of the
    first process that failed, and ClusterError when anything of the job could not be ended.
    """
    channel = nodes[0].connection.open_channel(f"exec {quote_command([job.python, f'{job.node_dir}/supervise.py'])}")
    supervisor = _Supervisor(channel, on_line)
    try:
        supervisor.tell(job.order(secrets=secrets))
        result = supervisor.follow()
    except KeyboardInterrupt:
        _stop(supervisor, job, nodes)
        raise
    finally:
        channel.close()
    if result is None:
        left = end_everywhere(job, nodes)
        said = f"\n  not known to have ended: {_render_left(left)}" if left else "; its processes have been ended"
        raise JobError(
            f"job {job.id}: the connection to its supervisor on {nodes[0].host.name} was lost{said}",
            exit_code=1,
            hint="cluster status",
        )
    _check(job, result)


def end_everywhere(job: Job, nodes: Sequence[ReadyNode]) -> dict[str, list[list[object]]]:
    """End a job's processes on every node from here; returns what could not be ended, by node."""
    left: dict[str, list[list[object]]] = {}

    def end_on(node: ReadyNode) -> None:
        command = quote_command([job.python, f"{job.node_dir}/role.py", "end", job.id])
        try:
            found = json.loads(node.connection.run(command, timeout_s=SILENCE_S).stdout)
        except ClusterError as error:
            found = [[0, f"could not be searched: {error}"]]
        if found:
            left[node.host.name] = found

    on_all(nodes, end_on, name=lambda node: node.host.name)
    return left


class _Supervisor:
    """supervise.py on the head, as its channel has it; each line of the job's output goes to `on_line`."""

    def __init__(self, channel: paramiko.Channel, on_line: Callable[[str], None]) -> None:
        self._channel = channel
        self._on_line = on_line
        self._rest = b""  # from one `follow` to the next
        channel.settimeout(0.5)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message. One that cannot be sent is no error yet: `follow` then finds the connection lost."""
        with contextlib.suppress(OSError):
            self._channel.settimeout(SILENCE_S)
            self._channel.sendall(json.dumps(message).encode() + b"\n")
            self._channel.settimeout(0.5)

    def follow(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Read what it says; the job's result, or None when it fell silent or broke off."""
        deadline = time.monotonic() + timeout_s if timeout_s is not None else None
        heard_at = time.monotonic()
        while deadline is None or time.monotonic() < deadline:
            try:
                data = self._channel.recv(1 << 16)
            except TimeoutError:
                if time.monotonic() - heard_at > SILENCE_S:
                    return None
                continue
            if not data:
                self._pass_on_stderr()
                return None
            heard_at = time.monotonic()
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                message = _parse(line)
                if "line" in message:
                    self._on_line(message["line"])
                elif "result" in message:
                    result: dict[str, Any] = message["result"]
                    return result
        return None

    def _pass_on_stderr(self) -> None:
        while self._channel.recv_stderr_ready():
            for line in self._channel.recv_stderr(1 << 16).decode("utf-8", "replace").splitlines():
                self._on_line(f"[supervisor] {line}")


def _parse(line: bytes) -> dict[str, Any]:
    """A message of the supervisor; nothing for half of one: Ctrl-C can tear them."""
    try:
        message: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _stop(supervisor: _Supervisor, job: Job, nodes: Sequence[ReadyNode]) -> None:
    """Ask the supervisor to end the job, and do it from here if it does not answer."""
    supervisor.tell({"stop": True})
    result = supervisor.follow(STOP_TIMEOUT_S)
    left = result["left"] if result is not None else end_everywhere(job, nodes)
    if left:
        raise ClusterError(f"job {job.id} was stopped, but not all of it ended: {_render_left(left)}")


def _check(job: Job, result: Mapping[str, Any]) -> None:
    left = result["left"]
    remains = f"\n  not known to have ended: {_render_left(left)}" if left else ""
    if result["exit_code"] != 0 or result["reason"]:
        raise JobError(
            f"job {job.id} failed: {result['reason']}{remains}",
            exit_code=result["exit_code"] or 1,
        )
    if left:
        raise JobError(f"job {job.id} did its work, but left processes behind{remains}", exit_code=1)


def _render_left(left: Mapping[str, Sequence[Sequence[object]]]) -> str:
    # A process number of 0 stands for a whole host that could not be searched.
    return "; ".join(
        f"{node}: process {pid} ({words})" if pid else f"{node} {words}"
        for node, found in left.items()
        for pid, words in found
    )
