"""The messages about a job that this machine and the nodes exchange: order, record, log and answers.

The command line imports this module on this machine, and the programs of node import it on the nodes. Everything
from a node or from S3 is decoded here before use: each value has its type and is within its limits, or a one-line
ValueError says what is wrong. Keys of a newer version are ignored.

Pure.
"""

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from node.train_settings import TrainSettings

MAX_LINE_BYTES = 8 << 20
"""The limit for a line from the head; the longest line is the list of all jobs."""
OUTPUT_ENCODING = "latin-1"  # of a program's output in messages: one character for each byte
MAX_RECORD_BYTES = 1 << 20
STAGED = "CLUSTER_DATA_STAGED"
"""The variable of a job with the URLs, as words of a shell, that its nodes copy to their disks before it starts."""
SAVED_AT = "CLUSTER_DATA_SAVED"
"""The variable of a job with the URLs to which it saves by files in $CLUSTER_OUTPUT_DIR, separated by blanks."""
OUR_JOB_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
"""The ids that train.job.job_plan.new_job_id creates."""

Role = Literal["scheduler", "server", "worker", "launcher", "setup"]
JobState = Literal[
    "queued", "pending", "starting", "running", "waiting", "ending", "done", "failed", "stopped", "damaged"
]
"""waiting: the job waits for nodes that replace lost ones. damaged: its record cannot be read."""
ENDED: frozenset[JobState] = frozenset({"done", "failed", "stopped"})
EndReason = Literal["done", "stopped", "error", "overtime", "notice", "lost", "unhealthy", "stalled"]
"""Why an attempt ended.

notice: one of its nodes was about to be interrupted; lost: a node was lost without notice; unhealthy: the attempt
failed, and one of its nodes was unhealthy; stalled: it made no progress, and [train] on_stall = "requeue".
"""
LOSSES: frozenset[EndReason] = frozenset({"notice", "lost", "unhealthy", "stalled"})
"""The reasons of attempts that count towards [train] restarts."""

SHELL = ("bash", "-c")
"""Runs a command given as one line, as launch.py does."""

JobId = Annotated[str, Meta(max_length=128, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
Name = Annotated[str, Meta(max_length=255, pattern=r"\A[^\r\n]*\Z")]
Moment = Annotated[float, Meta(ge=0, le=32_503_680_000)]  # seconds since the epoch; to the year 3000
ExitCode = Annotated[int, Meta(ge=-255, le=255)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]
Usd = Annotated[float, Meta(ge=0, le=1e12)]
ProcessNumber = Annotated[int, Meta(ge=0, lt=1 << 15)]  # a reader of the log keeps each one in memory
LeftOnHost = list[tuple[Count, str]]
"""Processes that did not end: (pid, command line); pid 0: the host could not be searched."""
Left = dict[Name, LeftOnHost]


# -- order -------------------------------------------------------------------------------------------------------------


class HostSettings(Struct, frozen=True, kw_only=True):
    """How to run a job on a host that is not a node of the cluster.

    code_dir: this project's files there. cwd, command, tree: as in the order for the nodes.
    """

    user: Name
    port: Annotated[int, Meta(ge=1, le=65535)]
    python: str
    code_dir: str
    cwd: str
    command: tuple[str, ...]
    tree: str | None = None


class Container(Struct, frozen=True, kw_only=True):
    """The container of a job's processes on one host.

    engine: the first words of its commands, such as ("podman",). image: the image's id. path, python_path: its PATH
    and PYTHONPATH.
    shm_size: of the job's own /dev/shm there in bytes; None for the host's. mounts: [(source, target, read only), ...];
    ~/ is the user's home there. gpus: the host has GPUs. has_environment: the host's environment is mounted and used.
    """

    engine: tuple[str, ...]
    image: str
    path: str = ""
    python_path: str = ""
    shm_size: int | None = None
    mounts: tuple[tuple[str, str, bool], ...] = ()
    gpus: bool = False
    has_environment: bool = False


class Machine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A host's machine when its job was planned; "": unknown. image: its AMI. driver: the version of NVIDIA's."""

    type: str = ""
    zone: str = ""
    image: str = ""
    system: str = ""
    kernel: str = ""
    driver: str = ""
    gpus: tuple[str, ...] = ()


class JobHost(Struct, frozen=True, kw_only=True):
    """A host of a job. ip: its private address. own_host: None for a node of the cluster.

    workers, servers: the number of processes there. usd_per_hour: the price of the instance; None if unknown.
    gpus, memory_mib: those of its instance type.
    """

    name: Name
    ip: Name = ""
    workers: Count = 0
    servers: Count = 0
    instance_id: Annotated[str, Meta(max_length=255)] | None = None
    own_host: HostSettings | None = None
    usd_per_hour: Usd | None = None
    gpus: Count | None = None
    memory_mib: Annotated[int, Meta(ge=0)] | None = None
    machine: Machine = Machine()


class Notify(Struct, frozen=True, kw_only=True):
    """[notify]: where the head reports a cluster's events. The webhook's URL is a secret, never written to disk."""

    cluster: str
    webhook: str | None = None
    command: str | None = None


class AllocationRequest(Struct, frozen=True, kw_only=True):
    """The nodes that a job needs from a batch scheduler.

    job: its id. queue: "" for the scheduler's default. walltime_s: None for the queue's default. slots_per_node: 0 for
    whole nodes. options: more lines of the script. environment: Grid Engine's parallel environment.
    """

    job: JobId
    name: str
    nodes: int
    queue: str = ""
    walltime_s: int | None = None
    account: str = ""
    slots_per_node: int = 0
    options: tuple[str, ...] = ()
    environment: str = ""


class BatchJob(Struct, frozen=True):
    """A batch scheduler's job, in whose allocation of hosts `cluster train` runs."""

    scheduler: str
    number: str
    hosts: tuple[str, ...]


class JobSpec(Struct, frozen=True, kw_only=True):
    """What a job runs. Its order and its record contain it, so it contains no secrets (see job_folder.mask).

    train: [train] with the values that were chosen for this job: its name, the engine as launcher, the numbers of
    processes, and as hosts the names of those in the launcher's hostfile, line by line. selection: [train] nodes.
    scheduler: the batch scheduler that assigns the nodes. python: that of the training environment on the nodes. cwd:
    the job's working folder. env: the job's variables, also "NAME (servers)" and "NAME (workers)". output_url: the
    job's own folder in [data] results. setup: the digest of [bootstrap] setup, whose exports the processes get.
    library: MXNet or PyTorch. packages: the wheels of the environment, such as "torch==2.13.0". image: the image that
    the processes run in, by digest.
    code, project: the digests of this project's and the user's files.
    nodes_credentials: the job uses the credentials of the head's instance profile, which the head reads itself.
    beside: the job takes no turn in the queue: it starts at once, and other jobs do not wait for it.
    """

    id: JobId
    name: Name
    workers: Count
    servers: Count
    train: TrainSettings = TrainSettings()
    command: tuple[str, ...] = ()
    script_source: Literal["shipped", "project"] | None = None
    selection: str = "current"
    scheduler: Name | None = None
    python: str = ""
    cwd: str = ""
    env: dict[str, str] = {}
    output_url: str | None = None
    setup: str | None = None
    library: str | None = None
    packages: tuple[str, ...] = ()
    image: str | None = None
    code: str | None = None
    project: str | None = None
    owner: str | None = None
    nodes_credentials: bool = False
    beside: bool = False

    @property
    def script(self) -> str | None:
        """[train] script, if the job runs it; None if it runs a command."""
        return self.train.script if self.script_source is not None else None

    @property
    def is_synchronous(self) -> bool:
        """Whether each step waits for all workers."""
        return "async" not in self.train.kv_store

    @property
    def typed_command(self) -> tuple[str, ...]:
        """The command that the user typed; () for a script, whose command names paths on the nodes."""
        return self.command if self.script_source is None else ()


class Order(Struct, kw_only=True):
    """A job as the head receives it: what to run, where, and the secrets, which are in no file.

    hosts: the head first. tree: the user's files, which are copied to the working folder before; None for none.
    env, env_server, env_worker: variables of all processes, and of servers and workers. secrets: more variables of
    workers and servers. gpus_per_worker: the GPUs that each worker of a node sees, in their order; () for all.
    volumes: the folders where [[volumes]] are mounted.
    request: the request to the batch scheduler. Then hosts are all that it may choose from, and the spec's processes
    and hosts are those of the first ones in place of those that it assigns. within: with this batch job, the job ends.
    containers: how the processes run in the image, by the host's name; {} for no containers. image_launcher: the folder
    on the head with the image's launch.py; None for the environment's launch.py.
    replace_command: a command on the head that replaces lost nodes: the job's id is added, and it calls `jobs.py
    replace`; () for none.
    authorities: certificates of the S3 endpoint's private CA, as PEM, for AWS_CA_BUNDLE; None if it has none.
    before: the ids of the jobs that the job waits for; jobs.py sets it.
    attempts: those so far of a job whose head was lost, and which continues on another one. submitted_at: when the
    first head accepted it; for other jobs, jobs.py sets it.
    """

    spec: JobSpec
    hosts: tuple[JobHost, ...]
    tree: str | None = None
    env: dict[str, str] = {}
    env_server: dict[str, str] = {}
    env_worker: dict[str, str] = {}
    secrets: dict[str, str] = {}
    gpus_per_worker: tuple[tuple[int, ...], ...] = ()
    volumes: tuple[str, ...] = ()
    request: AllocationRequest | None = None
    within: BatchJob | None = None
    containers: dict[str, Container] = {}
    image_launcher: str | None = None
    replace_command: tuple[str, ...] = ()
    notify: Notify | None = None
    authorities: str | None = None
    before: tuple[str, ...] = ()
    attempts: "tuple[Attempt, ...]" = ()  # in quotes as a whole: Python 3.10 resolves no name within [...]
    submitted_at: Moment | None = None

    @property
    def train(self) -> TrainSettings:
        """[train], as in the spec."""
        return self.spec.train


# -- record and log ----------------------------------------------------------------------------------------------------


class NewFiles(Struct, frozen=True, kw_only=True):
    """The files that a job has created or changed on one host.

    count: how many, without those `copied` to S3; is_part: at least that many, because the search was ended. folders:
    some of the topmost folders with such files; "" for the job's working folder itself. is_left: some of
    $CLUSTER_OUTPUT_DIR could not be copied to S3.
    """

    host: Name
    count: Count
    copied: Count = 0
    folders: Annotated[tuple[Name, ...], Meta(max_length=16)] = ()
    is_part: bool = False
    is_left: bool = False


class JobResult(Struct, frozen=True, kw_only=True):
    """How a job ended. cause: why its first process failed, if that is known. culprit: the number of that process."""

    state: JobState
    exit_code: ExitCode | None
    error: str | None = None
    cause: str | None = None
    culprit: ProcessNumber | None = None
    left: Left | None = None


class LogLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a job's log, `events`; its keys show its kind.

    t: seconds since the epoch. p: the number of a process. With role and host, it is new; rank and pid add to what is
    known of it; line is its output; exit is its end. bar: its current progress bar, in rows, or "" if it is gone;
    only those who follow the job receive it: the stored log has its last state, as a line.
    message: the supervisor's message to the user; stalled_since: when the job last made progress, 0: it does again.
    warnings: all current warnings. result: on the last line. files: on the last line, for each host with new files.
    """

    t: Moment
    p: ProcessNumber | None = None
    role: Name | None = None
    host: Name | None = None
    rank: Count | None = None
    pid: Count | None = None
    exit: ExitCode | None = None
    signal: Annotated[int, Meta(ge=0, le=128)] | None = None
    line: str | None = None
    bar: str | None = None
    message: str | None = None
    stalled_since: Moment | None = None
    warnings: tuple[str, ...] | None = None
    state: JobState | None = None
    result: JobResult | None = None
    files: tuple[NewFiles, ...] = ()


class Process(Struct, frozen=True, kw_only=True):
    """A process of a job. number: identifies it in the log. rank: None until known; with ps-lite, that of ps-lite.

    role: a Role, or one of a later version: "launcher" is launch.py itself, "setup" a job's set-up on a node.
    """

    role: Name
    host: Name
    number: ProcessNumber
    rank: Count | None = None
    pid: Count | None = None
    started_at: Moment | None = None
    ended_at: Moment | None = None
    exit_code: ExitCode | None = None
    signal: Annotated[int, Meta(ge=0, le=128)] | None = None

    @property
    def tag(self) -> str:
        """The prefix of its lines: "worker 0 node-1", or "worker ? node-1" until its rank is known."""
        if self.role in ("worker", "server"):
            return f"{self.role} {'?' if self.rank is None else self.rank} {self.host}"
        return f"{self.role} {self.host}"


class LogWanted(Struct, frozen=True, kw_only=True):
    """Which part of a log to send and show: the last `tail` lines of these roles and ranks, or of all if empty.

    tail: None: all lines. since: from this time on, in seconds since the epoch. The supervisor's own lines are of all
    roles and ranks.
    """

    roles: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    tail: Count | None = None
    since: float | None = None

    def takes_lines_of(self, process: Process | None) -> bool:
        """Whether lines of a process are among them; None: an unknown one. Pure."""
        is_of_role = not self.roles or (process is not None and process.role in self.roles)
        return is_of_role and (not self.ranks or (process is not None and process.rank in self.ranks))


class LogStart(Struct, frozen=True, kw_only=True):
    """The head's answer before a job's log: the offset of the first line, and the processes with their ranks."""

    start: Annotated[int, Meta(ge=0)]
    processes: tuple[Process, ...]


class Stall(Struct, frozen=True, kw_only=True):
    """Why a job makes no progress; since: seconds since the epoch."""

    text: str
    since: Moment = 0.0


class Attempt(Struct, frozen=True, kw_only=True):
    """One start of a job's processes: the first, or another one after a loss or an error.

    nodes: the names of its hosts; instances: the instance ids by the host's name, if they have one. started_at: when it
    was started; ended_at: when its processes had ended, or None. cause, culprit: as in JobResult. lost: the names of
    the nodes that it lost.
    lost_batches: the batches finished before its end that the next attempt repeats; None if unknown. cost_usd: of its
    nodes in this time.
    """

    number: Count
    nodes: tuple[Name, ...]
    started_at: Moment
    instances: dict[Name, Name] = {}
    ended_at: Moment | None = None
    exit_code: ExitCode | None = None
    error: str | None = None
    cause: str | None = None
    culprit: ProcessNumber | None = None
    reason: EndReason | None = None
    lost: tuple[Name, ...] = ()
    lost_batches: Count | None = None
    cost_usd: Usd | None = None


class Supervisor(Struct, frozen=True, kw_only=True):
    """The process on the head that runs the job. start_time: in clock ticks since the head booted.

    host: the head's own name; other hosts may have the same home folder.
    """

    pid: Count
    start_time: Count | None
    host: Name = ""


class Record(Struct, kw_only=True):
    """A job's record.json.

    job_number: the batch scheduler's number for the job. pending: why the scheduler has not assigned the nodes yet.
    stacks: where workers were when the job last made no progress, one line each.
    attempts: the first one first. roles: the processes of the last attempt. waiting_for: the names of the lost nodes
    that the job waits for, in state waiting. head_replaces: the head's own command is replacing them.
    files: for each host with new files, as of its last process that has ended.
    held_at: since when the job has had its nodes. cost_usd: what they have cost since then; see node/job/cost.py.
    """

    spec: JobSpec
    state: JobState
    submitted_at: Moment
    started_at: Moment | None = None
    ended_at: Moment | None = None
    exit_code: ExitCode | None = None
    error: str | None = None
    warnings: tuple[str, ...] = ()
    stall: Stall | None = None
    stacks: tuple[str, ...] = ()
    left: Left = {}
    nodes: tuple[JobHost, ...] = ()
    roles: tuple[Process, ...] = ()
    supervisor: Supervisor | None = None
    job_number: Name | None = None
    pending: Name | None = None
    attempts: tuple[Attempt, ...] = ()
    waiting_for: tuple[Name, ...] = ()
    head_replaces: bool = False
    files: tuple[NewFiles, ...] = ()
    held_at: Moment | None = None
    cost_usd: Usd | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.spec.id

    @property
    def name(self) -> str:
        """The job's name."""
        return self.spec.name

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDED

    def end(self, state: JobState, exit_code: int | None, error: str | None, left: Left, *, at: float) -> None:
        """Records the job's end, with the processes that are left. at: seconds since the epoch."""
        self.state, self.exit_code, self.error, self.left, self.ended_at = state, exit_code, error, left, at
        self.stall, self.waiting_for, self.head_replaces = None, (), False

    @property
    def result(self) -> JobResult:
        """How the job ended, if it has ended."""
        last = self.attempts[-1] if self.attempts else None
        return JobResult(
            state=self.state,
            exit_code=self.exit_code,
            error=self.error,
            cause=last.cause if last else None,
            culprit=last.culprit if last else None,
            left=self.left,
        )


class Unhealthy(Struct, frozen=True, kw_only=True):
    """An unhealthy node, as the head records it. id: its instance id, or its name if it has none."""

    id: Name
    reasons: tuple[Name, ...]


_FIRST_KEY = re.compile(rb'\s*\{\s*"([A-Za-z_]{1,40})"\s*:')


def find_first_key(line: bytes) -> str:
    """The first key of a line's JSON object, which shows the kind of a line from the head; "" for other lines."""
    found = _FIRST_KEY.match(line)
    return found[1].decode("ascii") if found is not None else ""


def printable(text: str, most: int) -> str:
    """At most so many characters of a text, without control characters. Pure."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])
