"""[notify]: valid settings, how events are sent, and that the webhook's URL stays secret."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from bootstrap.notify import NotifyConfig, find_webhook
from cluster.config import parse_config
from foundation.errors import ConfigError
from foundation.settings import check
from http_server import Answer, answer_status, serve_webhook
from node.setup import notify
from node.setup.process_tree import start_time
from project import REPOSITORY
from waits import until

SECRET = "canaryOfAWebhook0123456789"
PATH = f"/{SECRET}?token={SECRET}"
EVENT = {"event": "job-ended", "text": "job 1 is done", "at": 5.0}


# -- the settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com:8443/a?token=b",
        "http://10.1.2.3/x",
        "http://localhost/x",
        "http://[::1]:9/x",
        "$SLACK_WEBHOOK",
    ],
)
def test_a_webhook_that_is_allowed(url: str) -> None:
    assert check(NotifyConfig, {"webhook": url}, source="cluster.toml").webhook == url


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (f"http://example.com/{SECRET}", "must be https://: others can read"),
        (f"hooks.example.com/{SECRET}", "must be an https:// URL"),
        (f"https:///{SECRET}", "must be an https:// URL"),
        (f"https://me:{SECRET}@example.com/", "no user or password"),
        (f"https://example.com:99999/{SECRET}", "not a valid URL"),
        (f"https://example.com/{SECRET}\n", "visible ASCII"),
        (f"https://example.com/{SECRET}" + "x" * 2000, "at most 2000"),
        ({"url": f"https://example.com/{SECRET}"}, "must be text in quotes"),
    ],
)
def test_a_webhook_that_is_refused_by_its_key_and_not_repeated(value: object, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"name": "demo", "notify": {"webhook": value}}, source="cluster.toml")
    assert caught.value.message.startswith("cluster.toml: notify.webhook: ")
    assert why in caught.value.message
    assert "canary" not in f"{caught.value.message} {caught.value.hint}"


def test_a_webhook_from_the_environment() -> None:
    config = NotifyConfig(webhook="$MY_HOOK")
    assert find_webhook(config, {"MY_HOOK": "https://example.com/x"}) == "https://example.com/x"
    assert find_webhook(NotifyConfig(webhook="https://example.com/x"), {}) == "https://example.com/x"
    assert find_webhook(NotifyConfig(command="true"), {}) is None
    for value in ("", "$OTHER"):
        with pytest.raises(ConfigError, match=r'notify.webhook = "\$MY_HOOK": this variable is not set to a URL here'):
            find_webhook(config, {"MY_HOOK": value})
    with pytest.raises(ConfigError) as caught:
        find_webhook(config, {"MY_HOOK": f"ftp://example.com/{SECRET}"})
    assert SECRET not in f"{caught.value}{caught.value.hint}"


# -- sending -----------------------------------------------------------------------------------------------------------


def settings(webhook: str | None = None, command: str | None = None) -> notify.Settings:
    return notify.Settings(cluster="demo", webhook=webhook, command=command)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(notify, "ANSWER_S", 0.5)


def test_an_event_reaches_the_webhook() -> None:
    with serve_webhook(answer_status(200), PATH) as (url, asked):
        assert notify.send(settings(url), EVENT) == []
    sent = {**EVENT, "cluster": "demo", "content": "job 1 is done"}
    assert asked == [(PATH, sent)]


@pytest.mark.parametrize("code", [302, 308])
def test_a_redirect_is_not_followed(code: int) -> None:
    with (
        serve_webhook(answer_status(200), PATH) as (other, reached),
        serve_webhook(answer_status(code, Location=other), PATH) as (url, asked),
    ):
        (error,) = notify.send(settings(url), EVENT)
    assert (len(asked), reached) == (1, [])
    assert error.startswith(f"webhook at 127.0.0.1: HTTP {code} ")
    assert SECRET not in error


def rubbish(request: BaseHTTPRequestHandler, _: int) -> None:
    request.wfile.write(f"{request.path} is not HTTP\r\n\r\n".encode())


def is_silent(_request: BaseHTTPRequestHandler, _: int) -> None:
    time.sleep(0.8)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (rubbish, "the answer is not HTTP"),
        (answer_status(429), "HTTP 429 Too Many Requests"),
        (is_silent, r"no answer within 0\.5 s"),
    ],
)
def test_a_server_that_misbehaves(answer: Answer, why: str) -> None:
    with serve_webhook(answer, PATH) as (url, asked):
        [message] = notify.send(settings(url), EVENT)
    assert re.fullmatch(rf"webhook at 127\.0\.0\.1: {why}", message)
    assert len(asked) == 3  # it is tried again


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("exit 3", "command: exit code 3"),
        ("sleep 100", "command: did not end within 1 s"),
        ("exit 0", None),  # a command that does not read its stdin
    ],
)
def test_how_the_command_ends(command: str, error: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "COMMAND_S", 1.0)
    assert notify.send(settings(command=command), EVENT) == ([] if error is None else [error])


# -- the watcher -------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from node.setup import notify
notify.RUN = sys.argv[2]
for name, file in (("EVENTS", "events"), ("LOCK", "notify.lock"), ("LOG", "notify.log")):
    setattr(notify, name, notify.RUN + "/" + file)
notify.LOOK_S = 0.05
notify.main()
"""


def ask(run: Path, watch: notify.Settings | None) -> dict[str, Any]:
    """Does what the program over ssh does, with another folder in place of /run/cluster; returns the answer."""
    line = json.dumps({"settings": to_builtins(watch)})
    words = [sys.executable, "-c", PROGRAM, str(REPOSITORY), str(run)]
    done = subprocess.run(words, input=line + "\n", capture_output=True, text=True, timeout=30, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "run"
    folder.mkdir()
    yield folder
    ask(folder, None)


def write_event(run: Path, name: str, content: str) -> None:
    (run / "new").write_text(content)
    (run / "new").rename(run / "events" / name)


def test_there_is_one_watcher_with_the_newest_settings(run: Path) -> None:
    with (
        serve_webhook(answer_status(200), PATH) as (url, asked),
        serve_webhook(answer_status(404), PATH) as (other, refused),
    ):
        first = ask(run, settings(other))["pid"]
        second = ask(run, settings(url))["pid"]
        assert start_time(first) is None
        assert start_time(second) is not None
        write_event(run, "a.json", json.dumps({"event": "unhealthy", "text": "node-1"}))
        until(lambda: asked, "an event")
        assert refused == []
        assert ask(run, None)["pid"] is None
        until(lambda: start_time(second) is None, "its end")
        os.kill(ask(run, settings(other))["pid"], signal.SIGKILL)  # a killed watcher is replaced, too
        third = ask(run, settings(other))["pid"]
        write_event(run, "b.json", json.dumps({"event": "unhealthy", "text": "node-1"}))
        until(lambda: refused, "an event")
        assert start_time(third) is not None
        until(lambda: "b.json: webhook at 127.0.0.1: HTTP 404" in (run / "notify.log").read_text(), "the log")
