"""The stacks of a job's processes: where each one is, and for which ones the others wait. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from node.protocol import Count, Name, printable

LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|^<frozen")
# Modules whose functions wait for other processes, or for an engine that does. Saving a checkpoint is work of its own.
WAITS_IN = re.compile(
    r"/torch/distributed/(?!checkpoint/)|/torch/autograd/graph\.py|/torch/cuda/__init__\.py|/horovod/"
    r"|/mxnet/(kvstore|ndarray/ndarray\.py)"
)
# Libraries that wait for other processes by using the CPU, or for a GPU on which NCCL does.
WAITS_IN_LIBRARY = re.compile(r"(^|/)lib(mpi|open-pal|nccl|cuda|cudart)[-.\w]*\.so")
MOST_LOCATIONS = 4  # lines of programs in a message, and processes at one of them
LONGEST_NAME = 200  # characters of a function or a file in a message
MOST_FRAMES = 6  # of a stack in one line
NOT_PYTHON = "it runs no Python program"
WORLD = "(default_pg)"  # how PyTorch describes the process group of all ranks
Text = Annotated[str, Meta(max_length=4096)]


class Frame(Struct, frozen=True):
    """A frame of a stack, as `py-spy dump --json` prints it. With --native also those of C, whose line may be 0."""

    name: Text
    filename: Text
    line: int
    short_filename: Text | None = None

    @property
    def location(self) -> str:
        """Such as "steps.py:7"."""
        return printable(f"{self.short_filename or self.filename}:{self.line}", LONGEST_NAME)


class Thread(Struct, frozen=True):
    """A thread. frames: the innermost one first."""

    frames: tuple[Frame, ...] = ()
    os_thread_id: int | None = None
    thread_name: Text | None = None


class Program(Struct, frozen=True, kw_only=True):
    """A Python program of a process of the job: its own, or one that it has started. words: its command line."""

    pid: Count
    words: Text
    threads: tuple[Thread, ...] = ()


class Collective(Struct, frozen=True, kw_only=True):
    """What a process does in a process group of PyTorch. entered: the number of the last collective that it began.

    number, call: the first one that is not finished, such as "all_reduce of 5x3"; 0 and "" if all are.
    """

    group: Text
    entered: Count
    number: Count = 0
    call: Text = ""


class Location(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the program of a process is. text: such as "train.py:11 (barrier)"; "" if unknown: `why` is the reason.

    waits: it is in a function that waits for other processes. stack: its own frames in one line, the innermost first.
    nccl: what NCCL, asked in this process, finds wrong with the job. collectives: None if PyTorch does not say.
    programs: with their whole stacks, if these were asked for.
    """

    text: Text = ""
    waits: bool = False
    stack: Text = ""
    why: Text = ""
    nccl: tuple[Text, ...] = ()
    collectives: tuple[Collective, ...] | None = None
    programs: tuple[Program, ...] = ()


class Stack(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a process of a job is."""

    role: Name
    host: Name
    rank: Count | None = None
    location: Location = Location()

    @property
    def name(self) -> str:
        """The process's name in messages."""
        return f"{self.role}{'' if self.rank is None else f' {self.rank}'} on {self.host}"


def find_location(frames: Sequence[Frame]) -> Location:
    """Where a thread is: at its program's own line, and in what that calls. frames: the innermost one first."""
    began, frames = frames, [frame for frame in frames if frame.filename.endswith((".py", ">"))]
    if not frames:
        return Location(why=NOT_PYTHON)
    first = frames[0]
    called = began[: began.index(first)]  # in C
    if all(frame.name != "<module>" for frame in frames):  # Python ends: it had fewer batches than those that wait
        return Location(text=f"the end of the program ({printable(first.name, LONGEST_NAME)})", stack=render(frames))
    own = [frame for frame in frames if not LIBRARY.search(frame.filename)]
    at = next((frame for frame in own if frame.filename != "<string>"), next(iter(own), first))  # MXNet generates some
    within = "" if first.name == "<module>" else f" in {first.name}()" if at is first else f" ({first.name})"
    waits = bool(WAITS_IN.search(first.filename)) or any(WAITS_IN_LIBRARY.search(one.filename) for one in called)
    return Location(text=at.location + printable(within, LONGEST_NAME), waits=waits, stack=render(frames))


def render(frames: Sequence[Frame]) -> str:
    """Renders the innermost frame and the program's own ones in one line."""
    own = [frame for frame in frames if frame is frames[0] or not LIBRARY.search(frame.filename)]
    return " < ".join(f"{printable(frame.name, LONGEST_NAME)} ({frame.location})" for frame in own[:MOST_FRAMES])


def group_locations(locations: Mapping[str, Location]) -> list[tuple[Location, list[str]]]:
    """Groups processes by the line at which they are: [(place, names), ...].

    First those that do not wait, for which the others may wait; then those apart from most others. Two calls in one
    line are one location.
    """
    groups: dict[tuple[str, bool], tuple[Location, list[str]]] = {}
    for name, location in locations.items():
        if location.text:
            groups.setdefault((location.text.partition(" (")[0], location.waits), (location, []))[1].append(name)
    return sorted(groups.values(), key=lambda group: (group[0].waits, len(group[1])))


def list_findings(locations: Mapping[str, Location], *, most: int, is_kv_store: bool = False) -> list[str]:
    """Where workers are, and what shows for which of them the others wait. is_kv_store: it is synchronous."""
    texts = list_locations(locations, most=most)
    texts += [_describe_kv_store(locations) if is_kv_store else "", describe_unseen(locations)]
    texts += [f"NCCL: {text}" for location in locations.values() for text in location.nccl]
    return [*filter(None, texts), *list_collectives(locations)]


def list_locations(locations: Mapping[str, Location], *, most: int) -> list[str]:
    """Describes the groups of group_locations, one by one; of more than `most`, how many processes the others have."""
    groups = group_locations(locations)
    if len(groups) == 1 < len(locations) == len(groups[0][1]):
        location = groups[0][0]
        return [f"all {len(locations)} {'wait' if location.waits else 'are'} at {location.text.partition(' (')[0]}"]
    shown = groups if len(groups) <= most else [*groups[: most - 1], groups[-1]]
    last = groups[-1][1] if len(groups) > 1 else ()
    hidden = sum(len(names) for _, names in groups) - sum(len(names) for _, names in shown)
    lines = [describe_group(location, names, is_last=names is last) for location, names in shown]
    return [*lines, f"{hidden} more {'is' if hidden == 1 else 'are'} at other lines"] if hidden else lines


def describe_group(location: Location, names: Sequence[str], *, is_last: bool) -> str:
    """Describes where the processes of a group are. is_last: without names, unless it is only one."""
    is_one = len(names) == 1
    who = ", ".join(names) if is_one or (len(names) <= MOST_LOCATIONS and not is_last) else f"{len(names)} others"
    verb = ("waits" if is_one else "wait") if location.waits else ("is" if is_one else "are")
    return f"{who} {verb} at {location.text}"


def _name(names: Sequence[str], noun: str) -> str:
    return ", ".join(names) if len(names) <= MOST_LOCATIONS else f"{len(names)} {noun}"


def _describe_kv_store(locations: Mapping[str, Location]) -> str:
    """For which workers a synchronous kv-store waits: while others wait, they have not pushed. "" for none."""
    late = [name for name, location in locations.items() if location.text and not location.waits]
    if not late or not any(location.waits for location in locations.values()):
        return ""
    return f"the kv-store waits for what {_name(late, 'workers')} {'pushes' if len(late) == 1 else 'push'}"


def describe_unseen(locations: Mapping[str, Location]) -> str:
    """Describes of which processes no location is known, and why; "" for none. Programs without Python do not count."""
    unseen = [name for name, location in locations.items() if location.why and location.why != NOT_PYTHON]
    return f"no stack of {_name(unseen, 'processes')}: {locations[unseen[0]].why}" if unseen else ""


def list_collectives(locations: Mapping[str, Location]) -> list[str]:
    """For each process group of PyTorch, the first collective that is not finished, and who is in it or before it."""
    recorded = {name: location.collectives for name, location in locations.items()}
    groups = sorted({one.group for collectives in recorded.values() for one in collectives or ()})
    return [text for group in groups if (text := _describe_collective(group, recorded))]


def _describe_collective(group: str, recorded: Mapping[str, Sequence[Collective] | None]) -> str:
    """Returns "" if all are finished. A process that has finished the first one is not named."""
    known = {name: one for name, found in recorded.items() for one in found or () if one.group == group}
    others = {name: found for name, found in recorded.items() if name not in known and group.endswith(WORLD)}
    number = min((one.number for one in known.values() if one.call), default=0)
    if not number:
        return ""
    at = {name: Location(text=one.call, waits=True) for name, one in known.items() if one.call and one.number == number}
    at |= {name: Location(text="an earlier one") for name, one in known.items() if one.entered < number}
    at |= {name: Location(text=f"an {'unknown' if found is None else 'earlier'} one") for name, found in others.items()}
    return f"collective {number} of group {group}: {'; '.join(list_locations(at, most=MOST_LOCATIONS))}"


def list_stacks(locations: Mapping[str, Location]) -> tuple[str, ...]:
    """The stacks of one process of each group, in the order of group_locations, one line each."""
    return tuple(
        f"{names[0]}: {location.stack}"
        for location, names in group_locations(locations)[:MOST_LOCATIONS]
        if location.stack
    )
