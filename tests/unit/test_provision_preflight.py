"""What `auto` becomes, and what is refused before anything is made."""

import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import trustme
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import amis, ec2_backends
from moto.ssm.models import Parameter, ssm_backends

from provision.aws import Clients, make_clients
from provision.errors import AwsError, ClusterError, ConfigError
from provision.model import ClusterState, LaunchTarget
from provision.preflight import describe_launch_target, find_caller_address
from provision_world import MOTO_IMAGE, NAME, make_config, make_node

REGION = "us-east-1"
UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/{arch}/hvm/ebs-gp2/ami-id"
DLAMI = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"


def image(image_id: str, name: str, owner: str, **more: Any) -> dict[str, Any]:
    return {
        "ami_id": image_id,
        "name": name,
        "owner_id": owner,
        "architecture": "x86_64",
        "public": True,
        "root_device_name": "/dev/sda1",
        "creation_date": "2030-01-01T00:00:00.000Z",
        **more,
    }


JAMMY = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-{arch}-server-{date}"
IMAGES = [
    image(MOTO_IMAGE, "ubuntu", "099720109477"),
    image("ami-00000001", JAMMY.format(arch="amd64", date="20300101"), "099720109477"),
    image(
        "ami-00000002",
        JAMMY.format(arch="amd64", date="20300201"),
        "099720109477",
        creation_date="2030-02-01T00:00:00.000Z",
    ),
    image("ami-00000003", JAMMY.format(arch="amd64", date="20300301"), "666666666666"),  # not Canonical
    image("ami-00000004", JAMMY.format(arch="arm64", date="20300101"), "099720109477", architecture="arm64"),
    image("ami-00000005", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20300101", "898082745236"),
    image("ami-00000006", "unfinished", "099720109477", state="pending"),
]


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clients]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("MOTO_AMIS_PATH", "see the next line")
    monkeypatch.setattr(amis, "AMIS", [dict(entry) for entry in IMAGES])
    monkeypatch.setenv("MOTO_ENABLE_AMI_VALIDATION", "true")
    with mock_aws():
        for backends in (ec2_backends, ssm_backends):
            backends[DEFAULT_ACCOUNT_ID][REGION].reset()  # with these images, and not another test's
        yield make_clients(REGION)


def publish(name: str, value: str) -> None:
    """A public parameter of AWS's: the API lets nobody else write one."""
    backend = ssm_backends[DEFAULT_ACCOUNT_ID][REGION]
    backend._parameters[name].append(
        Parameter(
            account_id=DEFAULT_ACCOUNT_ID,
            name=name,
            value=value,
            parameter_type="String",
            description="",
            allowed_pattern=None,
            keyid=None,
            last_modified_date=datetime(2030, 1, 1, tzinfo=UTC),
            version=1,
            data_type="text",
        )
    )


def target(clients: Clients, state: ClusterState | None = None, **settings: Any) -> LaunchTarget:
    return describe_launch_target(clients, config=make_config(**settings), state=state or ClusterState(name=NAME))


def test_the_target_of_a_cpu_cluster(clients: Clients) -> None:
    publish(UBUNTU.format(arch="amd64"), "ami-00000001")
    [zone_a] = clients.ec2.describe_subnets(SubnetIds=[subnet_in(clients, "us-east-1a")])["Subnets"]

    found = target(clients, ami="auto")

    assert found == LaunchTarget(
        region=REGION,
        account_id=DEFAULT_ACCOUNT_ID,
        owner=f"arn:aws:sts::{DEFAULT_ACCOUNT_ID}:user/moto",
        instance_type="c5.xlarge",
        architecture="x86_64",
        vcpus=4,
        gpus=None,
        image_id="ami-00000001",
        image_name=JAMMY.format(arch="amd64", date="20300101"),
        root_device="/dev/sda1",
        subnet_id=zone_a["SubnetId"],
        vpc_id=zone_a["VpcId"],
        zone="us-east-1a",
        ssh_from="203.0.113.7/32",
        public_address=True,
    )


def test_gpus_get_the_deep_learning_image(clients: Clients) -> None:
    publish(DLAMI, "ami-00000005")

    found = target(clients, ami="auto", instance_type="g4dn.12xlarge")

    assert (found.image_id, found.gpus) == ("ami-00000005", "4x NVIDIA T4")


@pytest.mark.parametrize(
    ("instance_type", "image_id"),
    [("c5.xlarge", "ami-00000002"), ("c6g.xlarge", "ami-00000004"), ("g4dn.xlarge", "ami-00000005")],
)
def test_without_the_parameter_the_publishers_newest_image(clients: Clients, instance_type: str, image_id: str) -> None:
    assert target(clients, ami="auto", instance_type=instance_type).image_id == image_id


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"instance_type": "c5.99xlarge"}, r'\[provision\] instance_type = "c5.99xlarge": us-east-1 has no such'),
        ({"ami": "ami-0123456789abcdef0"}, r'\[provision\] ami = "ami-0123456789abcdef0": .* no such image'),
        ({"ami": "ami-00000004"}, "is for arm64, while c5.xlarge is x86_64"),
        ({"ami": "ami-00000006"}, "is pending, not available"),
        ({"volume_size_gib": 10}, r"\[provision\] volume_size_gib = 10: the image ami-\w+ needs 15 GiB"),
        ({"subnet_id": "subnet-0123456789abcdef0"}, r"\[provision\] subnet_id = .* no such subnet"),
    ],
)
def test_a_setting_that_cannot_be_met_is_named(clients: Clients, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        target(clients, **settings)
    assert caught.value.hint


def test_no_image_at_all(clients: Clients) -> None:
    ec2_backends[DEFAULT_ACCOUNT_ID][REGION].amis.clear()
    with pytest.raises(ConfigError, match=r'ami = "auto": us-east-1 has no Ubuntu 22.04 for x86_64'):
        target(clients, ami="auto")


def test_gpus_of_another_maker(clients: Clients) -> None:
    """moto knows no such type: the answer about a real one is changed to it."""

    def amd(parsed: dict[str, Any], **_: Any) -> None:
        parsed["InstanceTypes"][0]["GpuInfo"]["Gpus"][0]["Manufacturer"] = "AMD"

    clients.ec2.meta.events.register("after-call.ec2.DescribeInstanceTypes", amd)
    with pytest.raises(ConfigError, match="has GPUs of AMD; MXNet has wheels for NVIDIA's alone"):
        target(clients, ami="auto", instance_type="g4dn.xlarge")


def subnet_in(clients: Clients, zone: str) -> str:
    filters: Any = [{"Name": "availability-zone", "Values": [zone]}]
    return str(clients.ec2.describe_subnets(Filters=filters)["Subnets"][0]["SubnetId"])


def test_a_subnet_that_is_asked_for(clients: Clients) -> None:
    """By moto's tables, c5.xlarge is offered in all zones of us-east-1 but e."""
    assert target(clients, subnet_id=subnet_in(clients, "us-east-1f")).zone == "us-east-1f"
    with pytest.raises(ConfigError, match=r"is in us-east-1e, which does not offer c5.xlarge"):
        target(clients, subnet_id=subnet_in(clients, "us-east-1e"))


def test_default_subnets_where_the_type_is_not_offered(clients: Clients) -> None:
    for subnet in clients.ec2.describe_subnets()["Subnets"]:
        if subnet["AvailabilityZone"] != "us-east-1e":
            clients.ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    with pytest.raises(ConfigError, match=r"offered in us-east-1a, .*, us-east-1f only, where no default subnet"):
        target(clients)


def test_nodes_that_are_there_decide_the_subnet(clients: Clients) -> None:
    last = max(clients.ec2.describe_subnets()["Subnets"], key=lambda subnet: subnet["AvailabilityZone"])
    state = ClusterState(name=NAME, nodes=(make_node(0, subnet_id=last["SubnetId"]),))

    assert target(clients, state).zone == last["AvailabilityZone"]


def test_without_a_default_subnet(clients: Clients) -> None:
    for subnet in clients.ec2.describe_subnets()["Subnets"]:
        clients.ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    with pytest.raises(AwsError, match="no default subnet") as caught:
        target(clients)
    assert "create-default-vpc" in str(caught.value.hint)


def test_default_subnets_without_enough_addresses(clients: Clients) -> None:
    subnets = ec2_backends[DEFAULT_ACCOUNT_ID][REGION].subnets
    for zone in ("us-east-1a", "us-east-1b"):
        for subnet in subnets[zone].values():
            subnet._available_ip_addresses = 1
    assert target(clients).zone == "us-east-1c"
    for zone in subnets:
        for subnet in subnets[zone].values():
            subnet._available_ip_addresses = 1
    with pytest.raises(AwsError, match="no default subnet of us-east-1 has 2 free addresses"):
        target(clients)


def test_an_operator_without_ssm_gets_the_image_all_the_same(clients: Clients) -> None:
    def deny(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "GetParameter")

    clients.ssm.meta.events.register("before-call.ssm.GetParameter", deny)
    assert target(clients, ami="auto").image_id == "ami-00000002"


def test_a_private_cluster_gets_no_public_addresses(clients: Clients) -> None:
    found = target(clients, ssh_address="private", ssh_from="10.0.0.0/16")
    assert (found.public_address, found.ssh_from) == (False, "10.0.0.0/16")


# --- the caller's address ----------------------------------------------------------------------------------------


class TlsServer(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that refuses our certificate is no error here."""


@contextmanager
def checkip(answer: bytes, tmp_path: Path, *, trusted: bool = True) -> Iterator[tuple[str, Path]]:
    """A service like checkip.amazonaws.com over TLS: its address, and the authority to trust."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    bundle = tmp_path / "ca.pem"
    (authority if trusted else trustme.CA()).cert_pem.write_to_path(bundle)
    with TlsServer(("127.0.0.1", 0), Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}/", bundle
        finally:
            server.shutdown()
            thread.join()


def ask(monkeypatch: pytest.MonkeyPatch, url: str, bundle: Path | None) -> IPv4Address:
    monkeypatch.setenv("CLUSTER_CHECKIP_URL", url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    if bundle:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    return find_caller_address()


def test_the_callers_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with checkip(b"203.0.113.7\n", tmp_path) as (url, bundle):
        assert ask(monkeypatch, url, bundle) == IPv4Address("203.0.113.7")


def test_auto_opens_ssh_to_the_callers_address_alone(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with checkip(b"198.51.100.9\n", tmp_path) as (url, bundle):
        ask(monkeypatch, url, bundle)
        assert target(clients, ssh_from="auto").ssh_from == "198.51.100.9/32"


@pytest.mark.parametrize("answer", [b"", b"2001:db8::1", b"<html>log in</html>", b"\xff\xfe", b"1.2.3.4 and more"])
def test_an_answer_that_is_no_address(answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        checkip(answer, tmp_path) as (url, bundle),
        pytest.raises(ClusterError, match="did not answer with an IPv4 address"),
    ):
        ask(monkeypatch, url, bundle)


def test_an_unknown_certificate_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        checkip(b"203.0.113.7", tmp_path, trusted=False) as (url, bundle),
        pytest.raises(ClusterError, match="certificate verify failed"),
    ):
        ask(monkeypatch, url, bundle)


@pytest.mark.parametrize(
    ("url", "words"),
    [("http://127.0.0.1:9/", "only https://"), ("https://127.0.0.1:9/", "cannot find the address .* refused")],
)
def test_no_answer(url: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=words) as caught:
        ask(monkeypatch, url, None)
    assert "ssh_from" in str(caught.value.hint)
