"""SkyPilot's provisioner, Ray, parsl and libcloud, as installed from PyPI."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from other_tools import Tool, environment_of, install, own_address
from sandbox_steps import LIVE_STATES, REGION, RunningSandbox, enter, find_image, find_live, sandbox_in

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

WITH_LIBCLOUD = """
import os, sys
from urllib.parse import urlsplit
import libcloud.security
from libcloud.compute.providers import get_driver
from libcloud.compute.types import Provider

libcloud.security.CA_CERTS_PATH = os.environ["AWS_CA_BUNDLE"]
endpoint = urlsplit(os.environ["AWS_ENDPOINT_URL"])
keys = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
driver = get_driver(Provider.EC2)(*keys, region=os.environ["AWS_REGION"], host=endpoint.hostname, port=endpoint.port,
                                  signature_version="4")
[image] = driver.list_images(ex_image_ids=sys.argv[1:])
size = next(size for size in driver.list_sizes() if size.id == "t3.micro")
driver.create_key_pair("libcloud")
node = driver.create_node(name="made", image=image, size=size, ex_keyname="libcloud")
[(node, addresses)] = driver.wait_until_running([node], wait_period=0.2)
print([node.name for node in driver.list_nodes() if node.state == "running"], addresses == node.public_ips)
print(driver.reboot_node(node), driver.destroy_node(node))
"""

RAY_CONFIG = """
cluster_name: by-ray
max_workers: 1
provider: {{type: aws, region: {region}, cache_stopped_nodes: false}}
auth: {{ssh_user: ubuntu}}
available_node_types:
  head:
    resources: {{CPU: 1}}
    node_config: &node {{InstanceType: m5.large, ImageId: {image}}}
  worker:
    min_workers: 1
    max_workers: 1
    resources: {{CPU: 1}}
    node_config: *node
head_node_type: head
setup_commands: []
head_setup_commands: []
head_start_ray_commands:
  - {programs}/ray stop
  - >-
    AWS_ENDPOINT_URL={endpoint} AWS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt PATH={programs}:$PATH
    ray start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml --include-dashboard=false
worker_start_ray_commands:
  - {programs}/ray stop
  - {programs}/ray start --address=$RAY_HEAD_IP:6379
"""
# Each actor occupies one of the two processors that the nodes have together, so there must be two nodes.
ON_TWO_NODES = """
import json, socket, ray
ray.init(address="auto", log_to_driver=False)
@ray.remote(num_cpus=1)
class Actor:
    def name(self):
        return socket.gethostname()
actors = [Actor.remote() for _ in range(2)]
print("names:", json.dumps(ray.get([actor.name.remote() for actor in actors], timeout=120)))
"""

# What `sky launch` does before it logs in: its own catalogue of instance types is on the Internet.
WITH_SKYPILOT = """
import json, sys
from sky.provision import common
from sky.provision.aws import config, instance
from sky.utils import status_lib

region, image = sys.argv[1:]
provider = {"region": region, "availability_zone": region + "a", "use_internal_ips": False,
            "security_group": {"GroupName": "by-sky"}}
node = {"InstanceType": "m5.large", "ImageId": image,
        "CapacityReservationSpecification": {"CapacityReservationPreference": "open"}}
wanted = common.ProvisionConfig(
    provider_config=provider, authentication_config={}, docker_config={}, node_config=node, count=2, tags={},
    resume_stopped_nodes=True, ports_to_open_on_launch=None)
wanted = config.bootstrap_instances(region, "by-sky", wanted)
made = instance.run_instances(region, "by-sky", "by-sky", wanted)
instance.wait_instances(region, "by-sky", status_lib.ClusterStatus.UP)
addresses = instance.get_cluster_info(region, "by-sky", provider).ip_tuples()
instance.open_ports("by-sky", ["8080"], provider)
instance.stop_instances("by-sky", provider)
instance.wait_instances(region, "by-sky", status_lib.ClusterStatus.STOPPED)
stopped = instance.query_instances("by-sky", "by-sky", provider)
instance.terminate_instances("by-sky", provider)
left = instance.query_instances("by-sky", "by-sky", provider)
print("found:", json.dumps([len(made.created_instance_ids), len(addresses), len(stopped), len(left)]))
"""

# What the instance would download is in a folder that the hosts also see.
WITH_PARSL = """
import os, socket, sys
import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import AWSProvider

image, key, own_address, programs = sys.argv[1:]
provider = AWSProvider(image, key, region=os.environ["AWS_REGION"], instance_type="m5.large", max_blocks=1,
                       worker_init=f"export PATH={programs}:$PATH")
# Encryption needs a file system that the instance shares.
executor = HighThroughputExecutor(address=own_address, max_workers_per_node=1, provider=provider, encrypted=False)

@parsl.python_app
def name():
    import socket
    return socket.gethostname()

with parsl.load(Config(executors=[executor])):
    print("elsewhere:", name().result(timeout=600) != socket.gethostname())
    blocks = [*provider.resources]
    print("at work:", [status.state.name for status in provider.status(blocks)])
print("cancelled:", [status.state.name for status in provider.status(blocks)])
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def tool(sandbox: RunningSandbox, programs: Path, name: str, home: Path) -> Tool:
    """A program of a virtual environment, in the environment of docs/sandbox.md."""
    env = environment_of(sandbox.project_dir, home=home, programs=programs)
    return Tool(program=str(programs / name), env=env, directory=home)


def test_libcloud(sandbox: RunningSandbox, home: Path, tmp_path: Path) -> None:
    python = tool(sandbox, install(tmp_path / "venv", "apache-libcloud"), "python", home)
    output = python.run("-c", WITH_LIBCLOUD, find_image())
    assert output.splitlines() == ["['made'] True", "True True"]


@pytest.fixture
def seen_by_hosts() -> Iterator[Path]:
    """A folder of the machine that hosts also see."""
    made = Path(tempfile.mkdtemp(prefix="cluster-test-", dir="/opt"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_ray_up_with_a_worker(sandbox: RunningSandbox, home: Path, seen_by_hosts: Path) -> None:
    """The head launches the worker, with the rights of the role that Ray creates."""
    programs = install(seen_by_hosts / "venv", "ray[default]", "boto3", python="/usr/bin/python3")
    ray = tool(sandbox, programs, "ray", home)
    text = RAY_CONFIG.format(region=REGION, image=find_image(), programs=programs, endpoint=sandbox.info.endpoint_url)
    (home / "ray.yaml").write_text(text)
    (home / "on_two_nodes.py").write_text(ON_TWO_NODES)
    ray.run("up", "--yes", "ray.yaml", timeout_s=600)
    try:
        ray.run("rsync-up", "ray.yaml", "on_two_nodes.py", "on_two_nodes.py")
        messages = ray.run("exec", "ray.yaml", f"{programs}/python on_two_nodes.py", timeout_s=300)
        (names,) = [line for line in messages.splitlines() if line.startswith("names: ")]
        assert len({*json.loads(names.removeprefix("names: "))}) == 2
    finally:
        ray.run("down", "--yes", "ray.yaml", timeout_s=300)
    assert not find_live(boto3.client("ec2"))


@pytest.mark.timeout(900)
def test_parsl_runs_an_app_on_a_block(
    home: Path, seen_by_hosts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsl makes a VPC of its own, and a block joins the executor by user data.

    It starts none if the account has other instances, even terminated ones.
    """
    programs = install(seen_by_hosts / "venv", "parsl==2026.10.26", "boto3", python="/usr/bin/python3")
    with sandbox_in(tmp_path) as sandbox:
        enter(sandbox, monkeypatch)
        python = tool(sandbox, programs, "python", home)
        boto3.client("ec2").create_key_pair(KeyName="parsl")
        words = (find_image(), "parsl", own_address(python.env), str(programs))
        output = python.run("-c", WITH_PARSL, *words, timeout_s=700)
        assert output.splitlines()[-3:] == ["elsewhere: True", "at work: ['RUNNING']", "cancelled: ['COMPLETED']"]
        assert not find_live(boto3.client("ec2"), LIVE_STATES)


def test_skypilots_provisioner(sandbox: RunningSandbox, home: Path, tmp_path: Path) -> None:
    python = tool(sandbox, install(tmp_path / "venv", "skypilot[aws]"), "python", home)
    before = find_live(boto3.client("ec2"))
    output = python.run("-c", WITH_SKYPILOT, REGION, find_image(), timeout_s=300)
    assert output.splitlines()[-1] == "found: [2, 2, 2, 0]", output
    assert find_live(boto3.client("ec2")) == before
