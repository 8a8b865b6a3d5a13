"""`cluster train`: what reaches a job's command, and what is told and left of it at its end."""

import re
import signal

import pytest

from job_steps import END_S, ONE_WORKER, gone
from project import Project, processes_of

pytestmark = pytest.mark.sandbox


def test_ctrl_c_comes_through_a_flood_of_output(two_nodes: Project) -> None:
    with two_nodes.running("train", *ONE_WORKER, "--", "yes") as process:
        assert process.stdout is not None
        for _ in range(1000):
            assert process.stdout.readline() == "[worker 0 node-0] y\n", two_nodes.messages.read_text()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=END_S)
    said = two_nodes.messages.read_text()
    assert process.returncode == 130
    (job,) = re.findall(r"^job (\S+) runs on", said, re.MULTILINE)
    two_nodes.run("stop", job)
    gone(job)


def test_a_local_kv_store_is_one_worker_on_the_head_and_nothing_else(two_nodes: Project) -> None:
    program = (
        "import os, sys, mxnet as mx\n"
        "print(mx.kv.create(os.environ['CLUSTER_KV_STORE']).num_workers, 'DMLC_ROLE' in os.environ)\n"
        "sys.exit(5)"
    )
    done = two_nodes.run("train", *ONE_WORKER, "--", "python", "-c", program, code=5)
    assert done.stdout == "[worker 0 node-0] 1 False\n"
    assert "1 worker, 0 servers" in done.stderr


def test_the_command_lines_environment_goes_over_the_files(two_nodes: Project) -> None:
    configured = (two_nodes.directory / "cluster.toml").read_text()
    other = two_nodes.directory / "other.toml"
    other.write_text(configured.replace("[train]", '[train]\nenv = { A = "file", B = "file" }'))
    words = (*ONE_WORKER, "--env", "A=line", "--", "sh", "-c", "echo $A $B")
    assert two_nodes.run("-c", "other.toml", "train", *words).stdout == "[worker 0 node-0] line file\n"


def test_a_command_that_does_not_exist_is_named(two_nodes: Project) -> None:
    done = two_nodes.run("train", "--", "no-such-program", code=127)
    assert "cannot start 'no-such-program'" in done.stdout


def test_what_a_process_leaves_behind_is_ended(two_nodes: Project) -> None:
    """A child in a session of its own, with the pipe still open, is not waited for and does not survive."""
    program = (
        "import os, subprocess, sys; "
        "subprocess.Popen(['sleep', '600'], start_new_session=True) if os.environ['DMLC_ROLE'] == 'worker' else None; "
        "import mxnet as mx; kv = mx.kv.create('dist_sync'); print('done', kv.rank)"
    )
    done = two_nodes.run("train", "--", "python", "-c", program)
    assert len(re.findall(r"^\[worker \d node-\d\] done", done.stdout, re.MULTILINE)) == 2
    (job,) = set(re.findall(r"job ([0-9a-f-]+): done", done.stderr))
    assert not processes_of("CLUSTER_JOB_ID", job)


def test_words_reach_the_command_as_they_are(two_nodes: Project) -> None:
    words = ["it's", 'a "quote"', "$(reboot)", "`id`", "a\nb", "", "*", "--kv-store", "ünïcode"]
    program = (
        "import os, sys\n"
        "if os.environ['DMLC_ROLE'] == 'worker': print(ascii(sys.argv[1:]))\n"
        "import mxnet as mx\n"
        "mx.kv.create('dist_sync')"
    )
    done = two_nodes.run("train", "--", "python", "-c", program, *words)
    shown = re.findall(r"^\[worker \S node-\d\] (.*)$", done.stdout, re.MULTILINE)
    assert shown.count(f"{words!a}") == 2


def test_a_command_in_one_word_is_a_line_for_the_shell_as_it_is_for_launch_py(two_nodes: Project) -> None:
    program = """'import os, sys; print(os.environ["ONE"], sys.argv[1:])'"""
    line = f"""ONE='a b' python -c {program} "it's" $CLUSTER_HOST '*' && exit 4"""
    done = two_nodes.run("train", *ONE_WORKER, line, code=4)
    assert done.stdout == """[worker 0 node-0] a b ["it's", 'node-0', '*']\n"""
    assert re.search(r"^job \S+: .*: python$", done.stderr, re.MULTILINE)
