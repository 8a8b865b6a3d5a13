"""Grid Engine: qsub, qstat, qconf, qdel and qacct."""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from node.engines.scheduler import (
    REACHED_WALLTIME,
    AllocatedNode,
    AllocationState,
    QueueLimits,
    Response,
    Scheduler,
    add_reason,
    begin_with_letter,
    parse_clock,
    parse_count,
)
from node.protocol import AllocationRequest

_JOB = re.compile(r"<job_list[^>]*>(.*?)</job_list>", re.DOTALL)
_FIELD = re.compile(r"<(JB_job_number|state|queue_name|master|tasks)>([^<]*)</")
_NEEDS_OPTION = 'set [queue] slots_per_node, or name one with options = ["-pe NAME SLOTS"]'
_LONGEST_REASON = 200
VAGUE = "Grid Engine ended it (qdel, a limit, or a failed node)"
"""The reason until the accounting file contains the job, up to 15 seconds later."""


class SgeScheduler(Scheduler):
    """Allocates nodes through a parallel environment of the queue; whole nodes unless slots_per_node is set."""

    name = "sge"
    title = "Grid Engine"
    directive = "#$"
    list_queues = "qconf -sql"
    submit = ("qsub", "-terse")  # prints only the number
    limits = ("sh", "-c", "qconf -sq '*' && for name in $(qconf -spl); do qconf -sp $name; done")
    forms = ("-q {}", "-l h_rt={}", "-A {}")

    def _options(self, request: AllocationRequest) -> list[str]:
        slots = request.nodes * max(1, request.slots_per_node)
        return [
            f"-N {begin_with_letter(request.name)}",
            "-S /bin/sh",
            "-o /dev/null",
            "-j y",
            "-r n",
            *([f"-pe {request.environment} {slots}"] if request.environment else []),
        ]

    def parse_limits(self, text: str) -> tuple[QueueLimits, ...]:
        """All queues, from the output of `limits`: each begins with its qname, a parallel environment with pe_name."""
        blocks = [_parse_fields(block) for block in re.split(r"^(?=(?:qname|pe_name)\s)", text, flags=re.MULTILINE)]
        rules = {block["pe_name"]: block.get("allocation_rule", "") for block in blocks if "pe_name" in block}
        return tuple(_parse_queue(block, rules) for block in blocks if "qname" in block)

    def check(self, request: AllocationRequest, queues: Sequence[QueueLimits]) -> AllocationRequest:
        """Also chooses the parallel environment and, for whole nodes, the number of slots.

        Raises ValueError also if no environment gives each node the same number of slots, or the request fits several
        queues, whose environments may differ.
        """
        request, limits = super().check(request, queues), self.find_queue(request, queues)
        if any(option.startswith("-pe ") for option in request.options):
            return request
        if limits is None:
            if request.nodes == 1 and request.slots_per_node <= 1:
                return request
            known = ", ".join(one.name for one in queues)
            raise ValueError(f"set [queue] name: {self.title} has several queues ({known})")
        slots = request.slots_per_node or limits.slots
        if not slots:
            raise ValueError(
                f'nodes of queue "{limits.name}" have different numbers of slots: set [queue] slots_per_node'
            )
        request = replace(request, slots_per_node=slots)
        if request.nodes == slots == 1:
            return request
        for name, rule in limits.rules.items():
            if _fits(rule, nodes=request.nodes, slots=slots, is_whole=slots == limits.slots):
                return replace(request, environment=name)
        found = ", ".join(f"{name}: {rule}" for name, rule in limits.rules.items()) or "none"
        raise ValueError(
            f'queue "{limits.name}" has no parallel environment that gives {slots} slots on each of {request.nodes} '
            f"nodes (allocation rules: {found}); {_NEEDS_OPTION}"
        )

    def state_command(self, number: str) -> tuple[str, ...]:
        """The command that lists all jobs of this user, with a line for each slot."""
        return ("qstat", "-xml", "-g", "t")

    def parse_state(self, answer: Response, number: str) -> AllocationState:
        """The state, from state_command. Raises ValueError if the qmaster does not answer."""
        if answer.exit_code != 0 or "<job_info" not in answer.stdout:
            raise ValueError(answer.error)
        rows = [dict(_FIELD.findall(row)) for row in _JOB.findall(answer.stdout)]
        job, _, task = number.partition(".")
        rows = [row for row in rows if row.get("JB_job_number") == job and task in ("", row.get("tasks"))]
        if not rows:
            return AllocationState("ended", VAGUE, is_vague=True)
        state = rows[0].get("state", "")
        if "E" in state:
            return AllocationState("pending", "Grid Engine could not start it (state Eqw)")
        running = [row for row in rows if "@" in row.get("queue_name", "")]
        if not running or "q" in state:
            return AllocationState("pending", "waits for free slots")
        running.sort(key=lambda row: row.get("master") != "MASTER")
        hosts = dict.fromkeys(row["queue_name"].partition("@")[2] for row in running)
        return AllocationState("running", nodes=tuple(AllocatedNode(host) for host in hosts))

    def more_command(self, number: str, found: AllocationState) -> tuple[str, ...]:
        """The command that reports why the job waits, or how it ended."""
        job, _, task = number.partition(".")
        account = ("qacct", "-j", job, *(("-t", task) if task else ()))
        return {"pending": ("qstat", "-j", job), "ended": account, "running": ()}[found.state]

    def parse_more(self, answer: Response, found: AllocationState) -> AllocationState:
        """The state with its reason. How a job has ended is known only where the accounting file can be read."""
        if found.state == "ended":
            return add_reason(found, _explain_end(_parse_fields(answer.stdout)))
        joined = re.sub(r"\n\s{8,}", "\n", answer.stdout)
        error = re.search(r"^error reason[^:]*:\s*(.*)$", joined, re.MULTILINE)
        if error is not None:
            return add_reason(found, error[1].strip())
        lines = joined.partition("scheduling info:")[2].split("\n")
        return add_reason(found, "; ".join(filter(None, map(str.strip, lines)))[:_LONGEST_REASON])


def _explain_end(fields: dict[str, str]) -> str:
    failed, _, scheduling = fields.get("failed", "").partition(":")
    code = fields.get("exit_status", "").split(" ")[0]
    if "h_rt" in scheduling:
        return f"{REACHED_WALLTIME} (h_rt)"
    if failed.strip() == "100":  # a signal ended the script: qdel, or a limit that its execution host enforces
        return f"its batch script was killed (exit code {code}): qdel, or a limit"
    if failed.strip() not in ("", "0"):
        return f"it failed: {scheduling.strip()}"
    return f"its batch script ended (exit code {code})" if code else ""


def _fits(rule: str, *, nodes: int, slots: int, is_whole: bool) -> bool:
    """Whether an allocation rule assigns this many slots on each node. is_whole: `slots` is all slots of a node."""
    if rule == "$pe_slots":
        return nodes == 1
    if rule in ("$fill_up", "$round_robin"):
        return is_whole
    return parse_count(rule) == slots


def _parse_fields(text: str) -> dict[str, str]:
    """Parses `NAME   VALUE` lines."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return {name: value.strip() for name, value in re.findall(r"^(\w+)[ \t]+(.*)$", joined, re.MULTILINE)}


def _first(text: str) -> str:
    """The value for all hosts in VALUE,[HOST=VALUE],..."""
    return text.partition(",")[0].strip()


def _parse_queue(fields: dict[str, str], rules: dict[str, str]) -> QueueLimits:
    limits: list[tuple[int, str]] = []
    for key in ("h_rt", "s_rt"):
        seconds: int | None = parse_clock(_first(fields.get(key, "")))
        if seconds is not None:
            limits.append((seconds, f"{key} {_first(fields[key])}"))
    longest = min(limits, default=None)
    # NAME NAME,[HOST=NAME]: those for all hosts.
    environments = fields.get("pe_list", "NONE").partition(",[")[0]
    names = [] if environments == "NONE" else re.findall(r"[^\s,\[\]=]+", environments)
    slots = fields.get("slots", "")
    return QueueLimits(
        name=fields["qname"],
        max_walltime_s=longest[0] if longest is not None else None,
        slots=(parse_count(slots) or 0) if "[" not in slots else 0,
        rules={name: rules[name] for name in names if name in rules},
        words={"max_walltime_s": longest[1] if longest is not None else "", "slots": f"slots {slots}"},
    )
