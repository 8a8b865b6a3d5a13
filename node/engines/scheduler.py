"""The interface of a batch scheduler: how to request nodes, follow the request and release the nodes. Pure.

The supervisor submits a batch script that only holds the nodes, and starts the job's processes on them itself. A
scheduler here therefore renders that script, builds the command lines of the scheduler's programs, and parses their
output.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from node.protocol import AllocationRequest
from node.setup.process_tree import JOB_VARIABLE

HOLD_EVERY_S, GRACE_S = 5, 60
"""How often the batch script looks for processes of the job, and how long it waits for one."""
_ENDLESS = frozenset({"", "UNLIMITED", "INFINITY", "NONE", "INFINITE"})


class Response(Struct, frozen=True):
    """The output and exit code of a scheduler's program."""

    stdout: str
    stderr: str = ""
    exit_code: int = 0

    @property
    def error(self) -> str:
        """The last line of stderr, else of stdout, else the exit code; not `Try "sbatch --help" ...`."""
        lines = (self.stderr.strip() or self.stdout.strip() or f"exit code {self.exit_code}").splitlines()
        return next((line for line in reversed(lines) if not line.startswith("Try ")), lines[-1]).strip()


class QueueLimits(Struct, frozen=True):
    """The limits of a queue; None: no limit, or an unknown one.

    nodes: the number of its nodes. slots: the slots of each node, 0 if unknown. rules: the allocation rules of its
    parallel environments, by name. words: the scheduler's own words for a limit, by the name of the field here.
    """

    name: str
    is_default: bool = False
    is_open: bool = True
    max_walltime_s: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    nodes: int | None = None
    slots: int = 0
    rules: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)


class AllocatedNode(Struct, frozen=True):
    """A node that the scheduler has assigned. address: "" if the scheduler did not report it."""

    name: str
    address: str = ""


REACHED_WALLTIME = "it reached its walltime"
"""The beginning of the reason of every job that its scheduler has ended for its walltime."""


class AllocationState(Struct, frozen=True):
    """The state of a request.

    reason: why it is pending, or why it has ended. nodes: its nodes while it runs, with that of the batch script first.
    is_vague: the scheduler did not report why it has ended.
    """

    state: Literal["pending", "running", "ended"]
    reason: str = ""
    nodes: tuple[AllocatedNode, ...] = ()
    is_vague: bool = False


class Scheduler(ABC):
    """One batch scheduler. Subclasses set the names and override what differs."""

    name = ""
    """Its [train] launcher."""
    title = ""
    queue_word = "queue"
    directive = ""
    """The prefix of the script's lines that the scheduler reads."""
    list_queues = ""
    """The command that shows the user all queues."""
    number = r"([0-9]+)"
    """The pattern of the last line that `submit` prints, with the job number in a group."""
    forms = ("-q {}", "-l walltime={}", "-A {}")
    """The options for queue, walltime and account."""
    submit: tuple[str, ...] = ()
    """The command that submits a script, whose path follows."""
    cancel: tuple[str, ...] = ("qdel",)
    """The command that cancels a job and so releases its nodes; its number follows. It may fail for an ended job."""
    limits: tuple[str, ...] = ()
    """The command that describes all queues; () if `submit` refuses what they do not allow."""

    # -- submission ----------------------------------------------------------------------------------------------------

    def render_script(self, request: AllocationRequest) -> str:
        """The batch script, which holds the nodes while the job runs."""
        walltime = "" if request.walltime_s is None else render_clock(request.walltime_s)
        values = zip(self.forms, (request.queue, walltime, request.account), strict=True)
        options = [*self._options(request), *(form.format(value) for form, value in values if value), *request.options]
        lines = [f"{self.directive} {option}" for option in options]
        return "\n".join(["#!/bin/sh", *lines, "", *render_holder(request.job)])

    @abstractmethod
    def _options(self, request: AllocationRequest) -> list[str]:
        """The options of the script's directives, without queue, walltime and account."""

    def parse_job_number(self, text: str) -> str:
        """The job number in the output of `submit`. Raises ValueError."""
        found = re.search(rf"^{self.number}\s*\Z", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"no job number in {text.strip()[:80]!r}")
        return found[1]

    # -- limits --------------------------------------------------------------------------------------------------------

    def parse_limits(self, text: str) -> tuple[QueueLimits, ...]:
        """All queues, from the output of `limits`."""
        return ()

    def find_queue(self, request: AllocationRequest, queues: Sequence[QueueLimits]) -> QueueLimits | None:
        """The request's queue; None for an unknown name, or if the request has none and the default is unknown."""
        if request.queue:
            return next((one for one in queues if one.name == request.queue), None)
        return next((one for one in queues if one.is_default), queues[0] if len(queues) == 1 else None)

    def check(self, request: AllocationRequest, queues: Sequence[QueueLimits]) -> AllocationRequest:
        """The request, completed with its queue's values. Raises ValueError if the queue does not allow it."""
        limits = self.find_queue(request, queues)
        problem = where = ""
        if limits is not None:
            problem = find_problem(request, limits)
            where = f'{self.title} {self.queue_word} "{limits.name}"'
        elif request.queue:
            where, known = self.title, ", ".join(one.name for one in queues) or "none"
            problem = f'has no {self.queue_word} "{request.queue}" (it has: {known})'
        if problem:
            raise ValueError(f"{where} {problem}; to list them: {self.list_queues}")
        return request

    # -- state ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def state_command(self, number: str) -> tuple[str, ...]:
        """The command that shows the state of a job."""

    @abstractmethod
    def parse_state(self, answer: Response, number: str) -> AllocationState:
        """The state, from state_command. Raises ValueError if the scheduler does not answer."""

    def more_command(self, number: str, found: AllocationState) -> tuple[str, ...]:
        """The command that reports what a state lacks, its reason or the nodes' addresses; () if it lacks nothing."""
        return ()

    def parse_more(self, answer: Response, found: AllocationState) -> AllocationState:
        """The state, completed from more_command."""
        return found


def find_problem(request: AllocationRequest, limits: QueueLimits) -> str:
    """Why a queue does not allow a request, with the queue's numbers; "" if it does. Pure."""
    longest_s, most, least = limits.max_walltime_s, limits.max_nodes, limits.min_nodes
    words, nodes, walltime_s = limits.words, request.nodes, request.walltime_s
    wanted, problem = f"{nodes} ([train] nodes)", ""
    if not limits.is_open:
        problem = f"does not accept or start jobs ({words.get('is_open', 'closed')})"
    elif walltime_s and longest_s is not None and walltime_s > longest_s:
        allowed = f"allows at most {render_clock(longest_s)} ({words['max_walltime_s']})"
        problem = f"{allowed}, and the job asks for {render_clock(walltime_s)}"
    elif most is not None and nodes > most:
        problem = f"allows at most {count_nodes(most)} ({words['max_nodes']}), and the job needs {wanted}"
    elif limits.nodes is not None and nodes > limits.nodes:
        problem = f"has {count_nodes(limits.nodes)} ({words['nodes']}), and the job needs {wanted}"
    elif least is not None and nodes < least:
        problem = f"needs at least {count_nodes(least)} ({words['min_nodes']}), and the job uses {wanted}"
    elif limits.slots and request.slots_per_node > limits.slots:
        asked = f"[queue] slots_per_node is {request.slots_per_node}"
        problem = f"has {limits.slots} slots per node ({words['slots']}), and {asked}"
    return problem


def render_holder(job: str) -> list[str]:
    """The lines of a script that runs until its node, the first one, has had no process of the job for a minute.

    The agent there is one: it ends with the job, and when it loses the supervisor.
    """
    return [
        "# Holds the nodes for `cluster train`, which starts the processes of the job itself.",
        "idle_s=0",
        f"while [ $idle_s -lt {GRACE_S} ]; do",
        f"    sleep {HOLD_EVERY_S}",
        f"    idle_s=$((idle_s + {HOLD_EVERY_S}))",
        f"    ! grep -qszx {JOB_VARIABLE}={job} /proc/[0-9]*/environ || idle_s=0",
        "done",
        "exit 1",
        "",
    ]


def begin_with_letter(name: str) -> str:
    """A job's name in the form that PBS and Grid Engine accept. Pure."""
    return name if name[:1].isalpha() else f"j{name}"


def render_clock(seconds: int) -> str:
    """A duration in the form that schedulers read: 1:02:03 is an hour, two minutes and three seconds."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def parse_clock(text: str) -> int | None:
    """The seconds in "1-02:00:00", "26:00:00", "10:00" or "600"; None for no limit. Raises ValueError."""
    if text.upper() in _ENDLESS:
        return None
    found = re.fullmatch(r"(?:([0-9]{1,6})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})", text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a length of time")
    seconds = 0
    for part in found[2].split(":"):
        seconds = 60 * seconds + int(part)
    return seconds + 86400 * int(found[1] or 0)


def parse_count(text: str) -> int | None:
    """The number in `text`; None for UNLIMITED and other words."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def add_reason(found: AllocationState, reason: str) -> AllocationState:
    """The state with another reason, if there is one."""
    return replace(found, reason=reason, is_vague=False) if reason else found


def count_nodes(count: int) -> str:
    """The count with its noun, such as "2 nodes"."""
    return f"{count} node{'' if count == 1 else 's'}"
