"""What a job asks AWS by way of a process of its own: moto's EC2 and STS behind real HTTP."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from provision.errors import AwsError, ClusterError, ConfigError
from provision.membership import KnownInstances
from provision.model import TAG_NAME
from s3_server import REGION
from train.asking import Asking, Question

SECRET = "longlivedsecret"
TOKEN = "the token of our own launch"


# Not in this process, where other tests have another EC2.
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that has a cluster of two nodes, and two instances with its tag that somebody else launched."""
    words = [sys.executable, "-W", "ignore", "-c", SERVER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        url = server.stdout.readline().strip()
        ec2 = boto3.Session("AKIATEST", SECRET).client("ec2", endpoint_url=url, region_name=REGION)
        tags: Any = [{"Key": TAG_NAME, "Value": "demo"}]
        group = ec2.create_security_group(
            GroupName="cluster-demo",
            Description="its nodes",
            TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
        )
        for token in (TOKEN, "another"):
            ec2.run_instances(
                MinCount=2,
                MaxCount=2,
                ImageId="ami-12345678",
                KeyName="cluster-demo",
                SecurityGroupIds=[group["GroupId"]],
                ClientToken=token,
                TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
            )
        yield url
        server.stdin.close()


def question(**env: str) -> Question:
    """As `cluster train` asks, in an environment of these variables; its home takes no files."""
    own = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": SECRET, "HOME": "/dev/null"}
    known = KnownInstances(tokens=frozenset({TOKEN}))
    return Question(
        cluster="demo",
        known=known,
        region=REGION,
        instance_profile="none",
        url=None,
        policy="{}",
        max_duration_s=None,
        env={**own, **env},
    )


def test_all_is_found_out(url: str) -> None:
    with Asking() as asking:
        asking.ask(question(AWS_ENDPOINT_URL_EC2=url, AWS_ENDPOINT_URL_STS=url))
        state = asking.state()
        assert [(node.name, node.role, node.state) for node in state.nodes] == [
            ("node-0", "head", "running"),
            ("node-1", "worker", "running"),
        ]
        assert {instance.why for instance in state.untrusted} == {"not launched by this machine"}
        access = asking.access()
        assert set(access.secrets) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
        assert SECRET not in access.secrets.values()
        assert access.env["S3_ENDPOINT"] == f"s3.{REGION}.amazonaws.com"
        assert str(asking.survey().owner).startswith("arn:aws:")


def test_an_error_comes_as_it_is_in_its_turn(url: str) -> None:
    with Asking() as asking:
        asking.ask(question(AWS_ENDPOINT_URL=url))
        assert len(asking.state().nodes) == 2
        with pytest.raises(ConfigError, match="MXNet reads from https"):
            asking.access()
        assert asking.survey().owner is not None


def test_a_profile_that_is_not_there_is_told_at_once() -> None:
    with Asking() as asking:
        asking.ask(question(AWS_PROFILE="nobody"))
        with pytest.raises(AwsError, match="nobody") as caught:
            asking.state()
    assert str(caught.value.hint).startswith("set AWS_PROFILE")


def test_one_that_is_killed_is_told() -> None:
    with Asking() as asking:
        os.kill(asking.pid, signal.SIGKILL)
        asking.ask(question())
        with pytest.raises(ClusterError, match="the process that asks AWS ended with code -9"):
            asking.state()


def test_one_that_is_asked_nothing_ends() -> None:
    with Asking() as asking:
        pid = asking.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
