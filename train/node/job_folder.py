"""Where a job is kept on the head: ~/.cluster/jobs/ID, and what of it is told to others.

Python 3.6 and later, standard library only.
"""

import json
import os
import re

ENDED = ("done", "failed", "stopped")
STATES = ("queued", "starting", "running", "ending") + ENDED
KEPT = 50  # ended jobs
MAX_RECORD_BYTES = 1 << 20
# What is used of a record, and what it is.
USED = (
    ("name", str),
    ("submitted_at", (int, float)),
    ("python", str),
    ("nodes", list),
    ("left", dict),
    ("env", dict),
    ("output_url", (str, type(None))),
)
# Names of variables whose values are not told. Words that others have in them (KEYBOARD, COMPASS, AUTHOR) stand between
# underscores, or alone; PWD alone is a shell's folder, and TOKENIZERS_PARALLELISM a setting.
SECRET = re.compile(
    "SECRET|TOKEN(?!IZ)|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|SSHPASS|CREDENTIAL|AUTHORIZATION|(API|ACCESS|PRIVATE)KEY"
    "|(^|_)(PASS|PW|AUTH|OAUTH2?|BEARER|CREDS?|JWT|PAT|COOKIE|WEBHOOK)(_|$)"
    "|_(PWD|KEYS?)(_|$)|^KEYS?$",
    re.IGNORECASE,
)
# The password of a URL, to the last @ before a blank or another URL: it may have an @ or / in it itself. A port and a
# path are none.
URL_PASSWORD = re.compile(r"(://[^/\s:]*:)(?!\d+[/?#])(?:(?!://)\S)+@")
URL_TOKEN = re.compile(r"(https?://)[^/?#\s:@]+@", re.IGNORECASE)  # in the user's place, as git hosts take it
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
HIDDEN = "***"  # in place of a value
VERSION = 1
OF_NODE = ("name", "ip", "instance_id")
OF_OTHER = ("user", "port", "python", "programs")  # of a host that is not the cluster's, as well


def root():
    """The folder of all jobs."""
    return os.path.join(os.path.expanduser("~"), ".cluster", "jobs")


def path(job, *names):
    """The path of a job's folder, or of something in it."""
    return os.path.join(root(), job, *names)


def new_record(order, submitted_at):
    """The record of a job that has not started, from its order."""
    env = {}
    for key, suffix in (("env", ""), ("env_server", " (servers)"), ("env_worker", " (workers)")):
        hidden = order.get("hidden", {}).get(key, ())
        for name, value in order.get(key, {}).items():
            env[name + suffix] = HIDDEN if name in hidden else mask(name, value)
    given = ("name", "cwd", "python", "launcher", "kv_store", "workers", "servers", "library", "code", "project")
    given += ("script", "script_source", "owner", "max_duration_s", "nodes_credentials")
    record = {key: order.get(key) for key in given}
    record.update(
        version=VERSION,
        id=order["job"],
        state="starting",
        command=list(order["command"]),
        env=env,
        nodes=[_describe_host(host) for host in order["hosts"]],
        output_url=output_url(order),
        submitted_at=submitted_at,
        started_at=None,
        ended_at=None,
        exit_code=None,
        error=None,
        stall=None,
        left={},
        warnings=[],
        supervisor=None,
        roles=[],
    )
    return record


def mask(name, value):
    """What may be told of a variable's value: not what its name calls a secret, nor a password in a URL."""
    if SECRET.search(name):
        return HIDDEN
    return URL_TOKEN.sub(r"\1***@", URL_PASSWORD.sub(r"\1***@", value))


def _describe_host(host):
    return {key: host.get(key) for key in OF_NODE + (OF_OTHER if "python" in host else ())}


def output_url(order):
    """Where in S3 a job leaves what it made, or None."""
    results = order.get("results_url")
    return results.rstrip("/") + "/" + order["job"] + "/" if results else None


def results_url(record):
    """The prefix in S3 below which a job of this record leaves what it made."""
    return record["output_url"][: -len(record["id"]) - 1]


def read_record(job):
    """A job's record, or None where there is none that can be read and used."""
    try:
        with open(path(job, "record.json"), "rb") as stream:
            record = json.loads(stream.read(MAX_RECORD_BYTES + 1).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if is_whole(record, job) else None


def is_whole(record, job):
    """Whether a record is one of this job, with all that the programs on the head use of it."""
    if not isinstance(record, dict) or record.get("id") != job or record.get("state") not in STATES:
        return False
    if not all(isinstance(record.get(key), kind) for key, kind in USED):
        return False
    known = record.get("supervisor")
    if known is not None and not (isinstance(known, dict) and isinstance(known.get("pid"), int)):
        return False
    nodes = record["nodes"]
    return bool(nodes) and all(isinstance(at, dict) and isinstance(at.get("name"), str) for at in nodes)


def find_damaged():
    """The jobs whose records cannot be read or used."""
    return [name for name in _names() if os.path.exists(path(name, "record.json")) and read_record(name) is None]


def write_record(record, *, lasting=False):
    """Replace a job's record at once by a new one. lasting: also through a power failure. Raises OSError."""
    place = path(record["id"], "record.json")
    try:
        with open(place + ".new", "wb") as stream:
            stream.write(json.dumps(record, sort_keys=True).encode("utf-8") + b"\n")
            if lasting:
                stream.flush()
                os.fsync(stream.fileno())
    except OSError as error:
        remove(place + ".new")
        raise OSError(error.errno, error.strerror, place) from error
    os.replace(place + ".new", place)


def read_all():
    """The records of all jobs, the newest first."""
    records = [record for record in map(read_record, _names()) if record is not None]
    return sorted(records, key=lambda record: (record["submitted_at"], record["id"]), reverse=True)


def prune(records):
    """Remove the folders of all but the newest ended jobs."""
    import shutil  # slow to load

    ended = [record for record in records if record["state"] in ENDED]
    for record in ended[KEPT:]:
        shutil.rmtree(path(record["id"]), ignore_errors=True)


def find_without_record():
    """The jobs that have left no more than output on this host, the newest first."""
    names = [name for name in _names() if not os.path.exists(path(name, "record.json"))]
    return sorted(names, key=_age, reverse=True)


def _age(job):
    try:
        return os.path.getmtime(path(job))
    except OSError:  # removed meanwhile
        return 0.0


def _names():
    try:
        return [name for name in os.listdir(root()) if os.path.isdir(path(name))]
    except FileNotFoundError:
        return []


def remove(file):
    """Remove a file if it is there."""
    try:
        os.unlink(file)
    except FileNotFoundError:
        pass


def describe(error):
    """An OSError in words: what happened, and to which file."""
    place = "" if error.filename is None else " (%s)" % error.filename
    return (error.strerror or str(error)) + place
