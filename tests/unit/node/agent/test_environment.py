"""The variables of a job's process, and those of a login that it keeps."""

import json
import subprocess
from pathlib import Path

import pytest

from node.agent import environment
from node.programs import program_words
from node.protocol import Container
from node.setup import setup_env
from node_agent import home, make_agent_order, make_order
from train.job.job_plan import new_job_id

pytestmark = pytest.mark.usefixtures("home")
__all__ = ["home"]


def made_environment(*, authorities: str | None = None, p3: bool = False, **more: object) -> dict[str, str]:
    launched = {"DMLC_ROLE": "worker", "DMLC_NODE_HOST": "127.0.0.1"}
    job = new_job_id()
    shared = make_agent_order(job, train={"launcher": "ssh", "p3": p3}, authorities=authorities)
    order = make_order(job, **{"launched": launched, "address": "127.0.0.1", **more})
    made: dict[str, str] = environment.make(shared, order, "/agent")
    return made


@pytest.mark.parametrize("own", [{}, {"AWS_CA_BUNDLE": "/etc/mine.pem"}])
def test_the_certificates_of_a_private_s3(own: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore reads them from a file; a path of [train] env comes first."""
    monkeypatch.setenv("HOME", str(tmp_path))
    made = made_environment(env=own, authorities="-----BEGIN")
    assert "AWS_CA_BUNDLE" not in made_environment()
    if own:
        assert made["AWS_CA_BUNDLE"] == own["AWS_CA_BUNDLE"]
    else:
        assert Path(made["AWS_CA_BUNDLE"]).read_text() == "-----BEGIN"


LOGIN = {
    "https_proxy": "http://p:3128",
    "NO_PROXY": "corp.example, localhost",
    "LC_TIME": "de_DE.UTF-8",
    "SSL_CERT_FILE": "/etc/corp.pem",
    "LICENSE_SERVER": "27000@corp",
    "OMPI_MCA_x": "1",
}
FILE = '# /etc/environment\nPATH="/usr/bin"\nexport LICENSE_SERVER=27000@corp\nUNUSED=1\n'


def test_variables_of_a_login_in_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job keeps a login's proxies, locale and certificates, and what /etc/environment sets for every login."""
    file = tmp_path / "environment"
    file.write_text(FILE)
    assert LOGIN.keys() - setup_env.of_login(LOGIN, str(file)).keys() == {"OMPI_MCA_x"}
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    on_host = made_environment()
    assert on_host["LC_TIME"] == "de_DE.UTF-8"
    assert on_host["SSL_CERT_FILE"] == "/etc/corp.pem"
    container = Container(engine=("podman",), image="sha256:1", path="/bin", has_environment=False)
    for made in (on_host, made_environment(container=container), exec_environment()):
        assert made["https_proxy"] == "http://p:3128"
        assert made["no_proxy"] == made["NO_PROXY"] == "corp.example,localhost,127.0.0.1,169.254.169.254"


def exec_environment() -> dict[str, str]:
    """The environment of a command of `cluster exec`."""
    words = program_words("exec")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdin.write(b'{"words": ["env"]}\n')
        program.stdin.flush()
        messages = "".join(json.loads(line).get("out", "") for line in program.stdout)
    return dict(line.split("=", 1) for line in messages.splitlines() if "=" in line)


def test_the_variables_for_ps_lite_unless_the_user_sets_them() -> None:
    env = made_environment()
    assert (env["DMLC_NODE_HOST"], env["DMLC_INTERFACE"], env["PS_VERBOSE"]) == ("127.0.0.1", "lo", "1")
    env = made_environment(env={"DMLC_INTERFACE": "eth7", "PS_VERBOSE": "0"})
    assert ("DMLC_NODE_HOST" in env, env["DMLC_INTERFACE"], env["PS_VERBOSE"]) == (False, "eth7", "0")
    assert "PS_VERBOSE" not in made_environment(launched={"DMLC_ROLE": "scheduler"}, role="scheduler")
    assert "PS_VERBOSE" not in made_environment(launched={})
    assert made_environment(p3=True)["DMLC_PS_VAN_TYPE"] == "p3"
    assert made_environment(p3=True, env={"DMLC_PS_VAN_TYPE": "zmq"})["DMLC_PS_VAN_TYPE"] == "zmq"
