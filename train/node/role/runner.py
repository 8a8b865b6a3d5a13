"""The commands of one process of a job, run on a node: what they print is passed on, and what they leave is ended.

When its other side goes away (the end of what it reads, or silence), it ends all processes of the job on this host,
whoever started them. What descends from its process becomes its own child at the latest when orphaned, and so is found
and ended whatever session, user or environment it has by then; and should this program be killed, its reaper's.
"""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Optional

from msgspec import convert

from bootstrap.node import process_tree
from foundation.decode import decode
from foundation.file_lock import is_held
from train.node import job_folder, wire
from train.node.role import environment, ps_lite
from train.node.role.reaper import Reaper
from train.node.wire import Command, Message, RoleOrder, Use

ALIVE_EVERY_S = 2.0
PIPE_GRACE_S = 0.5  # after the process's end, for a pipe that something holds which cannot be ended
PENDING_BYTES = 1 << 17
FEW_BYTES = 1 << 12  # what comes in larger pieces need not be gathered
SPARED_S = 1.5  # less than it takes to SIGKILL
LOOK_AT_DATA_S = 3.0  # of a start: not while the processor loads MXNet, which says most of it by itself a moment later


class Runner:
    """The commands of one order, one after the other, while the other side lives.

    reaper: who ends what we would leave, were we killed. lifeline: the descriptor to read from; out: the one to write
    to. is_pinged: the other side is reached over ssh, gives signs of life, and can vanish without a word.
    """

    def __init__(
        self,
        order: RoleOrder,
        reaper: Optional[Reaper],
        lifeline: int,
        out: int,
        read: bytes = b"",
        *,
        is_pinged: bool = True,
    ) -> None:
        self.order = order
        self.reaper = reaper
        self.lifeline: Optional[int] = lifeline
        self.outbox = wire.Outbox(out)
        os.set_blocking(lifeline, False)
        self.down = wire.LineBuffer(limit=1 << 20)
        self.heard_at = self.said_at = time.monotonic()
        self.is_pinged = is_pinged
        self.deaths = process_tree.watch_children()
        self.env: dict[str, str] = {}
        self.hides_verbose = False
        self.at = 0
        self.full_at = 0.0  # when it was last that there was no room for output
        self.pace = wire.Pace()
        self.why: Optional[str] = None
        self.child: Optional[subprocess.Popen[bytes]] = None
        self.source: Optional[int] = None
        self.lines = wire.LineBuffer()
        self.status: Optional[int] = None
        self.ended_at: Optional[float] = None
        self.after: Optional[process_tree.Ending] = None
        self.ending: Optional[process_tree.Ending] = None  # all that is being ended from outside, once it is
        self.lost_at = 0.0  # when the other side was, or the reaper
        self.told_left: list[process_tree.Process] = []
        for line in self.down.feed(read):
            self.hear(line)

    # -- what there is to do -------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run the commands; returns the exit code of the last one that ran, or 128 + the number of its signal."""
        process_tree.adopt_orphans()
        said = environment.raise_open_files(self.order.open_files)
        if said:
            self.say(said)
        try:
            self.env = environment.make(self.order)
        except (OSError, ValueError) as error:
            return self.finish(1, None, f"the environment of the job cannot be made: {error}")
        self.hides_verbose = self.env.get("PS_VERBOSE") == "1" and "PS_VERBOSE" not in self.order.env
        blocked = environment.find_blocked(self.env)
        if blocked:
            return self.finish(1, None, blocked)
        code = 0
        number: Optional[int] = None
        for at, command in enumerate(self.order.commands):
            self.at = at
            if self.ending is not None:
                code, number = 128 + signal.SIGTERM.value, signal.SIGTERM.value
            else:
                code, number = self.run_one(command)
            if code != 0:
                break
        return self.finish(code, number, self.why)

    def run_one(self, command: Sequence[str]) -> tuple[int, Optional[int]]:
        """Run a command and end what it leaves behind; returns its exit code, and its signal or None."""
        try:
            self.child = process_tree.start(command, self.env, self.order.cwd)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a word or a variable
            self.why = f"cannot start {command[0]!r}: {error}"
            return 127, None
        assert self.child.stdout is not None
        self.source, self.lines = self.child.stdout.fileno(), wire.LineBuffer()
        self.status = self.ended_at = None
        self.outbox.put(Message(started=self.child.pid))
        if self.order.data_url:
            look = threading.Timer(LOOK_AT_DATA_S, self.look_at_data)
            look.daemon = True
            look.start()
        while not self.is_over():
            self.step()
        self.put_lines(self.lines.flush())
        self.child.stdout.close()
        status = self.status or 0
        number = status & 0x7F or None
        return (128 + number if number else status >> 8), number

    def finish(self, code: int, number: Optional[int], why: Optional[str] = None) -> int:
        """Report the end, and wait until that is taken. why: what we have to say of it ourselves."""
        if why is not None:
            self.say(why)
        left = tuple((pid, words) for pid, _, words in self.told_left)
        ended = self.ending is not None
        self.outbox.put(Message(exit=code, signal=number, ended=ended, at=self.at, left=left, why=why))
        give_up_at = time.monotonic() + self.silence_s
        while self.outbox.pending and time.monotonic() < give_up_at:
            select.select([], [self.outbox.descriptor], [], 1.0)
            self.outbox.write()
        return code

    # -- what happens --------------------------------------------------------------------------------------------

    @property
    def silence_s(self) -> float:
        """For how long the other side may say nothing."""
        return 2 * self.order.silence_timeout_s  # the supervisor is to notice first

    def step(self) -> None:
        """Wait for something to happen, and do what it takes."""
        writes = [self.outbox.descriptor] if self.outbox.pending else []
        rest_s = 0.0 if self.is_ending() else self.pace.rest_s
        ready, _, _ = select.select(self.sources(rest_s), writes, [], self.wait_s(rest_s))
        if self.deaths in ready:
            wire.read_now(self.deaths)
        self.reap()
        if self.lifeline is not None and self.lifeline in ready:
            self.read_lifeline(self.lifeline)
        if self.source is not None and self.source in ready:
            self.read_source(self.source)
        if self.reaper is not None and self.reaper.descriptor in ready:
            self.lose_reaper()
        now = time.monotonic()
        if self.lifeline is not None and self.is_pinged and now > self.heard_at + self.silence_s:
            self.lose()
        if now > self.said_at + ALIVE_EVERY_S and not self.outbox.pending:
            self.outbox.put(Message(alive=True))
        if self.outbox.pending:
            self.said_at = now
            self.outbox.write()
        if self.outbox.broken and self.lifeline is not None:
            self.lose()

    def sources(self, rest_s: float) -> list[int]:
        """The descriptors to read from; not the process's output while it gathers, or is not taken."""
        found = [one for one in (self.deaths, self.lifeline) if one is not None]
        if self.reaper is not None:
            found.append(self.reaper.descriptor)
        if len(self.outbox.pending) >= PENDING_BYTES:
            self.full_at = time.monotonic()
        elif self.source is not None and not rest_s:
            found.append(self.source)
        return found

    def wait_s(self, rest_s: float) -> float:
        """For how long nothing need be done unless something happens."""
        if self.is_ending():
            return process_tree.LOOK_EVERY_S
        return rest_s or ALIVE_EVERY_S / 2

    def is_ending(self) -> bool:
        """Whether the command has ended, or is being ended."""
        return self.status is not None or self.ending is not None

    def read_source(self, source: int) -> None:
        """Take some of the command's output."""
        data = os.read(source, 1 << 16)
        if not data:
            self.source = None
        elif len(data) < FEW_BYTES:
            self.pace.note()
        self.put_lines(self.lines.feed(data) if data else self.lines.flush())

    def read_lifeline(self, lifeline: int) -> None:
        """Take what the other side says."""
        data = wire.read_now(lifeline)
        if data is None:
            return
        self.heard_at = time.monotonic()
        for line in self.down.feed(data):
            self.hear(line)
        if not data:
            self.lose()

    def hear(self, line: bytes) -> None:
        """A message from above."""
        message = decode(line, Command)
        if message.end and self.ending is None:
            self.ending = process_tree.Ending(process_tree.find_descendants)
        if message.reach:
            threading.Thread(target=self.reach, args=(message.reach,), daemon=True).start()
        if message.look:
            self.outbox.put(Message(look=convert(process_tree.describe_use(), Use)))

    def reach(self, places: Sequence[tuple[str, int]]) -> None:
        """Report those of these ports that cannot be reached."""
        self.outbox.put(Message(blocked=tuple(environment.find_unreachable(places))))  # goes out with the next step

    def look_at_data(self) -> None:
        """Report what keeps this host from reading the job's data: MXNet may wait in silence."""
        why = environment.find_unread(self.env, self.order.data_url or "")
        if why is not None:
            self.outbox.put(Message(unread=why))  # goes out with the next step

    def lose(self) -> None:
        """The other side is gone: everything of this job on this host ends."""
        self.lifeline = None
        self.lost_at = time.monotonic()
        self.ending = process_tree.Ending(self.find_all, self.spare)

    def lose_reaper(self) -> None:
        """Our reaper was killed: all ends here, and like a program that was killed we tell nobody of it.

        The end of what was to come from us is told at once: it would else come only with ours.
        """
        self.reaper = None
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever else ends the job may not find all of it
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2, self.outbox.descriptor):
            os.dup2(nowhere, descriptor)
        self.lose()

    def find_all(self) -> list[process_tree.Process]:
        """The processes of the job on this host, whoever started them, as `process_tree.find` has them."""
        found = set(process_tree.find_descendants()) | set(process_tree.find(self.order.job))
        return sorted(one for one in found if self.reaper is None or one[0] != self.reaper.pid)

    def spare(self, found: Sequence[process_tree.Process]) -> Iterable[process_tree.Process]:
        """Those of them that are not ours, for a moment, and here on the head while the supervisor lives: it ends them.

        It is to hear first of what was lost first, and not of what we end because of that: launch.py, which would tell
        it, may be on this host, too.
        """
        is_late = time.monotonic() > self.lost_at + SPARED_S
        if is_late and not is_held(job_folder.path(self.order.job, "lock")):
            return process_tree.our_programs_last(found)
        return set(found) - set(process_tree.find_descendants())

    def reap(self) -> None:
        """Take leave of all children that have ended."""
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if ended == 0:
                return
            if self.child is not None and ended == self.child.pid:
                self.status = status

    def is_over(self) -> bool:
        """Whether the command has ended, with all that descends from it, and its output has been read."""
        if self.ending is not None and self.ending.go_on():
            return False
        if self.status is None:
            if self.ending is None:
                return False
            self.status = signal.SIGKILL.value  # it does not end, and is told as left
        if self.ended_at is None or self.after is None:
            self.ended_at = time.monotonic()
            self.after = process_tree.Ending(process_tree.find_descendants)
        if self.after.go_on():
            return False
        self.told_left = self.ending.left if self.ending is not None else self.after.left
        waits_from = max(self.ended_at, self.after.over_at or 0.0, self.full_at)
        return self.source is None or time.monotonic() > waits_from + PIPE_GRACE_S

    # -- output --------------------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        """Say something of our own as a line of output."""
        self.outbox.put(Message(line=line))

    def put_lines(self, lines: Iterable[bytes]) -> None:
        """Pass lines of output on, but for those of ps-lite that only we have asked for: they tell the rank."""
        for line in lines:
            said = ps_lite.read(line)
            if said is not None:
                self.outbox.put(said)
            if self.hides_verbose and ps_lite.is_report(line) and not ps_lite.is_failure(line):
                continue
            self.outbox.put(Message(line=wire.text(line)))
