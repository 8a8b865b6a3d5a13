"""Notices that a job makes no progress, looks for the cause, tells the user, and ends the job where that is wanted.

A line of output of a worker is progress. So is the use of a processor or of files and sockets by a worker or a server:
an evaluation or a checkpoint prints nothing for long. While a worker prints nothing, the hosts are asked every few
seconds what it and the servers have used, and whether any process is stopped (SIGSTOP): ps-lite waits for ever for a
stopped process, and for one that it cannot reach. While nothing makes progress, the hosts try whether they reach each
other.
[train] stall_timeout: "auto" tells the user; a number of seconds without progress ends the job, too; "none" does not
look.
Python 3.6 and later, standard library only.
"""

import time

import ps_lite

LOOK_EVERY_S = 10.0
LOOKS = 6  # at least so many within stall_timeout
ANSWERS_S = 1.0  # for their answers
REACH_S = 4.5  # for all hosts to try each other; more than role.py takes
REACH_AGAIN_S = 60.0
TELL_AGAIN_S = 120.0  # and then after twice the time, and so on
BLOCKED_S, UNEXPLAINED_S = 60.0, 1800.0  # without progress, before the user is told
PACE = 3.0  # times the longest time without progress so far: then the user is told
# What a process uses at least if it does something. In a job of MXNet's that hangs none uses anything.
LEAST_CPU_S, LEAST_CPU_SHARE = 0.03, 0.002
LEAST_BYTES, LEAST_BYTES_PER_S = 4096, 1024
LONGEST_COMMAND = 60  # characters of a command line that are told


def patience_s(found, pace_s, limit_s):
    """For how many seconds without progress the user is not told. Pure.

    found: "stopped", "blocked" or None. pace_s: the job's longest time without progress so far. limit_s: the job ends
    after so long without progress; None: it does not.
    """
    if found == "stopped":
        return 0.0
    usual_s = max(BLOCKED_S if found == "blocked" else UNEXPLAINED_S, PACE * pace_s)
    return usual_s if limit_s is None else min(usual_s, limit_s / 2)


def decide(quiet_s, pace_s, limit_s, found, is_news):
    """What there is to do: "end" the job, "tell" the user, or "wait". Pure.

    quiet_s: how long there has been no progress. pace_s, limit_s, found: as `patience_s` has them. is_news: whether the
    user has not been told of it yet, or not for long.
    """
    if limit_s is not None and quiet_s >= limit_s:
        return "end"
    return "tell" if is_news and quiet_s >= patience_s(found, pace_s, limit_s) else "wait"


def is_active(seconds, cpu_s, size_bytes):
    """Whether a process that has used so much in so many seconds does something. Pure.

    Less than nothing is used when a child has ended.
    """
    used_cpu = abs(cpu_s) >= max(LEAST_CPU_S, LEAST_CPU_SHARE * seconds)
    return used_cpu or abs(size_bytes) >= max(LEAST_BYTES, LEAST_BYTES_PER_S * seconds)


def render_time(seconds):
    """A length of time as a person says it: "45 s", "3 min", "1 h 20 min". Pure."""
    whole = int(seconds)
    if whole < 120:
        return "%d s" % whole
    hours, minutes = divmod(whole // 60, 60)
    return "%d h %d min" % (hours, minutes) if hours else "%d min" % minutes


class Stalls(object):
    """Watches one job. tell(text, since): tells the user; since: how many seconds ago progress ended, None: it goes on.

    end(error): ends the job.
    """

    def __init__(self, order, roster, hub, tell, end):
        self._order, self._roster, self._hub = order, roster, hub
        self._tell, self._end = tell, end
        limit = order["stall_timeout"]
        self._is_watching = False
        self._limit_s = limit if isinstance(limit, (int, float)) else None
        self._every_s = min(LOOK_EVERY_S, self._limit_s / LOOKS) if self._limit_s else LOOK_EVERY_S
        self._progress_at = self._pace_s = 0.0
        self._lines_at = {}  # by the worker's number
        # By a process's number: when it was last seen to be active, its cpu_s and size_bytes then; what is stopped now.
        self._looks = {}
        self._stopped = {}  # by a process's number: [(pid, command line), ...], in two looks without progress
        self._reach_until = self._reached_at = None
        self._blocked = ""
        self._told = None  # (when, how long to wait before it is told again, what was found)

    def start(self):
        """All processes run."""
        if self._order["stall_timeout"] != "none":
            self._is_watching = True
            self._progress_at = time.monotonic()
            self._hub.after("stalls", self._every_s, self._look)

    def hear_line(self, role, text):
        """A worker has printed something."""
        if self._is_watching and not ps_lite.is_own(text):
            now = time.monotonic()
            self._lines_at[role.number] = now
            self._looks.pop(role.number, None)
            self._stopped.pop(role.number, None)
            self._note_progress(now)

    def hear_look(self, role, look):
        """What a process has used by now, as its host tells it."""
        now = time.monotonic()
        stopped = {(pid, words) for pid, words in look["stopped"]}
        known = self._looks.get(role.number)
        if known is not None:
            at, cpu_s, size_bytes, stopped_before = known
            if not is_active(now - at, look["cpu_s"] - cpu_s, look["bytes"] - size_bytes):
                self._looks[role.number] = (at, cpu_s, size_bytes, stopped)
                self._stopped[role.number] = sorted(stopped & stopped_before)
                return
            self._stopped.pop(role.number, None)
            if role.role != "scheduler":
                self._note_progress(now)
        self._looks[role.number] = (now, look["cpu_s"], look["bytes"], stopped)

    def _note_progress(self, now):
        if not self._stopped and not self._blocked:  # else the job was not at its own pace
            self._pace_s = max(self._pace_s, now - self._progress_at)
        self._progress_at = now

    # -- looking -------------------------------------------------------------------------------------------------

    def _look(self):
        """Have the hosts look at what prints nothing."""
        now = time.monotonic()
        quiet_s = now - self._progress_at
        running = self._running()
        answers_s = min(ANSWERS_S, self._every_s / 2)
        self._hub.after("stalls", answers_s, lambda: self._look_at_answers(self._every_s - answers_s))
        silent = [role for role in running if now >= self._lines_at.get(role.number, 0.0) + self._every_s]
        if any(role.role == "worker" for role in silent):  # the others never print
            for role in silent:
                role.connection.put({"look": True})
        is_due = self._reach_until is None and (self._reached_at is None or now >= self._reached_at + REACH_AGAIN_S)
        if is_due and quiet_s >= patience_s("blocked", self._pace_s, self._limit_s):
            self._have_them_reach(running, now)

    def _look_at_answers(self, rest_s):
        """Judge what the hosts have found. rest_s: seconds until the next look."""
        self._hub.after("stalls", rest_s, self._look)
        now = time.monotonic()
        quiet_s = now - self._progress_at
        running = self._running()
        if not any(role.role == "worker" for role in running):
            return
        self._stopped = {one.number: self._stopped[one.number] for one in running if self._stopped.get(one.number)}
        if self._reach_until is not None and now >= self._reach_until:
            self._reach_until, self._reached_at = None, now
            self._blocked = self._roster.describe_unreachable()
        if quiet_s < patience_s("blocked", self._pace_s, self._limit_s):
            self._blocked = ""
        if self._reach_until is None or self._stopped:
            self._judge(now, quiet_s)

    def _running(self):
        return [
            role
            for role in self._roster.mxnet()
            if role.exit_code is None and role.connection is not None and role.connection.is_open
        ]

    def _have_them_reach(self, running, now):
        """One process on each host tries the ports of all others."""
        self._reach_until = now + REACH_S
        for role in {role.host: role for role in running}.values():
            role.blocked = ()
            role.connection.put({"reach": self._roster.places_of_others(role.host)})

    # -- telling -------------------------------------------------------------------------------------------------

    def _judge(self, now, quiet_s):
        found = self._describe()
        kind = "stopped" if self._stopped else "blocked" if self._blocked else None
        if kind is None and quiet_s < 2 * self._every_s:
            if self._told is not None:
                self._told = None
                self._tell("the job makes progress again", None)
            return
        is_other = self._told is None or found != self._told[2]
        is_news = is_other or now >= self._told[0] + self._told[1]
        what = decide(quiet_s, self._pace_s, self._limit_s, kind, is_news)
        if what == "end":
            limit = render_time(self._limit_s)
            self._end("no worker made progress for %s (stall_timeout): %s" % (limit, found))
        elif what == "tell":
            self._told = (now, TELL_AGAIN_S if is_other else 2 * self._told[1], found)
            is_quiet = quiet_s >= 2 * self._every_s
            text = "no worker has made progress for %s: %s" % (render_time(quiet_s), found) if is_quiet else found
            self._tell(text, quiet_s)

    def _describe(self):
        """What was found, in words."""
        said = [self._describe_stopped(role) for role in self._roster.roles if role.number in self._stopped]
        if self._blocked:
            said.append(self._blocked + "; `cluster verify` tries their ports")
        if said:
            return "; ".join(said)
        hosts = {role.host for role in self._running()}
        return "none of its processes is stopped" + (", and its nodes reach each other" if len(hosts) > 1 else "")

    def _describe_stopped(self, role):
        """Which process of a role is stopped, and what resumes it."""
        pid, words = self._stopped[role.number][0]
        shown = "".join(letter if letter.isprintable() else "?" for letter in words[:LONGEST_COMMAND])
        who = role.name if pid == role.pid else "process %d (%s) of %s" % (pid, shown, role.short_name)
        pids = " ".join(str(pid) for pid, _ in self._stopped[role.number])
        resume = "kill -CONT %s" % pids
        if self._roster.is_node(role.host):
            resume = "cluster exec --node %s -- %s" % (role.host, resume)
        return "%s is stopped, as by SIGSTOP; `%s` resumes it" % (who, resume)
