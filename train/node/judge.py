"""Decides when and how a job ends: whatever happens first counts, and is kept in `outcome`.

Python 3.6 and later, standard library only.
"""

import time

import kv_store

SILENCE_EVERY_S = 1.0
UNSTARTED_S = 1.0  # for a process to tell of itself, once launch.py's command for one has failed
GATHER_S = 0.3  # for others that fail at the same time as the first, and for the end of what led to a node
MPI_GATHER_S = 1.0  # for the same, where mpirun ends the others when one is gone, and may be quicker
REAP_GRACE_S = 10.0  # for servers and scheduler, once all workers are done
EARLY_GRACE_S = 5.0  # for workers to report, once launch.py, the scheduler or a server has ended well
PROBE_AFTER_S = 5.0
PROBE_S = 4.5  # more than role.py takes
STOPPED, OVERTIME = 130, 124
TIMERS = ("start", "unstarted", "launcher", "proxy", "early", "join", "lost", "gather", "overtime", "silence", "stalls")


class Judge(object):
    """One job's. say: takes a text for the user; warn: takes a warning's subject and text, None to withdraw it."""

    def __init__(self, order, roster, hub, say, warn):
        self._order, self._roster, self._hub, self._say, self._warn = order, roster, hub, say, warn
        self._failed = []
        self._has_trained = False  # a worker has reported progress
        self.outcome = None  # (state, exit code, error)
        self.silent_hosts = set()

    def decide(self, state, exit_code, error):
        """The job ends now, and so, unless that has been decided before."""
        if self.outcome is None:
            self.outcome = (state, exit_code, error)

    def fail(self, error):
        """The job fails for another reason than the exit code of one of its processes."""
        self.decide("failed", 1, error)

    def stop(self):
        """The job ends because the user wants it to."""
        self.decide("stopped", STOPPED, "stopped")

    def rest(self):
        """Nothing is to be judged any more."""
        for name in TIMERS:
            self._hub.cancel(name)

    # -- start ---------------------------------------------------------------------------------------------------

    def watch_silence(self):
        """From now on a process whose program says nothing for too long is lost, with its node."""
        self._hub.after("silence", SILENCE_EVERY_S, self._look_for_silence)

    def _look_for_silence(self):
        self.watch_silence()
        silence_s = self._order["silence_timeout_s"]
        for role in self._roster.roles:
            if role.connection is None or role.exit_code is not None or not role.connection.is_open:
                continue
            if role.heard_at is None:  # it has yet to be reached, and Python to be started there
                limit_s, since = max(silence_s, self._order["start_timeout_s"]), role.introduced_at
            else:
                limit_s, since = silence_s, role.heard_at
            if time.monotonic() > since + limit_s:
                self.silent_hosts.add(role.host)
                self.fail("%s: nothing was heard from its node for %g s" % (role.name, limit_s))

    def watch_start(self):
        """launch.py has been started: its processes have to be there in time."""
        self._hub.after("start", self._order["start_timeout_s"], self._start_timed_out)

    def _start_timed_out(self):
        missing = ", ".join(self._roster.missing())
        self.fail("the job did not start within %g s: %s did not" % (self._order["start_timeout_s"], missing))

    def look_for_unstarted(self):
        """A command of launch.py's has failed: what it started has told why, or has never been there to tell it."""
        self._hub.after("unstarted", UNSTARTED_S, self._judge_unstarted)

    def _judge_unstarted(self):
        missing = self._roster.unknown()
        if missing:
            self.fail("the job cannot start: launch.py failed to start %s" % ", ".join(missing))

    def all_started(self):
        """All processes are there."""
        self._hub.cancel("start")

    def watch_duration(self):
        """From now on, and so with its set-up, the job may take so long."""
        if self._order["max_duration_s"]:
            self._hub.after("overtime", self._order["max_duration_s"], self._ran_too_long)

    def _ran_too_long(self):
        error = "ran longer than max_duration (%s)" % render_s(self._order["max_duration_s"])
        self.decide("failed", OVERTIME, error)

    def end_stalled(self, error):
        """No worker has made progress for stall_timeout."""
        self.decide("failed", OVERTIME, error)

    # -- ps-lite's processes have to find each other ---------------------------------------------------------------

    def check_joined(self):
        """One of them waits for the others, or has found them."""
        if self._roster.uses_kv_store():
            self._warn("kv-store", None)
        if not self._roster.unjoined():
            self._hub.cancel("join")
        elif not self._hub.has("join"):
            self._hub.after("join", min(PROBE_AFTER_S, self._order["start_timeout_s"]), self._probe)

    def _probe(self):
        """All of them wait for each other: have them look for ports that they cannot reach."""
        for role in self._roster.of("server") + self._roster.of("worker"):
            others = [other.bound for other in self._roster.roles if other.bound and other.host != role.host]
            role.connection.put({"reach": others})
        self._hub.after("join", PROBE_S, self._judge_probe)

    def _judge_probe(self):
        blocked = self._roster.describe_blocked()
        if blocked:
            advice = "does the security group allow everything between its members?"
            self.fail("the job's processes cannot find each other: %s; %s" % (blocked, advice))
        else:
            self._hub.after("join", self._order["start_timeout_s"], self._join_timed_out)

    def _join_timed_out(self):
        names = ", ".join(role.name for role in self._roster.unjoined())
        self.fail("started, but not joined within %g s: %s" % (self._order["start_timeout_s"], names))

    # -- data ----------------------------------------------------------------------------------------------------

    def judge_unread(self, role, why):
        """A worker's host cannot read the job's data. What a script of the user's reads is not known."""
        if role.exit_code is not None:
            return  # it did without
        said = "%s: %s" % (role.host, why)
        if self._order["data_check"]["needed"]:
            self.fail(said)
        else:
            self._say(said)

    # -- whether the workers train one model ---------------------------------------------------------------------

    def awaits_kv_store(self):
        """Whether there are several workers, which are meant to share a kv-store, and none of them has made one."""
        order = self._order
        return order["servers"] > 0 and order["workers"] > 1 and not self._roster.uses_kv_store()

    def note_progress(self):
        """A worker trains, while none has made a kv-store."""
        self._has_trained = True
        if self._is_unused():
            self._warn_of_unused()

    def _is_unused(self):
        """Whether no worker has made a kv-store for certain: it would have told its port, as a server has."""
        has_servers_port = any(server.bound for server in self._roster.of("server"))
        return has_servers_port and self.awaits_kv_store() and kv_store.is_reported(self._order)

    def _warn_of_unused(self):
        self._warn("kv-store", kv_store.render_unused(self._order, has_trained=self._has_trained))

    def _end_without_servers(self):
        """All workers are done, and the servers still serve: nobody has dismissed them."""
        if self.awaits_kv_store():
            self._warn_of_unused()
        self.decide("done", 0, None)

    # -- ends ----------------------------------------------------------------------------------------------------

    def judge_exit(self, role):
        """A process has ended."""
        workers = self._roster.of("worker")
        is_done = sum(1 for one in workers if one.exit_code == 0) == self._order["workers"]
        if self._are_dismissed():  # by workers that have connected to them, whatever those have said of it
            self._warn("kv-store", None)
        if role.failed and is_done:
            self._say(self._roster.describe_exit(role) + ", when all workers had done their work")
        elif role.failed:
            self._failed.append(role)
            delay_s = 0.0 if workers and all(one.exit_code is not None for one in workers) else GATHER_S
            self._hub.after("gather", delay_s, self._fail_with_all)
        elif role.role in ("scheduler", "server") and not is_done:
            if self._are_dismissed():
                self._hub.cancel("early")
            else:  # at the end of a good job it can be a moment ahead of the others
                self._hub.after("early", EARLY_GRACE_S, lambda: self._ended_early(role.short_name))
        if is_done and all(one.exit_code is not None for one in self._roster.mxnet()):
            self.decide("done", 0, None)
        elif is_done:
            delay_s = 0.0 if self._is_unused() else REAP_GRACE_S
            self._hub.after("early", delay_s, self._end_without_servers)

    def _are_dismissed(self):
        """Whether the workers need nobody any more: their kv-stores are gone, as after a function that made one.

        They part from the servers and the scheduler, which end well then; what the scripts do next takes its time.
        """
        ended = [role.role for role in self._roster.of("server") + self._roster.of("scheduler") if role.exit_code == 0]
        return ended.count("server") == self._order["servers"] > 0 and "scheduler" in ended

    def judge_child(self, name, process, is_launcher):
        """launch.py has ended, or what stands for it without servers (name: None), or another that led to a node."""
        code = process.returncode
        how = "ended with exit code %d" % code if code > 0 else "was killed by signal %d" % -code
        if not is_launcher and code != 0:  # it has told why, or never came to that
            error = "ssh_proxy.py on %s, which was to reach a node, %s" % (self._roster.head, how)
            self._hub.after("proxy", UNSTARTED_S, lambda: self.fail(error))
        elif is_launcher and name is not None and code != 0:
            error = "%s (process %d) %s" % (name, process.pid, how)
            if code < 0:  # with it ends what it has started
                self.fail(error)
            else:  # something has ended before it, and that may be heard of later
                self._hub.after("launcher", GATHER_S, lambda: self.fail(error))
        elif is_launcher and not self._hub.has("early") and not self._are_dismissed():
            self._hub.after("early", EARLY_GRACE_S, lambda: self._ended_early(name or "its start"))

    def judge_lost(self, role):
        """The connection to a process has ended before the process has. Where launch.py has, too, that says more."""
        is_of_mpi = role.by is None and self._order["launcher"] == "mpi"
        if not is_of_mpi and all(launcher.pid != role.by for launcher in self._roster.of("launcher")):
            self._lose(role)
        elif not self._hub.has("lost"):
            self._hub.after("lost", MPI_GATHER_S if is_of_mpi else GATHER_S, lambda: self._lose(role))

    def _lose(self, role):
        if not self._failed:
            self.fail("%s was lost: the program on %s that led to it was killed" % (role.name, self._roster.head))

    def _fail_with_all(self):
        self.decide("failed", self._failed[0].exit_code, self._roster.describe_failures(self._failed))

    def _ended_early(self, what):
        self.fail("%s ended before the workers did" % what)


def render_s(seconds):
    """A duration as a person says it."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return "%d %s" % (seconds // unit_s, unit)
    return "%g s" % seconds
