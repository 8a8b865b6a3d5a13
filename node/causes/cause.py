"""Why a process of a job has failed: by its last lines, its exit code, and the clues that its host has. Pure."""

import re
from collections.abc import Sequence

from node.causes.mistakes import Mistake, find_mistake, without_rank
from node.health import judge_xids, parse_xids
from node.wire import Clues

LONGEST = 2000  # characters of a line that are examined
MOST_LINES = 100  # the last ones of a process
KILLED, BUS_ERROR, CRASHES = 137, 135, frozenset({132, 135, 137, 139})
NO_SPACE = "No space left on device"
BEGIN = "Traceback (most recent call last):"
_OOM = re.compile(r"Killed process (\d+) \((.*?)\).*?anon-rss:(\d+)kB")
_LIBRARY = re.compile(r"(?:trap invalid opcode|segfault at) .* in (\S+?)\[")
_OF_GPU = re.compile(r"CUDA|NCCL|CUBLAS|CUDNN|GPU|nccl")

LESS_MEMORY = "use a smaller `--batch-size`, fewer workers per node, or a larger instance_type"
SHM_FULL = 'its /dev/shm is full: set a larger `[container] shm_size`, or with "auto" enlarge the node\'s'
CRASHED = "it crashed in compiled code: `--env PYTHONFAULTHANDLER=1` shows the line of Python that called it"
ENDINGS = {
    137: f"killed by SIGKILL: unless somebody did it, the node ran out of memory (`cluster exec -- sudo dmesg`): "
    f"{LESS_MEMORY}",
    132: "illegal instruction: a package was built for a newer CPU than the node's: take another build of it",
    139: CRASHED,
    135: "killed by SIGBUS: /dev/shm was too small (`cluster exec -- df -h /dev/shm`), or a mapped file was cut short",
    127: "the node does not find the command: python is on its PATH; for other programs give the path, or install them "
    "in `[bootstrap] setup`",
    126: "the command is not executable on the node: chmod +x, or python SCRIPT",
}
"""Advice by the exit code of the first process that fails; 128 + N is signal N."""
ENDINGS_IN_CONTAINERS = {
    **ENDINGS,
    135: f"killed by SIGBUS: {SHM_FULL}; if it is not full, {CRASHED}",
    127: "the image does not have the command, or not on its PATH: python may be python3 there; setup commands change "
    "the nodes, not the image",
    126: "the command is not executable in the image",
}
"""The same for jobs with [container] image."""


def find_last(lines: Sequence[str]) -> tuple[Mistake, str, str] | None:
    """The last known mistake in a process's last lines, from its first traceback on: (mistake, advice, line).

    Mistakes of the process itself count before those that are about others.
    """
    texts = [without_rank(line) for line in lines]
    begin = texts.index(BEGIN) if BEGIN in texts else 0
    matches = [(find_mistake(line), line) for line in reversed(texts[begin:])]
    found = [(match[0], match[0].advice.format(**match[1]), line) for match, line in matches if match is not None]
    return next((one for one in found if not one[0].of_peer), found[0] if found else None)


def is_of_peer(lines: Sequence[str]) -> bool:
    """Whether a process has failed because another one is gone or late."""
    found = find_last(lines)
    return found is not None and found[0].of_peer


def find_cause(lines: Sequence[str], exit_code: int, clues: Clues, *, contained: bool = False) -> str | None:
    """The cause of a process's failure and its remedy, in one line; None if it is unknown.

    lines: its last MOST_LINES lines. exit_code: 128 + N for signal N. contained: it ran in a container.
    """
    found = None if exit_code in CRASHES else find_last(lines)
    mistake, advice, line = found or (None, None, "")
    oom = _explain_oom(clues) if exit_code == KILLED or mistake is None or mistake.of_memory else None
    xids = parse_xids("\n".join(clues.kernel)) or ()
    if oom is not None:
        return oom
    if xids and (advice is None or _OF_GPU.search(line)):
        faults = judge_xids(xids)
        if faults:
            return f"{'; '.join(faults)}: not the program's fault: `cluster verify` checks the GPUs"
        bus, number, text = xids[0]  # later ones follow from it
        return "; ".join(filter(None, (advice, f"the kernel reports Xid {number} ({bus}): {text}")))
    if clues.shm_full and (exit_code == BUS_ERROR or NO_SPACE in line):
        return SHM_FULL
    return advice or _explain_ending(exit_code, clues, contained=contained)


def _explain_oom(clues: Clues) -> str | None:
    """Describes the newest process that the OOM killer has ended since the attempt began."""
    found = [match for line in clues.kernel if (match := _OOM.search(line)) is not None]
    if not (found if clues.oom_kills is None else clues.oom_kills):
        return None
    who, why = "a process (its name, in the kernel's log, needs root)", "the node's memory was full"
    if found:
        pid, name, used_kib = found[-1].groups()
        who = f"process {pid} ({name}), which used {int(used_kib) / (1 << 20):.1f} GiB"
        why = "the limit of its control group was reached" if "Memory cgroup" in found[-1].string else why
    return f"the kernel's OOM killer ended {who}: {why}: {LESS_MEMORY}"


def _explain_ending(exit_code: int, clues: Clues, *, contained: bool) -> str | None:
    if exit_code == KILLED and clues.oom_kills == 0:
        return "killed by SIGKILL, and not by the kernel's OOM killer: somebody or another program did it"
    advice = (ENDINGS_IN_CONTAINERS if contained else ENDINGS).get(exit_code)
    libraries = _LIBRARY.findall("\n".join(clues.kernel))
    return f"{advice} (in {libraries[-1]})" if libraries and advice else advice
