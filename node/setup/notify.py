"""Sends a cluster's events to [notify] webhook and command. Runs on the head.

stdin has one line of JSON, the request:

    {"settings": SETTINGS, "event": EVENT}   sends the event; answered by {"errors": [text]}
    {"settings": SETTINGS or null}           starts the watcher, or ends it; {"pid": its pid or null}, {"error": text}

SETTINGS is {"cluster": name, "webhook": URL or null, "command": text or null, "user": NAME}. The command runs as the
user NAME, if it is there. The URL is a secret: it is in no file, argument, environment variable or message of this
program; it comes over stdin and stays in memory. So errors name only the host, and do not repeat the server's answer.

The watcher sends the events that other programs of root write to EVENTS as NAME.json (an object with "event", "at" and
"text"), and removes each file. It logs the results in LOG.
"""

import fcntl
import http.client
import json
import os
import pwd
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from foundation.authorities import find_authorities
from foundation.decode import decode
from node.protocol import Notify

RUN = "/run/cluster"
EVENTS = os.path.join(RUN, "events")
LOCK = os.path.join(RUN, "notify.lock")
LOG = os.path.join(RUN, "notify.log")
PAUSES_S = (1.0, 5.0)
ANSWER_S = 10.0
COMMAND_S = 60.0
LOOK_S = 1.0
END_S = 5.0
MAX_EVENT_BYTES = 64 << 10


class Settings(Notify, frozen=True, kw_only=True):
    """user: runs the command; None for this process's own."""

    user: str | None = None


class _Request(Struct, frozen=True, kw_only=True):
    settings: Settings | None
    event: dict[str, Any] | None = None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: one would send the event to a host that the user has not named."""

    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


def send(settings: Settings, event: Mapping[str, Any]) -> list[str]:
    """Sends an event to the webhook and to the command. Returns the errors, which contain no secret."""
    full = {"cluster": settings.cluster, "at": time.time(), **event}
    results = (
        post(settings.webhook, full) if settings.webhook else None,
        run_command(settings.command, full, settings.user) if settings.command else None,
    )
    return [error for error in results if error is not None]


# -- webhook -----------------------------------------------------------------------------------------------------------


def post(url: str, event: Mapping[str, Any]) -> str | None:
    """POST the event as JSON, with retries. Returns the error, or None.

    `text` and `content` are the fields that chat services show.
    """
    body = json.dumps({**event, "content": event.get("text", "")}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "cluster"}
    message = ""
    for pause_s in (0.0, *PAUSES_S):
        time.sleep(pause_s)
        try:
            request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 - bootstrap/notify.py checks it
            opener = urllib.request.build_opener(_NoRedirects(), urllib.request.HTTPSHandler(context=make_context()))
            opener.open(request, timeout=ANSWER_S).close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            message = explain(error)
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                break
        else:
            return None
    return f"webhook at {urllib.parse.urlsplit(url).hostname}: {message}"


def explain(error: Exception) -> str:
    """The reason of an exception, without its text, which may contain the URL."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code} {http.client.responses.get(error.code, '')}".strip()
    if isinstance(error, http.client.HTTPException):
        return "the answer is not HTTP"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, OSError):
        return reason.strerror or f"no answer within {ANSWER_S:g} s"
    return "not a valid URL"


def make_context() -> ssl.SSLContext:
    """The default TLS context of this Python, with the system's authorities if it has found none itself."""
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"] and (path := find_authorities()) is not None:
        context.load_verify_locations(path)
    return context


# -- command -----------------------------------------------------------------------------------------------------------


def run_command(command: str, event: Mapping[str, Any], name: str | None) -> str | None:
    """Runs the command with the event as JSON on its stdin. Returns the error, or None.

    name: the user who runs it, in the user's home folder; None for this process's user.
    """
    user = pwd.getpwnam(name) if name else pwd.getpwuid(os.getuid())
    env = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell}
    env["PATH"] = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    become: dict[str, Any] = {}
    if os.getuid() == 0:
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
        become = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}
    try:
        child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=user.pw_dir if os.path.isdir(user.pw_dir) else "/",
            start_new_session=True,
            **become,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"command: {getattr(error, 'strerror', None) or type(error).__name__}"
    try:
        child.communicate(json.dumps(event).encode() + b"\n", timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return f"command: did not end within {COMMAND_S:g} s"
    code = child.returncode
    if code == 0:
        return None
    return f"command: exit code {code}" if code > 0 else f"command: killed by signal {-code}"


# -- watcher -----------------------------------------------------------------------------------------------------------


def set_watcher(settings: Settings | None) -> int | None:
    """Ends the running watcher, and starts one with these settings, if any. Returns its pid, or None.

    Raises OSError.
    """
    os.makedirs(EVENTS, mode=0o755, exist_ok=True)
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _end_watcher(lock)
    if settings is None:
        os.close(lock)
        return None
    pid = os.fork()
    if pid == 0:
        _become_watcher(settings)
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % pid, 0)
    os.close(lock)  # the watcher holds it
    return pid


def _end_watcher(lock: int) -> None:
    """Acquires the lock, and ends the watcher that holds it. Raises OSError."""
    give_up_at = time.monotonic() + END_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                raise
        else:
            return
        text = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        if text.isdigit() and int(text) > 1:
            try:
                os.kill(int(text), signal.SIGTERM)  # it holds the lock, so this is its pid
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def _become_watcher(settings: Settings) -> NoReturn:
    """Watches in this process, which inherits the lock. Never returns."""
    try:
        os.setsid()
        os.chdir("/")
        devnull = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(devnull, descriptor)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        watch(settings)
    finally:
        os._exit(1)


def watch(settings: Settings) -> NoReturn:
    """Sends the events that appear, until this process ends."""
    while True:
        send_new(settings)
        time.sleep(LOOK_S)


def send_new(settings: Settings) -> None:
    """Sends the events in EVENTS, in the order of their names, and removes them."""
    for name in sorted(os.listdir(EVENTS) if os.path.isdir(EVENTS) else []):
        path = os.path.join(EVENTS, name)
        if not name.endswith(".json"):
            continue
        event = read_event(path)
        errors = send(settings, event) if event else ["not an event"]
        _note(f"{event.get('event', '?')} {name}: {'; '.join(errors) or 'sent'}")
        Path(path).unlink(missing_ok=True)


def read_event(path: str) -> dict[str, Any]:
    """The event in a file; {} for a file without an event. Raises OSError."""
    with open(path, "rb") as stream:
        data = stream.read(MAX_EVENT_BYTES)
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else {}


def _note(line: str) -> None:
    """Adds a line to the log."""
    try:
        with open(LOG, "a", encoding="utf-8") as stream:
            stream.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n")
    except OSError:
        pass  # the log does not matter for the event


def main() -> None:
    """Carries out the request on stdin."""
    request = decode(sys.stdin.buffer.readline(), _Request)
    answer: dict[str, Any]
    if request.settings is not None and request.event is not None:
        answer = {"errors": send(request.settings, request.event)}
    else:
        try:
            answer = {"pid": set_watcher(request.settings)}
        except OSError as error:
            answer = {"error": error.strerror or type(error).__name__}
    print(json.dumps(answer), flush=True)
