"""The node-side programs of a job, each by itself: their ways with bytes, processes, ssh, ports and environments."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert, to_builtins

from bootstrap.node import process_tree
from foundation.file_lock import FileLock, is_held
from job_channels import make_order
from train.engines import ENGINES
from train.engines.engine import HostFiles
from train.job.plan import new_job_id
from train.job.protocol import JobHost, JobResult
from train.node import job_folder, wire
from train.node.programs import CODE_DIR, program_words
from train.node.role import environment
from train.node.supervisor import event_loop, job_log, launch, launching, outcome, ssh_proxy
from train.node.supervisor.processes import Processes
from train.node.wire import RoleOrder


@given(st.binary(max_size=400), st.lists(st.integers(1, 50), max_size=30))
def test_lines_are_cut_the_same_however_the_bytes_arrive(data: bytes, sizes: list[int]) -> None:
    buffer = wire.LineBuffer()
    lines: list[bytes] = []
    rest = data
    for size in sizes:
        lines += buffer.feed(rest[:size])
        rest = rest[size:]
    lines += buffer.feed(rest) + buffer.flush()
    wanted = data.split(b"\n")
    assert lines == (wanted if wanted[-1] else wanted[:-1])


def test_endless_lines_do_not_fill_the_memory() -> None:
    buffer = wire.LineBuffer(limit=10)
    assert buffer.feed(b"x" * 25) == [b"x" * 10, b"x" * 10]
    assert buffer.flush() == [b"x" * 5]


@pytest.mark.parametrize(
    ("line", "shown"),
    [(b"plain", "plain"), (b"10%\r20%\r30%", "30%"), (b"windows\r", "windows"), (b"\xff\xfe", "\ufffd\ufffd")],
)
def test_output_is_shown_as_a_terminal_would_leave_it(line: bytes, shown: str) -> None:
    assert wire.text(line) == shown


@pytest.mark.parametrize(
    ("came_at", "rests_s"),
    [
        ([5.0], [0.0]),
        ([5.0, 6.0, 7.0], [0.0, 0.0, 0.0]),  # what is rare goes on at once
        ([5.0, 5.01], [0.0, 0.02]),
        ([5.0, 5.1, 5.2, 5.3, 5.4, 5.5, 5.6], [0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1]),  # what streams is gathered
        ([5.0, 5.1, 5.2, 6.0], [0.0, 0.02, 0.04, 0.0]),
    ],
)
def test_output_gathers_where_it_streams(
    came_at: list[float], rests_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(wire.time, "monotonic", lambda: now)
    pace, rests = wire.Pace(), []
    assert not pace.rest_s
    for now in came_at:  # noqa: B007 - the clock
        pace.note()
        rests.append(pace.rest_s)
    assert rests == pytest.approx(rests_s)
    now += 0.1
    assert not pace.rest_s


def test_nothing_waits_for_a_reader_that_takes_nothing() -> None:
    ours, theirs = socket.socketpair()
    outbox = wire.Outbox(ours.fileno())
    outbox.pass_on(b"x" * (1 << 23))
    outbox.write()
    assert outbox.pending
    theirs.close()
    outbox.write()
    assert outbox.broken
    assert not outbox.pending
    ours.close()


def test_launch_pys_ssh_command_is_understood() -> None:
    program = "export OMP_NUM_THREADS=1; export DMLC_ROLE=worker; export DMLC_PS_ROOT_PORT=9091; cd /x/; run it"
    assert ssh_proxy.parse_arguments(["-o", "StrictHostKeyChecking=no", "10.0.0.5", "-p", "22", program]) == (
        "10.0.0.5",
        "22",
        program,
    )
    assert dict(ssh_proxy.EXPORT.findall(program)) == {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_PORT": "9091"}


def test_mpiruns_ssh_command_becomes_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "CLUSTER_HOSTS": json.dumps([{"name": f"node-{i}", "ip": f"10.0.0.{4 + i}"} for i in range(2)]),
        "CLUSTER_JOB_ID": "job",
        "CLUSTER_MPI_SSH": "/j/bin/mpi-ssh",
        "SECRET": "hush",
    }.items():
        monkeypatch.setenv(name, value)
    command = ssh_proxy.mpi_command(["-x", "10.0.0.5", "orted -mca plm_rsh_agent", '"/j/bin/mpi-ssh"'])
    assert command[:2] == ["/usr/bin/ssh", "-F"]
    assert command[-2] == "10.0.0.5"
    assert command[-1].startswith("export CLUSTER_HOST=node-1; export CLUSTER_JOB_ID=job; PATH=")
    assert command[-1].endswith('orted -mca plm_rsh_agent "/usr/bin/ssh"')
    assert "hush" not in " ".join(command)


def test_all_processes_of_a_job_are_found_and_ended() -> None:
    """Also one that ignores SIGTERM, and one in a session of its own, and one without the job's environment."""
    job = new_job_id()
    program = "trap '' TERM; setsid sleep 600 & env -i sleep 601 & echo ready; while :; do sleep 1; done"
    child = process_tree.start(["/bin/sh", "-c", program], {**os.environ, process_tree.JOB_VARIABLE: job}, "/")
    assert child.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 10
    wanted = {"/bin/sh -c " + program, "sleep 600", "sleep 601"}
    while not command_lines(job) >= wanted and time.monotonic() < deadline:  # a fork is "/bin/sh" at first
        time.sleep(0.02)
    assert command_lines(job) >= wanted
    first, left = process_tree.end(job)
    assert len(first) >= 3  # the loop's own sleep may just be between two of its lives
    assert left == []
    assert process_tree.find(job) == []
    child.wait()
    child.stdout.close()


def command_lines(job: str) -> set[str]:
    return {words for _, _, words in process_tree.find(job)}


def test_a_process_dies_with_the_program_that_started_it() -> None:
    program = f"""
import sys, time
sys.path.insert(0, {CODE_DIR!r})
from bootstrap.node import process_tree
child = process_tree.start(["sleep", "600"], {{"PATH": "/usr/bin:/bin"}}, "/")
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    gone(pid)


def gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while process_tree.start_time(pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run_role(
    order: dict[str, Any],
    *,
    hang_up: bool = False,
    hang_up_after: str | None = None,
    down: bytes = b"",
    python: str = sys.executable,
    env: Any = None,
) -> tuple[int, list[dict[str, Any]]]:
    """role.py as ssh runs it: the order on stdin, framed messages on stdout. down: what is said once it has started.

    hang_up: then, at once; hang_up_after: when there has come a message with this key.
    """
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        program_words("role", python=python), stdin=theirs, stdout=subprocess.PIPE, text=True, env=env
    ) as role:
        theirs.close()
        ours.sendall(wire.encode(order))
        assert role.stdout is not None
        messages = [json.loads(role.stdout.readline())]
        ours.sendall(down)
        if hang_up:
            ours.close()
        for line in role.stdout:
            message = json.loads(line)
            messages += [] if "alive" in message else [message]
            if hang_up_after in message:
                ours.close()
        code = role.wait(timeout=20)
    ours.close()
    return code, messages


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def order(*words: str, **more: Any) -> dict[str, Any]:
    job = {"job": new_job_id(), "role": "worker", "host": "node-0", "address": None, "launched": {}, "setup": None}
    job |= {"commands": [list(words)], "env": {"X": "it's"}, "cwd": "/", "open_files": "auto", "p3": False}
    return {**job, "silence_timeout_s": 15, **more}


def exited(code: int, number: int | None = None, *, at: int = 0, ended: bool = False) -> dict[str, Any]:
    """What its program tells last: what is as usual is left out."""
    more = {"signal": number, "ended": ended, "at": at}
    return {"exit": code, **{key: value for key, value in more.items() if value}}


def test_a_role_reports_start_lines_and_exit() -> None:
    code, messages = run_role(order("/bin/sh", "-c", 'echo "$X"; echo more >&2; exit 5'))
    assert code == 5
    assert "started" in messages[0]
    assert messages[1:] == [{"line": "it's"}, {"line": "more"}, exited(5)]


def test_a_role_tells_a_signal_from_an_exit_code() -> None:
    code, messages = run_role(order("/bin/sh", "-c", "kill -9 $$"))
    assert (code, messages[-1]) == (137, exited(137, 9))


def test_a_role_runs_several_commands_until_one_fails() -> None:
    _, messages = run_role(order("true", commands=[["true"], ["false"], ["echo", "never"]]))
    assert messages[-1] == exited(1, at=1)
    assert not [message for message in messages if "line" in message]


@pytest.mark.parametrize("ends", ["hang up", "told"])
def test_a_role_ends_all_that_descends_from_its_process(ends: str) -> None:
    program = "setsid env -i sleep 600 & (trap '' TERM; sleep 600) & sleep 600"
    wanted = order("/bin/sh", "-c", program)
    told = wire.encode({"end": True}) if ends == "told" else b""
    code, messages = run_role(wanted, hang_up=ends != "told", down=told)
    assert code == 143
    assert messages[-1] == exited(143, 15, ended=True)
    assert process_tree.find(wanted["job"]) == []


def test_a_role_that_is_left_alone_ends_everything_of_its_job_here() -> None:
    wanted = order("sleep", "600")
    other = process_tree.start(["sleep", "600"], {**os.environ, process_tree.JOB_VARIABLE: wanted["job"]}, "/")
    run_role(wanted, hang_up=True)
    # Of the two seconds before SIGKILL it is spared for one.
    assert -other.wait(timeout=20) in (signal.SIGTERM, signal.SIGKILL)
    other.stdout.close()


def test_silence_after_signs_of_life_is_the_end_of_the_line() -> None:
    alive = wire.encode({"alive": True})
    _, messages = run_role(order("sleep", "600", silence_timeout_s=0.3), down=alive)
    assert messages[-1]["ended"]


def test_a_role_follows_a_process_that_has_closed_its_output() -> None:
    code, messages = run_role(order("/bin/sh", "-c", "exec >&- 2>&-; exit 3"))
    assert (code, messages[-1]) == (3, exited(3))
    wanted = order("/bin/sh", "-c", "exec >&- 2>&-; sleep 600")
    code, messages = run_role(wanted, hang_up=True)
    assert messages[-1]["ended"]
    assert process_tree.find(wanted["job"]) == []


def test_a_role_ends_a_daemon_that_goes_on_printing() -> None:
    wanted = order("/bin/sh", "-c", "setsid sh -c 'while :; do echo more; sleep 0.01; done' & sleep 0.1; exit 0")
    code, messages = run_role(wanted)
    assert (code, messages[-1]) == (0, exited(0))
    assert process_tree.find(wanted["job"]) == []


def test_a_slow_reader_gets_all_of_the_output() -> None:
    wanted = order("/bin/sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done; seq 3000 40000")
    ours, theirs = socket.socketpair()
    command = program_words("role", python=sys.executable)
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True) as role:
        ours.sendall(wire.encode(wanted))
        time.sleep(2.5)  # longer than it waits for a pipe that nobody ends
        assert role.stdout is not None
        lines = [message["line"] for line in role.stdout if "line" in (message := json.loads(line))]
    assert lines == [str(number) for number in (*range(3000), *range(3000, 40001))]
    ours.close()
    theirs.close()


def test_a_role_says_what_cannot_be_started() -> None:
    code, messages = run_role(order("/bin/echo", "a\0b"))
    assert code == 127
    assert "null byte" in messages[0]["line"]
    assert messages[-1]["why"] == messages[0]["line"]


def test_a_role_says_which_port_blocks_it() -> None:
    launched = {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "unknown.invalid", "DMLC_PS_ROOT_PORT": "9091"}
    code, messages = run_role(order("true", launched=launched))
    assert code == 1
    assert "the scheduler's port 9091 on unknown.invalid cannot be reached from here" in messages[0]["line"]


def test_a_role_tries_the_ports_that_it_is_asked_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        places = [["127.0.0.1", there.getsockname()[1]], ["unknown.invalid", 1]]
        asked = wire.encode({"reach": places})
        _, messages = run_role(order("sleep", "60"), down=asked, hang_up_after="blocked")
    assert {"blocked": ["unknown.invalid:1"]} in messages


def test_a_role_does_not_pass_on_the_environment_it_was_started_in() -> None:
    code, messages = run_role(order("/bin/sh", "-c", "env"))
    names = {message["line"].partition("=")[0] for message in messages if "line" in message}
    ours = {"CLUSTER_JOB_ID", "CLUSTER_HOST", "CLUSTER_OUTPUT_DIR"}
    assert code == 0
    assert names <= {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "TMPDIR", "X", "PWD", *ours}
    assert names >= ours


def test_the_limit_of_open_files() -> None:
    _, messages = run_role(order("/bin/sh", "-c", "ulimit -Sn; ulimit -Hn"))
    soft, hard = (message["line"] for message in messages if "line" in message)
    assert soft == hard or int(soft) == environment.MOST_OPEN_FILES
    _, messages = run_role(order("/bin/sh", "-c", "ulimit -Sn", open_files=99))
    assert {"line": "99"} in messages
    _, messages = run_role(order("/bin/sh", "-c", "ulimit -Sn", open_files=10**9))
    if hard != "unlimited":
        assert {"line": f"open_files = 1000000000: this host allows no more than {hard}"} in messages


def made_environment(**more: Any) -> dict[str, str]:
    launched = {"DMLC_ROLE": "worker", "DMLC_NODE_HOST": "127.0.0.1"}
    made: dict[str, str] = environment.make(
        convert(order("true", **{"launched": launched, "address": "127.0.0.1", **more}), RoleOrder)
    )
    return made


def test_ps_lite_is_told_of_the_interface_unless_the_user_has_another() -> None:
    env = made_environment()
    assert (env["DMLC_NODE_HOST"], env["DMLC_INTERFACE"], env["PS_VERBOSE"]) == ("127.0.0.1", "lo", "1")
    env = made_environment(env={"DMLC_INTERFACE": "eth7", "PS_VERBOSE": "0"})
    assert ("DMLC_NODE_HOST" in env, env["DMLC_INTERFACE"], env["PS_VERBOSE"]) == (False, "eth7", "0")
    assert "PS_VERBOSE" not in made_environment(launched={"DMLC_ROLE": "scheduler"}, role="scheduler")
    assert "PS_VERBOSE" not in made_environment(launched={})
    assert made_environment(p3=True)["DMLC_PS_VAN_TYPE"] == "p3"
    assert made_environment(p3=True, env={"DMLC_PS_VAN_TYPE": "zmq"})["DMLC_PS_VAN_TYPE"] == "zmq"


def test_folders_of_output_are_kept_for_the_newest_jobs_alone(home: Path) -> None:
    jobs = home / ".cluster" / "jobs"
    for number in range(job_folder.KEPT + 3):
        (jobs / f"old-{number}" / "output").mkdir(parents=True)
        os.utime(jobs / f"old-{number}", (number, number))
    (jobs / "old-0" / "record.json").write_text("{}")  # the head's own
    job_folder.make_output_dir("new")
    names = {path.name for path in jobs.iterdir()}
    assert {"new", "old-0", f"old-{job_folder.KEPT + 2}"} <= names
    assert len(names) == job_folder.KEPT + 1


def test_jobs_that_start_at_the_same_moment_get_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    base = 10000 + os.getpid() % 500 * 20  # of this process alone: in others jobs run, too
    monkeypatch.setattr(launch, "FIRST_PORT", base)
    monkeypatch.setattr(launch, "END_PORT", base + 20)
    with socket.socket() as other:
        first, claim = launch.claim_port()
        other.bind(("", first + 1))
        second, second_claim = launch.claim_port()
        with claim, second_claim:
            assert second > first + 1
    again, claim = launch.claim_port()
    claim.close()
    assert again == first


def test_a_lock_is_one_processes_and_looking_does_not_take_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not is_held(path)
    with FileLock(path) as ours, FileLock(path) as theirs:
        assert ours.take_now()
        assert is_held(path)
        assert not theirs.take_now()
        ours.release()
        assert not is_held(path)
        assert theirs.take(timeout_s=0.1)


def test_a_log_is_whole_lines_whatever_happens_to_the_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".cluster" / "jobs" / "j").mkdir(parents=True)
    writer = job_log.Log("j")
    writer.reserve()
    writer.open_file(0, "worker-0")
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
    assert job_log.mend("j") == result
    with (folder / "events").open("ab") as stream:
        stream.write(b'{"t": 1, "li')
    assert job_log.mend("j") == result


def test_no_secret_is_in_a_record(home: Path) -> None:
    env = {
        "A_TOKEN": "x1",
        "DB_PASSWORD": "x2",
        "AWS_SECRET_ACCESS_KEY": "x3",
        "credential_file": "x4",
        "API_KEY": "x5",
    }
    env |= {"KEY_COLOUR": "red", "PATH": "/bin"}
    own = {"MY_TOKEN": "x6", "DB_PASS": "x8"}
    job = make_order(job="j", env=env, env_worker=own, secrets={"S": "x7"}, results_url="s3://b/r")
    record = job_folder.new_record(job, 1.0)
    assert "x" not in "".join(value for value in record.env.values() if value not in {"red", "/bin"})
    assert record.env["KEY_COLOUR"] == "red"
    assert "x7" not in json.dumps(to_builtins(record))
    assert record.output_url == "s3://b/r/j/"


def test_a_value_that_was_not_typed_is_in_no_record(home: Path) -> None:
    """`--env NAME` is how secrets are given: what they are called does not matter."""
    order = make_order(
        env={"LABEL": "x1", "TYPED": "seen"},
        env_server={"LABEL": "x2"},
        env_worker={"LABEL": "also seen"},
        hidden={"env": ("LABEL",), "env_server": ("LABEL",)},
    )
    assert job_folder.new_record(order, 1.0).env == {
        "LABEL": "***",
        "TYPED": "seen",
        "LABEL (servers)": "***",
        "LABEL (workers)": "also seen",
    }


SECRET_NAMES = """
DB_PASS PASS pass_of_db MYSQL_PWD SMTP_PW PASSPHRASE SSH_PASSPHRASE RSYNC_PASSWORD PGPASSWORD MYPASSWD SSHPASS
APIKEY myApiKey API_KEY API_KEYS API_KEY_PROD KEY PGP_PRIVATE_KEY_PEM PRIVATEKEY AWS_ACCESS_KEY_ID AZURE_ACCESSKEY
AUTH BASIC_AUTH AUTH_HEADER OAUTH2_CLIENT REDISCLI_AUTH HTTP_AUTHORIZATION BEARER BEARER_2 GITHUB_TOKEN TOKENS
client_secret GOOGLE_APPLICATION_CREDENTIALS DB_CREDS SESSION_JWT GH_PAT SESSION_COOKIE SLACK_WEBHOOK_URL
"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_a_name_that_is_a_secrets(name: str) -> None:
    assert job_folder.mask(name, "hush") == "***"


PLAIN_NAMES = """
KEYBOARD AUTHOR GIT_AUTHOR_NAME AUTHORITY MONKEY MONKEY_2 KEY_COLOUR HOTKEY TURKEY_PATH COMPASS COMPASS_DIR PASSES
N_PASSES BYPASS PASSENGERS PWD OLDPWD PATH PATTERN OMP_NUM_THREADS TOKENIZERS_PARALLELISM BEARERS CREDO NPW
CLUSTER_OUTPUT_URL S3_REGION DMLC_PS_ROOT_PORT PAM_USER
"""


@pytest.mark.parametrize("name", PLAIN_NAMES.split())
def test_a_name_that_is_no_secrets(name: str) -> None:
    assert job_folder.mask(name, "red") == "red"


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
def test_the_password_of_a_url_is_not_told(value: str, told: str) -> None:
    assert job_folder.mask("DATABASE", value) == told


WITHOUT_PASSWORD = """
s3://bucket/a@b https://h:8080/a@b https://h:8080?a=x@y ssh://git@github.com/me/mine.git git@github.com:me/mine.git
postgres://u@h/db postgres://u:@h/db http://[::1]:80/ /a/b:c@d me@x.org kafka://a:1,b:2 https://s3.eu.example/
"""


@pytest.mark.parametrize("value", WITHOUT_PASSWORD.split())
def test_what_has_no_password_is_told(value: str) -> None:
    assert job_folder.mask("PLACE", value) == value


HOSTS = tuple(JobHost(name=f"node-{i}", ip=f"10.0.0.{4 + i}", instance_id=f"i-{i}") for i in range(3))


def make_processes(**more: Any) -> Processes:
    fields = {"hosts": HOSTS, "hostfile": ("10.0.0.4", "10.0.0.5"), "workers": 2, "servers": 1}
    return Processes(make_order(**{**fields, **more}))


@pytest.mark.parametrize(
    ("more", "missing"),
    [
        ({}, ["scheduler on node-0", "server on node-0", "worker on node-0", "worker on node-1"]),
        ({"workers": 3}, ["scheduler on node-0", "server on node-0", "worker on node-0", "2 workers on node-1"]),
        ({"hostfile": ("10.0.0.6:2222",)}, ["scheduler on node-0", "server on node-2", "2 workers on node-2"]),
        ({"launcher": "local"}, ["scheduler on node-0", "server on node-0", "2 workers on node-0"]),
        ({"launcher": "mpi"}, ["scheduler on node-0", "server on node-0", "worker on node-0", "worker on node-1"]),
        ({"servers": 0, "workers": 1, "hostfile": ()}, ["worker on node-0"]),
    ],
)
def test_it_is_known_where_launch_py_starts_what(more: dict[str, Any], missing: list[str]) -> None:
    assert make_processes(**more).missing() == missing


def test_blocked_ports_are_told_by_what_listens_there() -> None:
    known = make_processes()
    server, worker = known.add("server", "10.0.0.4"), known.add("worker", "10.0.0.5")
    server.bound, worker.bound = ("10.0.0.4", 40000), ("10.0.0.5", 50000)
    worker.blocked = ("10.0.0.4:40000",)
    assert known.describe_blocked() == "node-1 cannot reach port 40000 of the server on node-0"


@pytest.mark.parametrize(
    ("seconds", "words"), [(3600, "1 h"), (5400, "90 min"), (172800, "2 d"), (90, "90 s"), (0.5, "0.5 s")]
)
def test_durations(seconds: float, words: str) -> None:
    assert outcome.render_s(seconds) == words


def test_an_event_loop_calls_back_for_lines_ends_and_timers(tmp_path: Path) -> None:
    heard: list[object] = []
    center = event_loop.EventLoop(
        str(tmp_path / "s"), lambda _, line: heard.append(line), lambda connection: heard.append(connection.owner)
    )
    with socket.socket(socket.AF_UNIX) as plug:
        plug.connect(str(tmp_path / "s"))
        plug.sendall(b"one\ntwo")
        center.after("timer", 0.05, lambda: heard.append("timer"))
        while "timer" not in heard:
            center.step()
    while None not in heard:
        center.step()
    assert heard == [b"one", "timer", None]


def test_launch_pys_environment_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    job = make_order(
        python="/e/bin/python", hosts=HOSTS, launcher="mpi", workers=2, servers=1, secrets={"S": "hush"}, env={"A": "b"}
    )
    env = launching.environment(job, "/tools")
    assert "hush" not in json.dumps(env)
    assert env["PATH"].split(":")[:2] == ["/tools", "/e/bin"]
    launch_of_mpi = ENGINES["mpi"].plan_launch(job, HostFiles(hostfile="/hosts", mpi_ssh="/tools/mpi-ssh"), ["role"])
    assert launch_of_mpi.env["OMPI_MCA_plm_rsh_agent"] == "/tools/mpi-ssh"
    assert launch_of_mpi.arguments[-1] == "role"
