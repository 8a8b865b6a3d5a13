"""Runs the commands of one process of a job on a node, passes on their output, and ends the processes that they leave.

When the other side is lost (end of input, or silence), it ends all processes of the job on this host, no matter which
program started them. It adopts orphans of its process, and so finds them in any session, and with any user or
environment. If this program is killed, its reaper does this.
"""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Optional

from foundation.decode import convert, decode
from foundation.file_lock import is_held
from node import job_folder, wire
from node.agent import environment, work_folder
from node.agent.container import Contained
from node.agent.notice import PROGRESS, SAVED, NoticeFile, find_address, place_of
from node.agent.notice import watch as watch_notices
from node.agent.reaper import Reaper
from node.agent.volumes import AFTER_FAILURE_S, LIMIT_S, find_dead, watch
from node.protocol import NewFiles
from node.setup import process_tree
from node.wire import Command, Message, RoleOrder, Use
from train.engines import ENGINES

ALIVE_EVERY_S = 2.0
PIPE_GRACE_S = 0.5  # after the process's end, for a pipe that is held by a process that does not end
PENDING_BYTES = 1 << 17
FEW_BYTES = 1 << 12  # larger pieces need no collecting
SPARED_S = 1.5  # less than the time before SIGKILL
ENGINES_CODE = 125  # from here on, an exit code may be that of a container's engine, or of a signal
LOOK_FOR_PROGRAM_S = 0.05  # in a container that starts
LOOK_FOR_CHECKPOINT_S = 0.1
LOOK_FOR_COPY_S = 0.02  # of the job's files
LOOK_AT_DATA_S = 3.0  # after the start, when MXNet has loaded; it reports most errors itself soon after


class Runner:
    """The commands of one order, one after another, while the other side lives.

    lifeline: the descriptor to read from; out: the one to write to. is_pinged: the other side is connected over ssh,
    sends keep-alives, and can vanish silently.
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
        self.engine = ENGINES[order.launcher]
        self.hides_verbose = False
        self.at = 0
        self.full_at = 0.0  # when there was last no room for output
        self.pace = wire.Pace()
        self.why: Optional[str] = None
        self.child: Optional[subprocess.Popen[bytes]] = None
        self.contained: Optional[Contained] = None
        self.has_started = self.is_copying = False
        self.source: Optional[int] = None
        self.lines = wire.LineBuffer()
        self.status: Optional[int] = None
        self.ended_at: Optional[float] = None
        self.after: Optional[process_tree.Ending] = None
        self.ending: Optional[process_tree.Ending] = None  # once told to end, or the other side is lost
        self.lost_at = 0.0  # when the other side, or the reaper, was lost
        self.told_left: list[process_tree.Process] = []
        self.notice_file = NoticeFile(place_of(order.job, order.attempt))
        self.is_noticed = False
        for line in self.down.feed(read):
            self.hear(line)

    # -- commands ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Runs the commands. Returns the exit code of the last one that ran, or 128 + the number of its signal."""
        process_tree.adopt_orphans()
        said = environment.raise_open_files(self.order.open_files)
        if said:
            self.say(said)
        try:
            self.env = environment.make(self.order)
        except (OSError, ValueError) as error:
            return self.finish(1, None, f"cannot make the job's environment: {error}")
        self.hides_verbose = self.env.get("PS_VERBOSE") == "1" and "PS_VERBOSE" not in self.order.env
        blocked = self.place_files() or environment.find_blocked(self.order)
        if blocked:
            return self.finish(1, None, blocked)
        dead = find_dead(self.order.volumes, min(LIMIT_S, self.order.silence_timeout_s / 2))
        if dead is not None:
            return self.finish(1, None, dead.text)
        watch(self.order.volumes, lambda text: self.outbox.put(Message(dead=text)))  # goes out with the next step
        if self.order.watches_notice:
            self.outbox.put(Message(boot=process_tree.boot()))
            # Notices go out with the next step.
            watch_notices(lambda notice: self.outbox.put(Message(notice=notice)), find_address(self.order.env))
        code = 0
        number: Optional[int] = None
        for at, command in enumerate(self.order.commands):
            self.at = at
            if self.ending is not None:
                code, number = 128 + signal.SIGTERM.value, signal.SIGTERM.value
            else:
                code, number = self.run_one(environment.fill_in(command, self.env))
            if code != 0:
                break
        if code != 0 and self.ending is None and self.why is None:
            dead = find_dead(self.order.volumes, AFTER_FAILURE_S)
            self.why = dead.text if dead is not None else None
        return self.finish(code, number, self.why)

    def place_files(self) -> Optional[str]:
        """Makes the job's working folder, and handles events meanwhile. Returns why that failed, or None."""
        order = self.order
        errors: list[str] = []
        if work_folder.is_placed(order.job, order.cwd) and os.path.isdir(order.folder):
            return None

        def place() -> None:
            try:
                work_folder.place(order.job, order.cwd, order.tree, attempt=order.attempt)
                os.makedirs(order.folder, exist_ok=True)  # without files, [train] cwd is not in the copy
            except OSError as error:
                errors.append(job_folder.describe(error))

        copying = threading.Thread(target=place, daemon=True)
        copying.start()
        copying.join(LOOK_FOR_COPY_S)
        while copying.is_alive() and self.ending is None:
            self.is_copying = True
            self.step()
        self.is_copying = False
        if not errors:
            return None
        self.at = -1  # before the first command
        return f"cannot copy the job's files: {errors[0]}"

    def run_one(self, command: Sequence[str]) -> tuple[int, Optional[int]]:
        """Runs a command and ends the processes that it leaves. Returns its exit code, and its signal or None."""
        self.has_started = False
        try:
            if self.order.container is not None:
                self.contained = Contained(self.order, self.order.container, self.at)
                self.child = self.contained.start(command, self.env)
            else:
                self.child = process_tree.start(command, self.env, self.order.folder)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a word or a variable
            self.why = f"cannot start {command[0]!r}: {error}"
            return 127, None
        assert self.child.stdout is not None
        self.source, self.lines = self.child.stdout.fileno(), wire.LineBuffer()
        self.status = self.ended_at = self.after = None
        if self.contained is None:
            self.note_start(self.child.pid)
        while not self.is_over():
            self.step()
        self.put_lines(self.lines.flush())
        self.child.stdout.close()
        status = self.status or 0
        if self.contained is not None:
            return self.leave_container(self.contained, status)
        number = status & 0x7F or None
        return (128 + number if number else status >> 8), number

    def note_start(self, pid: int) -> None:
        """Reports the start of a command."""
        self.has_started = True
        self.outbox.put(Message(started=pid))
        if self.order.data_url:
            look = threading.Timer(LOOK_AT_DATA_S, self.look_at_data)
            look.daemon = True
            look.start()

    def look_for_program(self) -> None:
        """Reports the start of a program in a container, which is later than that of the engine's client."""
        if self.contained is not None and not self.has_started:
            pid = self.contained.find_program()
            if pid is not None:
                self.note_start(pid)
        elif self.child is not None and self.status is None and self.contained is not None:
            self.end_client_without_keeper(self.child, self.contained)

    def end_client_without_keeper(self, child: "subprocess.Popen[bytes]", contained: Contained) -> None:
        """Fails a command whose engine can no longer notice its container's end."""
        if contained.has_lost_keeper():
            child.kill()

    def leave_container(self, contained: Contained, status: int) -> tuple[int, Optional[int]]:
        """Returns run_one's result once the container's processes have ended. Removes the rest of the container."""
        code, number, why = contained.read_status(status)
        if why is not None and self.ending is None:
            self.why = why
        if not self.has_started and why is None and self.ending is None:
            self.note_start(self.child.pid if self.child is not None else 0)  # it ended before it was seen
        if self.ending is not None or why is not None or code >= ENGINES_CODE:  # else the engine has removed it
            contained.remove()
        return code, number

    def finish(self, code: int, number: Optional[int], why: Optional[str] = None) -> int:
        """Reports the end, and waits until the report is sent. why: this program's own error."""
        if why is not None:
            self.say(why)
        self.read_files()
        left = tuple((pid, words) for pid, _, words in self.told_left)
        ended = self.ending is not None
        files = self.count_files()
        self.outbox.put(Message(exit=code, signal=number, ended=ended, at=self.at, left=left, why=why, files=files))
        give_up_at = time.monotonic() + self.silence_s
        while self.outbox.pending and time.monotonic() < give_up_at:
            select.select([], [self.outbox.descriptor], [], 1.0)
            self.outbox.write()
        return code

    def count_files(self) -> Optional[NewFiles]:
        """Returns the job's new files on this host, if there are any and the other side still wants to know."""
        if self.order.role == "setup" or self.lifeline is None:
            return None
        found = work_folder.count_new(self.order.job, self.order.host)
        return found if found.count or found.is_part else None

    # -- events --------------------------------------------------------------------------------------------------

    @property
    def silence_s(self) -> float:
        """How long the other side may be silent."""
        return 2 * self.order.silence_timeout_s  # the supervisor should notice first

    def step(self) -> None:
        """Handles the next events."""
        writes = [self.outbox.descriptor] if self.outbox.pending else []
        rest_s = 0.0 if self.is_ending() else self.pace.rest_s
        ready, _, _ = select.select(self.sources(rest_s), writes, [], self.wait_s(rest_s))
        if self.deaths in ready:
            wire.read_now(self.deaths)
        self.reap()
        self.look_for_program()
        if self.lifeline is not None and self.lifeline in ready:
            self.read_lifeline(self.lifeline)
        if self.source is not None and self.source in ready:
            self.read_source(self.source)
        if self.reaper is not None and self.reaper.descriptor in ready:
            self.lose_reaper()
        now = time.monotonic()
        if self.lifeline is not None and self.is_pinged and now > self.heard_at + self.silence_s:
            self.lose()
        if self.is_noticed or now > self.said_at + ALIVE_EVERY_S:
            self.read_files()
        if now > self.said_at + ALIVE_EVERY_S and not self.outbox.pending:
            self.outbox.put(Message(copying=True) if self.is_copying else Message(alive=True))
        if self.outbox.pending:
            self.said_at = now
            self.outbox.write()
        if self.outbox.broken and self.lifeline is not None:
            self.lose()

    def sources(self, rest_s: float) -> list[int]:
        """The descriptors to read from, without the process's output while that collects or cannot be sent."""
        found = [one for one in (self.deaths, self.lifeline) if one is not None]
        if self.reaper is not None:
            found.append(self.reaper.descriptor)
        if len(self.outbox.pending) >= PENDING_BYTES:
            self.full_at = time.monotonic()
        elif self.source is not None and not rest_s:
            found.append(self.source)
        return found

    def wait_s(self, rest_s: float) -> float:
        """How long to wait for an event."""
        if self.is_ending():
            return process_tree.LOOK_EVERY_S
        if self.is_copying:
            return LOOK_FOR_COPY_S
        if self.contained is not None and not self.has_started:
            return rest_s or LOOK_FOR_PROGRAM_S
        if self.is_noticed:
            return rest_s or LOOK_FOR_CHECKPOINT_S
        return rest_s or ALIVE_EVERY_S / 2

    def is_ending(self) -> bool:
        """Whether the command has ended, or is being ended."""
        return self.status is not None or self.ending is not None

    def read_source(self, source: int) -> None:
        """Reads some of the command's output."""
        data = os.read(source, 1 << 16)
        if not data:
            self.source = None
        elif len(data) < FEW_BYTES:
            self.pace.note()
        self.put_lines(self.lines.feed(data) if data else self.lines.flush())

    def read_lifeline(self, lifeline: int) -> None:
        """Reads messages from the other side."""
        data = wire.read_now(lifeline)
        if data is None:
            return
        self.heard_at = time.monotonic()
        for line in self.down.feed(data):
            self.hear(line)
        if not data:
            self.lose()

    def hear(self, line: bytes) -> None:
        """Handles a message from the supervisor."""
        message = decode(line, Command)
        if message.end and self.ending is None:
            self.ending = process_tree.Ending(self.find_own, self.spare_engine)
        if message.notice and not self.is_noticed:
            self.pass_on_notice()
        if message.reach:
            threading.Thread(target=self.reach, args=(message.reach,), daemon=True).start()
        if message.look:
            inside = self.contained.find_inside() if self.contained is not None else []
            use = process_tree.describe_use([pid for pid, _, _ in inside])
            self.outbox.put(Message(look=convert(use, Use)))

    def pass_on_notice(self) -> None:
        """Tells the program to save a checkpoint."""
        self.is_noticed = True
        try:
            self.notice_file.announce(self.find_own())
        except OSError as error:
            self.say(f"the program cannot be told to save a checkpoint: {error}")

    def read_files(self) -> None:
        """Reports the numbers that the program has written next to its notice file."""
        if self.order.role != "worker":
            return
        saved = self.notice_file.read_new(SAVED)
        progress = self.notice_file.read_new(PROGRESS)  # not older than the checkpoint
        if progress:
            self.outbox.put(Message(progress=progress))
        if saved is not None:
            self.outbox.put(Message(saved=saved))

    def reach(self, places: Sequence[tuple[str, int]]) -> None:
        """Reports the ports that cannot be reached."""
        self.outbox.put(Message(blocked=tuple(environment.find_unreachable(places))))  # goes out with the next step

    def look_at_data(self) -> None:
        """Reports why this host cannot read the job's data: MXNet may wait silently."""
        why = environment.find_unread(self.env, self.order.data_url or "")
        if why is not None:
            self.outbox.put(Message(unread=why))  # goes out with the next step

    def lose(self) -> None:
        """Ends all processes of this job on this host, because the other side is lost."""
        self.lifeline = None
        self.lost_at = time.monotonic()
        self.ending = process_tree.Ending(self.find_all, self.spare)

    def lose_reaper(self) -> None:
        """Ends everything on this host silently, like a killed program, because the reaper was killed.

        The other side sees the end of the output at once, not only when this process ends.
        """
        self.reaper = None
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # others that end the job may not find all of its processes
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2, self.outbox.descriptor):
            os.dup2(nowhere, descriptor)
        self.lose()

    def find_all(self) -> list[process_tree.Process]:
        """Returns all processes of the job on this host, no matter which program started them."""
        found = set(self.find_own()) | set(process_tree.find(self.order.job))
        return sorted(one for one in found if self.reaper is None or one[0] != self.reaper.pid)

    def spare(self, found: Sequence[process_tree.Process]) -> Iterable[process_tree.Process]:
        """For Ending: return the processes that are not descendants of this program, for SPARED_S seconds.

        On the head, they are spared while the supervisor lives, which ends them. The supervisor should first learn of
        the original loss, not of the processes that end here because of it: launch.py, which reports the loss, may also
        be on this host.
        """
        is_late = time.monotonic() > self.lost_at + SPARED_S
        if is_late and not is_held(job_folder.path(self.order.job, "lock")):
            return process_tree.our_programs_last(found)
        return (set(found) - set(self.find_own())) | set(self.spare_engine(found))

    def find_own(self) -> list[process_tree.Process]:
        """Returns the processes that this program has started, and their descendants."""
        return process_tree.find_descendants() if self.contained is None else self.contained.find()

    def spare_engine(self, found: Sequence[process_tree.Process]) -> Iterable[process_tree.Process]:
        """For Ending: return the processes that end after the container."""
        return () if self.contained is None else self.contained.spare(found)

    def reap(self) -> None:
        """Reaps all children that have ended."""
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
        """Whether the command and its descendants have ended and its output has been read."""
        if self.ending is not None and self.ending.go_on():
            return False
        if self.status is None:
            if self.ending is None:
                return False
            self.status = signal.SIGKILL.value  # it does not end, and is reported as left
        if self.ended_at is None or self.after is None:
            self.ended_at = time.monotonic()
            self.after = process_tree.Ending(self.find_own, self.spare_engine)
        if self.after.go_on():
            return False
        self.told_left = self.ending.left if self.ending is not None else self.after.left
        waits_from = max(self.ended_at, self.after.over_at or 0.0, self.full_at)
        return self.source is None or time.monotonic() > waits_from + PIPE_GRACE_S

    # -- output --------------------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        """Sends a message of this program as a line of output."""
        self.outbox.put(Message(line=line))

    def put_lines(self, lines: Iterable[bytes]) -> None:
        """Passes on lines of output, without the library's reports, unless the user asked for them."""
        for line in lines:
            said = self.engine.read_line(line)
            if said is not None:
                self.outbox.put(Message(rank=said.rank, bound=said.bound))
            if self.hides_verbose and self.engine.hides_line(line):
                continue
            self.outbox.put(Message(line=wire.text(line)))
