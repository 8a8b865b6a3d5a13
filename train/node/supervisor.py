"""One job, from its turn to its end. Nothing here waits for a single process, host or reader.

Python 3.6 and later, standard library only.
"""

import json
import os
import signal
import time

import children
import ending
import hub
import job_folder
import judge
import kv_store
import launching
import lock
import log
import recovery
import roster
import stalls

TURN_EVERY_S = 0.2
RECORD_EVERY_S = 0.5
ROLES_END_S = 5.0
COPY_S, LAST_COPY_S = 3.0, 30.0  # to S3: while those who follow the job wait, and after they have gone


class Supervisor(object):
    """One job. `record` is kept as what is on the disk is to be."""

    def __init__(self, order, record):
        self.order, self.record = order, record
        self.job = order["job"]
        self.log = log.Log(self.job)
        self.roster = roster.Roster(order)
        self.turn = lock.Lock(os.path.join(job_folder.root(), "lock"))
        self.copying = None  # to S3
        self.hub = hub.Hub(job_folder.path(self.job, "socket"), self.hear, self.hear_end)
        self.judge = judge.Judge(order, self.roster, self.hub, self.say, self.warn)
        self.stalls = stalls.Stalls(order, self.roster, self.hub, self.tell_stall, self.judge.end_stalled)
        self.children = children.Children(order, self.hub, self.hear_child, self.judge.look_for_unstarted)
        self.warnings = {}  # by what they are about
        self.watchers = []
        self.state = None
        self.is_over = False  # nothing of the job starts any more
        stop = self.judge.stop
        self.hub.watch_signals({signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGCHLD: self.look_at_children})

    def run(self):
        """Everything, to the end."""
        try:
            self.wait_for_turn()
            self.start()
            while self.judge.outcome is None:
                self.step()
        except OSError as error:  # such as a full disk
            self.judge.fail("%s: %s" % (self.roster.head, job_folder.describe(error)))
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not leave the job's processes behind
            self.judge.fail("%s: the supervisor failed: %r" % (self.roster.head, error))
            import traceback  # slow to load, as are others below, and rarely needed

            for line in traceback.format_exc().splitlines():
                self.say(line)
        self.conclude(self.end())

    def step(self):
        """Wait for something to happen, and do what follows. Raises OSError."""
        self.hub.step()
        self.pass_on_said()
        self.log.write()

    def pass_on_said(self):
        """Tell the user what the copying has to tell."""
        for line in self.copying.take_said() if self.copying is not None else ():
            self.say(line)

    def say(self, text):
        """Tell the user something of our own."""
        self.log.put({"say": text})

    def warn(self, about, text):
        """Have a warning in the log and the record. about: its subject, of which there is one; None withdraws it."""
        if self.warnings.get(about) == text:
            return
        self.warnings[about] = text
        self.record["warnings"] = [one for one in self.warnings.values() if one is not None]
        self.log.put({"warnings": self.record["warnings"]})
        self.save_soon()

    def tell_stall(self, text, seconds):
        """Tell the user that the job has made no progress for so many seconds, and why; None: it does again."""
        since = 0.0 if seconds is None else round(time.time() - seconds, 3)
        self.log.put({"say": text, "stalled_since": since})
        self.record["stall"] = {"since": since, "text": text} if since else None
        self.save_soon()

    # -- start ---------------------------------------------------------------------------------------------------

    def wait_for_turn(self):
        """Jobs run one at a time, in the order in which they came."""
        before = list(self.order["before"])
        self.set_state("queued" if before else "starting")
        while self.judge.outcome is None:
            while before and not recovery.is_alive(before[0]):
                recovery.recover(before.pop(0))
            if not before and self.turn.take_now():
                self.set_state("starting")
                return
            self.hub.after("turn", TURN_EVERY_S if before else 0.01, lambda: None)
            self.step()

    def start(self):
        """Start the set-up of the job, or at once the job itself. Raises OSError."""
        if self.judge.outcome is not None:
            return
        if self.order["nodes_credentials"] or self.order["results_url"]:
            import copying

            for line in copying.take_credentials(self.order):
                self.say(line)
            self.copying = copying.Copying(self.order) if self.order["results_url"] else None
        self.judge.watch_silence()
        self.judge.watch_duration()
        if self.roster.preparation():
            self.children.start_setups()
        else:
            self.launch()

    def launch(self):
        """Start launch.py. Raises OSError."""

        def take_in(process):
            role = self.roster.add("launcher", self.roster.head)
            role.pid, role.started_at = process.pid, time.time()
            self.take_in(role)
            return role

        self.children.start_launcher(take_in)
        self.judge.watch_start()

    # -- what is said --------------------------------------------------------------------------------------------

    def hear(self, connection, line):
        """One line over the socket."""
        role = connection.owner
        try:
            message = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):  # a login shell's own, or a damaged node's
            return
        if not isinstance(message, dict):  # a number is JSON, too
            return
        if isinstance(role, roster.Role):
            role.heard_at = time.monotonic()
            if "line" in message:
                self.log.put_line(role.number, message["line"], line)
                if role.role == "worker":
                    self.hear_worker(role, message["line"])
            elif "alive" not in message:
                self.hear_report(role, message)
        elif "role" in message:
            self.introduce(connection, message)
        if "watch" in message:
            self.watchers.append(connection)
        if "stop" in message:
            self.judge.stop()

    def hear_worker(self, role, text):
        """A line of a worker's output."""
        self.stalls.hear_line(role, text)
        if kv_store.is_progress(text) and self.judge.awaits_kv_store():
            self.judge.note_progress()

    def introduce(self, connection, message):
        """A process of the job, which gets its order."""
        if self.is_over:
            self.hub.drop(connection)
            return
        role = self.roster.add(message["role"], message["host"], connection)
        connection.owner, role.by = role, message.get("by")
        if role.role == "scheduler":  # ps-lite's others say in their output where they listen
            launched = message["launched"]
            role.bound = [launched["DMLC_PS_ROOT_URI"], int(launched["DMLC_PS_ROOT_PORT"])]
        if not self.order["servers"] and role.role == "worker":
            role.rank = 0  # there is no other
        self.take_in(role)
        connection.put(self.roster.order_of(role, message["launched"]))

    def take_in(self, role):
        """Have a new process in the log and the record."""
        self.log.put({"p": role.number, "role": role.role, "host": role.host})
        for key in ("rank", "pid"):
            if getattr(role, key) is not None:
                self.log.put({"p": role.number, key: getattr(role, key)})
        self.log.open_file(role.number, self.roster.file_name(role))
        self.save_soon()

    def hear_report(self, role, message):
        """What a process's program tells of it."""
        if "started" in message:
            role.pid, role.started_at = message["started"], time.time()
            self.log.put({"p": role.number, "pid": role.pid})
            if self.record["started_at"] is None and self.roster.all_started() and not self.is_over:
                self.record["started_at"] = time.time()
                self.set_state("running")
                self.judge.all_started()
                self.stalls.start()
        elif "rank" in message and role.rank is None:
            old = self.roster.file_name(role)
            role.rank = message["rank"]
            self.log.put({"p": role.number, "rank": role.rank})
            self.log.rename_file(old, self.roster.file_name(role))
            self.judge.check_joined()
        elif "bound" in message:
            role.bound = message["bound"]
            self.judge.check_joined()
        elif "blocked" in message or "look" in message:
            self.hear_answer(role, message)
        elif "unread" in message:
            self.judge.judge_unread(role, message["unread"])
        elif "lost" in message:
            self.judge.fail("%s was lost: ssh to it failed: %s" % (role.name, message["lost"]))
        elif "exit" in message:
            role.note_end(message)
            self.note_exit(role, message["exit"], message["signal"])
            self.judge.judge_exit(role)
            if role.role == "setup" and self.roster.is_set_up() and not self.is_over:
                self.launch()

    def hear_answer(self, role, message):
        """What a process's program has found, as it was asked to."""
        if "blocked" in message:
            role.blocked = message["blocked"]
        else:
            self.stalls.hear_look(role, message["look"])

    def note_exit(self, role, exit_code, number):
        """Have the end of a process in the log and the record."""
        role.exit_code, role.signal, role.ended_at = exit_code, number, time.time()
        self.log.put({"p": role.number, "exit": exit_code, "signal": number})
        self.save_soon()

    def hear_child(self, role, text):
        """A line of launch.py, or of a program that should say nothing."""
        if role is None:
            self.say("ssh_proxy.py: " + text)
        else:
            self.log.put_line(role.number, text)

    def hear_end(self, connection):
        """The end of a connection."""
        role = connection.owner
        if connection in self.watchers:
            self.watchers.remove(connection)
        if isinstance(role, roster.Role) and role.exit_code is None:
            self.look_at_children()  # with launch.py ends what it has started here, and that may be seen first
            self.judge.judge_lost(role)

    def look_at_children(self):
        """launch.py, or a program that was to reach a host, may have ended."""
        for process, role, is_launcher in self.children.take_ended():
            code = process.returncode
            if role is not None and not self.is_over:  # else we have ended it
                self.note_exit(role, code if code >= 0 else 128 - code, -code if code < 0 else None)
            if not self.is_over:
                self.judge.judge_child(role and "launch.py on " + role.host, process, is_launcher)

    # -- record --------------------------------------------------------------------------------------------------

    def set_state(self, state):
        if state != self.state:
            self.state = self.record["state"] = state
            self.log.put({"state": state})
            self.hub.after("record", 0.0, self.save)  # who reads the record just now is to see it

    def save_soon(self):
        """Have the record on the disk, a moment later: much happens at once."""
        if not self.hub.has("record") and not self.is_over:
            self.hub.after("record", RECORD_EVERY_S, self.save)

    def save(self, *, lasting=False):
        self.record["roles"] = [role.record() for role in self.roster.roles]
        job_folder.write_record(self.record, lasting=lasting)

    # -- end -----------------------------------------------------------------------------------------------------

    def end(self):
        """End everything everywhere; returns what does not end: {host name: [[pid, command line], ...]}."""
        self.set_state("ending")
        self.is_over = True
        self.children.takes_more = False
        self.hub.cancel("record")
        self.judge.rest()
        silent = self.judge.silent_hosts
        running = [role for role in self.roster.roles if role.connection is not None and role.connection.is_open]
        for role in running:
            role.connection.put({"end": True})
        awaited = [role for role in running if role.heard_at is not None and role.host not in silent]
        give_up_at = time.monotonic() + ROLES_END_S
        while time.monotonic() < give_up_at and any(role.connection.is_open for role in awaited):
            self.step_quietly()
        self.children.kill_launcher()
        left = ending.end_on(self.order, self.roster.find_unclean(), silent)
        for role in self.roster.roles:
            if role.left:
                left.setdefault(role.host, []).extend(role.left)
        self.step_quietly()  # what was said at the very end
        for role in running:
            self.hub.drop(role.connection)
        return left

    def step_quietly(self):
        """A step after which it does not matter any more whether the log could be written."""
        try:
            self.step()
        except OSError as error:
            self.judge.fail("%s: %s" % (self.roster.head, job_folder.describe(error)))

    def conclude(self, left):
        """Have the result on the disk, in S3, and with everybody who waits for it."""
        state, exit_code, error = self.judge.outcome
        if left and state == "done":
            state, exit_code, error = "failed", 1, "the job did its work, but left processes behind"
        result = {"state": state, "exit_code": exit_code, "error": error, "left": left}
        self.record.update(result, ended_at=time.time(), stall=None)
        self.pass_on_said()
        launching.clean_up(self.job)
        self.log.make_room()
        self.log.put({"state": state})
        self.log.put({"result": result})
        for keep in (self.log.write, lambda: self.save(lasting=True)):
            try:
                keep()
            except OSError:
                pass  # those who wait get the result below; follow.py and recovery.py make up for what is missing
        self.log.close()
        is_copied = self.copying is None or self.copying.finish(COPY_S)
        job_folder.remove(job_folder.path(self.job, "socket"))
        self.turn.release()
        for watcher in self.watchers:  # who connects only now finds nobody, and reads the record
            watcher.put({"result": result})
        self.hub.flush(self.watchers, ROLES_END_S)
        if not is_copied:
            self.copying.finish(LAST_COPY_S)
