"""A job's files on a host: folders of output, a log of whole lines, and a record without secrets."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from msgspec import to_builtins

from node import job_folder
from node.protocol import JobResult
from node.setup import process_tree
from node.supervisor import job_log


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_only_the_newest_jobs_keep_their_output(home: Path) -> None:
    jobs = home / ".cluster" / "jobs"
    for number in range(job_folder.KEPT + 3):
        (jobs / f"old-{number}" / "output").mkdir(parents=True)
        os.utime(jobs / f"old-{number}", (number, number))
    (jobs / "old-0" / "record.json").write_text("{}")  # a folder of the head
    (jobs / "old-2" / job_folder.FILES).touch()
    os.utime(jobs / "old-2", (2, 2))
    notebook = {process_tree.JOB_VARIABLE: "old-1"}  # it still runs, beside other jobs
    with subprocess.Popen(["sleep", "100"], env=os.environ | notebook) as running:
        job_folder.make_output_dir("new")
        running.kill()
    names = {path.name for path in jobs.iterdir()}
    assert {"new", "old-0", "old-1", "old-2", f"old-{job_folder.KEPT + 2}"} <= names
    assert len(names) == job_folder.KEPT + 3


SECRET_NAMES = """
DB_PASS PASS pass_of_db MYSQL_PWD SMTP_PW PASSPHRASE SSH_PASSPHRASE RSYNC_PASSWORD PGPASSWORD MYPASSWD SSHPASS
APIKEY myApiKey API_KEY API_KEYS API_KEY_PROD KEY PGP_PRIVATE_KEY_PEM PRIVATEKEY AWS_ACCESS_KEY_ID AZURE_ACCESSKEY
AUTH BASIC_AUTH AUTH_HEADER OAUTH2_CLIENT REDISCLI_AUTH HTTP_AUTHORIZATION BEARER BEARER_2 GITHUB_TOKEN TOKENS
client_secret GOOGLE_APPLICATION_CREDENTIALS DB_CREDS SESSION_JWT GH_PAT SESSION_COOKIE SLACK_WEBHOOK_URL
"""
PLAIN_NAMES = """
KEYBOARD AUTHOR GIT_AUTHOR_NAME AUTHORITY MONKEY MONKEY_2 KEY_COLOUR HOTKEY TURKEY_PATH COMPASS COMPASS_DIR PASSES
N_PASSES BYPASS PASSENGERS PWD OLDPWD PATH PATTERN OMP_NUM_THREADS TOKENIZERS_PARALLELISM BEARERS CREDO NPW
CLUSTER_OUTPUT_URL S3_REGION DMLC_PS_ROOT_PORT PAM_USER
"""


@pytest.mark.parametrize(("names", "shown"), [(SECRET_NAMES, "***"), (PLAIN_NAMES, "x")], ids=["secret", "plain"])
def test_the_values_of_secret_names_are_masked(names: str, shown: str) -> None:
    assert [name for name in names.split() if job_folder.mask(name, "x") != shown] == []


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("postgres://u:hush@h", "postgres://u:***@h"),
        (
            "postgresql+psycopg2://u:hush@h:5432/db?sslmode=require",
            "postgresql+psycopg2://u:***@h:5432/db?sslmode=require",
        ),
        ("redis://:hush@h:6379/0", "redis://:***@h:6379/0"),
        ("amqp://u:hu@sh/hu:sh?#@h/", "amqp://u:***@h/"),
        ("smtp://me@x.org:hush@smtp.x.org", "smtp://me@x.org:***@smtp.x.org"),
        ("http://u:1234@h:80/", "http://u:***@h:80/"),
        ("http://a:hush@b,http://c:hush@d:1/e", "http://a:***@b,http://c:***@d:1/e"),
        ("see http://a:hush@b and write to me@x.org", "see http://a:***@b and write to me@x.org"),
        ("https://hush@github.com/me/mine.git", "https://***@github.com/me/mine.git"),
        ("HTTPS://oauth2:hush@h/", "HTTPS://oauth2:***@h/"),
    ],
)
def test_the_password_in_a_url_is_masked(value: str, told: str) -> None:
    assert job_folder.mask("DATABASE", value) == told


WITHOUT_PASSWORD = """
s3://bucket/a@b https://h:8080/a@b https://h:8080?a=x@y ssh://git@github.com/me/mine.git git@github.com:me/mine.git
postgres://u@h/db postgres://u:@h/db http://[::1]:80/ /a/b:c@d me@x.org kafka://a:1,b:2 https://s3.eu.example/
"""


def test_a_value_without_a_password_is_shown() -> None:
    values = WITHOUT_PASSWORD.split()
    assert [job_folder.mask("PLACE", value) for value in values] == values


def test_a_log_has_whole_lines_even_on_a_full_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".cluster" / "jobs" / "j").mkdir(parents=True)
    writer = job_log.Log("j")
    writer.reserve()
    writer.put_line(0, "before")
    writer.write()
    real, room = os.write, [30]

    def write(descriptor: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        written = real(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)
    writer.put_line(0, "lost, for there is no room for all of this line")
    with pytest.raises(OSError, match=r"No space left.*events"):
        writer.write()
    writer.put_line(0, "also lost")
    writer.write()
    room[0] = 10**6
    assert (home / ".cluster" / "jobs" / "j" / "reserve").exists()
    writer.make_room()
    result = JobResult(state="failed", exit_code=1)
    writer.put(result=result)
    writer.write()
    writer.close()
    folder = home / ".cluster" / "jobs" / "j"
    events = [json.loads(line) for line in (folder / "events").read_text().splitlines()]
    assert [event.get("line") for event in events] == ["before", None]
    assert events[-1]["result"] == to_builtins(result)
    assert not (folder / "reserve").exists()
    assert job_log.repair("j") == result
    with (folder / "events").open("ab") as stream:
        stream.write(b'{"t": 1, "li')
    assert job_log.repair("j") == result
