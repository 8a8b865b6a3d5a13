"""Why a process of a job has failed: by its last lines, its exit code, and the clues that its host has. Pure."""

import re
from collections.abc import Sequence

from msgspec import Struct

from node.causes.known_mistakes import ENDINGS, ENDINGS_IN_CONTAINERS, LESS_MEMORY, MISTAKES, OF_MEMORY, SHM_FULL
from node.causes.mistake import Mistake, find_mistake, render_advice, without_rank
from node.health import judge_xids, parse_xids
from node.wire import Clues

LONGEST = 2000  # characters of a line that are examined
MOST_LINES = 100  # the last ones of a process
KILLED, BUS_ERROR, CRASHES = 137, 135, frozenset({132, 135, 137, 139})
BEGIN = "Traceback (most recent call last):"
_OOM = re.compile(r"Killed process (\d+) \((.*?)\).*?anon-rss:(\d+)kB")
_LIBRARY = re.compile(r"(?:trap invalid opcode|segfault at) .* in (\S+?)\[")
_OF_GPU = re.compile(r"CUDA|NCCL|CUBLAS|CUDNN|GPU")


class Match(Struct, frozen=True):
    """A line that shows a known mistake."""

    mistake: Mistake
    advice: str
    line: str


def find_match(lines: Sequence[str]) -> Match | None:
    """The last known mistake in a process's last lines, from its first traceback on if they have one.

    Mistakes of the process itself count before those that are about others.
    """
    texts = [without_rank(line) for line in lines]
    begin = texts.index(BEGIN) if BEGIN in texts else 0
    found = [match for line in reversed(texts[begin:]) if (match := _match(line)) is not None]
    return next((match for match in found if not match.mistake.of_peer), found[0] if found else None)


def _match(line: str) -> Match | None:
    found = find_mistake(line, MISTAKES)
    return Match(found[0], render_advice(*found), line) if found is not None else None


def is_of_peer(lines: Sequence[str]) -> bool:
    """Whether a process has failed because another one is gone or late."""
    match = find_match(lines)
    return match is not None and match.mistake.of_peer


def find_cause(lines: Sequence[str], exit_code: int, clues: Clues, *, contained: bool = False) -> str | None:
    """The cause of a process's failure and its remedy, in one line; None if it is unknown.

    lines: its last MOST_LINES lines. exit_code: 128 + N for signal N. contained: it ran in a container.
    """
    match = None if exit_code in CRASHES else find_match(lines)
    if exit_code == KILLED or match is None or match.advice in OF_MEMORY:
        oom = _explain_oom(clues)
        if oom is not None:
            return oom
    xids = parse_xids("\n".join(clues.kernel)) or ()
    if xids and (match is None or _OF_GPU.search(match.line)):
        faults = judge_xids(xids)
        if faults:
            return f"{'; '.join(faults)}: not the program's fault: `cluster verify` checks the GPUs"
        bus, number, text = xids[0]
        said = f"the kernel reports Xid {number} ({bus}): {text}"
        return said if match is None else f"{match.advice}; {said}"
    return match.advice if match is not None else _explain_ending(exit_code, clues, contained=contained)


def _explain_oom(clues: Clues) -> str | None:
    """Describes the newest process that the OOM killer has ended since the attempt began."""
    found = [match for line in clues.kernel if (match := _OOM.search(line)) is not None]
    if not (found if clues.oom_kills is None else clues.oom_kills):
        return None
    if not found:
        who, why = "a process", "the node's memory was full (its kernel log, which has the name, needs root)"
    else:
        pid, name, used_kib = found[-1].groups()
        who = f"process {pid} ({name}), which used {int(used_kib) / (1 << 20):.1f} GiB"
        in_group = "Memory cgroup" in found[-1].string
        why = "the limit of its control group was reached" if in_group else "the node's memory was full"
    return f"the kernel's OOM killer ended {who}: {why}: {LESS_MEMORY}"


def _explain_ending(exit_code: int, clues: Clues, *, contained: bool) -> str | None:
    if exit_code == KILLED and clues.oom_kills == 0:
        return "killed by SIGKILL, and not by the kernel's OOM killer: somebody or another program did it"
    if exit_code == BUS_ERROR and clues.shm_full:
        return SHM_FULL
    advice = (ENDINGS_IN_CONTAINERS if contained else ENDINGS).get(exit_code)
    libraries = _LIBRARY.findall("\n".join(clues.kernel))
    is_in = f" (in {libraries[-1]})" if libraries and advice else ""
    return f"{advice}{is_in}" if advice else None
