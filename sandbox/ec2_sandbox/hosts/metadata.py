"""The instance metadata service (IMDS) at http://169.254.169.254, in both versions.

It listens in the router's namespace, which only hosts can reach. The peer's address identifies the instance, because
the router drops packets with another host's source address. As on EC2, security groups do not apply.

Source: EC2 user guide, "Use the Instance Metadata Service to access instance metadata".
"""

import datetime as dt
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.utils import utcnow
from moto.iam.models import iam_backends
from moto.sts.models import AssumedRole, sts_backends
from werkzeug.wrappers import Request, Response

from ec2_sandbox.api import ec2
from ec2_sandbox.api.instances import SandboxInstance
from ec2_sandbox.api.server import Server
from ec2_sandbox.hosts.fleet import read_user_data
from ec2_sandbox.hosts.network import METADATA_ADDRESS

META = "meta-data"
INSTANCE_TAGS = f"{META}/tags/instance"
CREDENTIALS_S = 6 * 3600
RENEW = dt.timedelta(minutes=15)  # how long before they expire credentials are renewed
PUBLIC_KEYS = f"{META}/public-keys"

Tree = Mapping[str, str]
"""The text at each path below /latest/. Parents of these paths are folders."""

TOKEN_PATH = "/latest/api/token"  # noqa: S105 -- a path
TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 -- a header's name
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
MAX_TTL_S = 21600
METADATA_PORT = 80
USUAL_HOPS = 64
ROOTS = ("dynamic", META, "user-data")


class RoleCredentials:
    """The temporary credentials of each instance's role, which S3 and STS accept. Use it under EC2's lock."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], AssumedRole] = {}

    def read(self, instance: SandboxInstance, role_arn: str) -> str:
        """Returns IMDS's document with the credentials, which is the same until their renewal."""
        role = self._known.get((instance.id, role_arn))
        if role is None or role.expiration - utcnow() < RENEW:
            role = self._known[instance.id, role_arn] = sts_backends[DEFAULT_ACCOUNT_ID]["aws"].assume_role(
                region_name=str(instance.region_name), role_session_name=instance.id, role_arn=role_arn, policy="",
                duration=CREDENTIALS_S, external_id="",
            )  # fmt: skip
        began = role.expiration - dt.timedelta(seconds=CREDENTIALS_S)
        content = {
            "Code": "Success", "LastUpdated": render_time(began), "Type": "AWS-HMAC", "AccessKeyId": role.access_key_id,
            "SecretAccessKey": role.secret_access_key, "Token": role.session_token,
            "Expiration": render_time(role.expiration),
        }  # fmt: skip
        return json.dumps(content, indent=2)


def render_time(time: dt.datetime) -> str:
    """Formats a time as IMDS does: in UTC, to the second. Pure."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def read_tree(instance: SandboxInstance, credentials: RoleCredentials) -> Tree:
    """Returns everything that IMDS has for an instance, except its user data. Call it under EC2's lock."""
    zone = str(instance.availability_zone)
    tree: dict[str, str | None] = {
        f"{META}/ami-id": instance.image_id,
        f"{META}/ami-launch-index": str(instance.ami_launch_index),
        f"{META}/block-device-mapping/ami": instance.root_device_name,
        f"{META}/block-device-mapping/root": instance.root_device_name,
        f"{META}/hostname": instance.private_dns_name,
        f"{META}/instance-id": instance.id,
        f"{META}/instance-life-cycle": instance.lifecycle or "on-demand",
        f"{META}/instance-type": instance.instance_type,
        f"{META}/local-hostname": instance.private_dns_name,
        f"{META}/local-ipv4": str(instance.private_ip),
        f"{META}/mac": mac_of(instance),
        f"{META}/placement/availability-zone": zone,
        f"{META}/placement/group-name": instance.placement.group_name or None,
        f"{META}/placement/region": instance.region_name,
        f"{META}/public-hostname": instance.public_dns_name,
        f"{META}/public-ipv4": instance.public_ip,
        f"{META}/reservation-id": instance.reservation_id,
        f"{META}/security-groups": "\n".join(group.name for group in _groups_of(instance)),
        f"{META}/services/domain": "amazonaws.com",
        f"{META}/services/partition": "aws",
        "dynamic/instance-identity/document": _identity_document(instance),
        **_interfaces(instance),
        **_interruption(instance),
        **_role(instance, credentials),
    }
    if instance.key_name:
        tree[f"{PUBLIC_KEYS}/0/openssh-key"] = f"{instance.public_key.strip()}\n"
    if instance.metadata_options.instance_metadata_tags == "enabled":
        for tag in instance.get_tags():
            tree[f"{INSTANCE_TAGS}/{tag['key']}"] = tag["value"]
    return {path: text for path, text in tree.items() if text is not None}


def list_folder(tree: Tree, folder: str, key_name: str | None) -> str | None:
    """Returns IMDS's response for a folder, which lists its entries, or None for an unknown folder.

    folder: a path without a slash at its end.
    """
    if folder == PUBLIC_KEYS and key_name and any(path.startswith(f"{PUBLIC_KEYS}/") for path in tree):
        return f"0={key_name}"
    prefix = f"{folder}/" if folder else ""
    entries = (path.removeprefix(prefix).partition("/") for path in tree if path.startswith(prefix))
    names = {name + slash for name, slash, _ in entries}
    return "\n".join(sorted(names)) if names else None


def mac_of(instance: SandboxInstance) -> str:
    """Returns the hardware address of eth0."""
    return str(instance.nics[0].mac_address)


def _groups_of(instance: SandboxInstance) -> list[Any]:
    return sorted(instance.nics[0].group_set, key=lambda group: str(group.name))


def _identity_document(instance: SandboxInstance) -> str:
    document = {
        "accountId": instance.owner_id, "architecture": instance.architecture,
        "availabilityZone": instance.availability_zone, "imageId": instance.image_id, "instanceId": instance.id,
        "instanceType": instance.instance_type, "pendingTime": render_time(instance.launch_time),
        "privateIp": str(instance.private_ip), "region": instance.region_name, "version": "2017-09-30",
    }  # fmt: skip
    return json.dumps(document, indent=2)


def _interfaces(instance: SandboxInstance) -> dict[str, str | None]:
    interface = instance.nics[0]
    subnet = interface.subnet
    vpc = instance.ec2_backend.get_vpc(subnet.vpc_id)
    values = {
        "device-number": "0",
        "interface-id": interface.id,
        "local-hostname": instance.private_dns_name,
        "local-ipv4s": str(instance.private_ip),
        "mac": mac_of(instance),
        "owner-id": instance.owner_id,
        "public-hostname": instance.public_dns_name,
        "public-ipv4s": instance.public_ip,
        "security-group-ids": "\n".join(group.id for group in _groups_of(instance)),
        "security-groups": "\n".join(group.name for group in _groups_of(instance)),
        "subnet-id": subnet.id,
        "subnet-ipv4-cidr-block": subnet.cidr_block,
        "vpc-id": subnet.vpc_id,
        "vpc-ipv4-cidr-block": vpc.cidr_block,
        "vpc-ipv4-cidr-blocks": vpc.cidr_block,
    }
    return {f"{META}/network/interfaces/macs/{mac_of(instance)}/{name}": value for name, value in values.items()}


def _interruption(instance: SandboxInstance) -> dict[str, str | None]:
    announced = instance.interruption
    if announced is None:
        return {}
    at = render_time(announced.at)
    return {
        f"{META}/spot/instance-action": json.dumps({"action": "terminate", "time": at}),
        f"{META}/spot/termination-time": at,
        f"{META}/events/recommendations/rebalance": json.dumps({"noticeTime": render_time(announced.noticed)}),
    }


def _role(instance: SandboxInstance, credentials: RoleCredentials) -> dict[str, str | None]:
    if not instance.iam_instance_profile:
        return {}
    arn = instance.iam_instance_profile["Arn"]
    profiles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].instance_profiles.values()
    profile = next((profile for profile in list(profiles) if profile.arn == arn), None)
    if profile is None:
        return {}
    info = {"Code": "Success", "LastUpdated": render_time(dt.datetime.now(dt.UTC)), "InstanceProfileArn": arn,
            "InstanceProfileId": profile.id}  # fmt: skip
    tree: dict[str, str | None] = {f"{META}/iam/info": json.dumps(info, indent=2)}
    for role in profile.roles:
        tree[f"{META}/iam/security-credentials/{role.name}"] = credentials.read(instance, role.arn)
    return tree


class Tokens:
    """IMDSv2's session tokens. Each is valid for one instance."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: dict[tuple[str, str], float] = {}

    def issue(self, instance_id: str, ttl_s: int) -> str:
        """Returns a token that is valid for `ttl_s` seconds. Removes expired tokens."""
        now, token = self._clock(), secrets.token_urlsafe(42)
        self._ends = {known: ends for known, ends in self._ends.items() if ends > now}
        self._ends[instance_id, token] = now + ttl_s
        return token

    def is_good(self, instance_id: str, token: str) -> bool:
        """Returns whether the token was issued to this instance and has not expired."""
        ends = self._ends.get((instance_id, token))
        return ends is not None and self._clock() < ends


class MetadataService:
    """The WSGI application. Thread-safe."""

    def __init__(self, regions: ec2.Regions) -> None:
        self._regions = regions
        self._tokens = Tokens()
        self._credentials = RoleCredentials()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers a request of the host that has the peer's address."""
        request, hops = Request(environ), USUAL_HOPS
        with ec2.lock:
            instance = self._find(environ["REMOTE_ADDR"])
            response = Response(status=404) if instance is None else self._answer(instance, request)
            if instance is not None and TTL_HEADER in response.headers:
                hops = instance.metadata_options.http_put_response_hop_limit
        environ["werkzeug.socket"].setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)
        return response(environ, start_response)

    def _answer(self, instance: SandboxInstance, request: Request) -> Response:
        if instance.metadata_options.http_endpoint == "disabled":
            return Response(status=403)
        if request.method == "PUT":
            return self._issue_token(instance, request)
        if request.method not in ("GET", "HEAD"):
            return Response(status=405)
        if not self._is_admitted(instance, request.headers.get(TOKEN_HEADER)):
            return Response(status=401)
        found = self._look_up(instance, request.path)
        return Response(status=404) if found is None else Response(found)

    def _is_admitted(self, instance: SandboxInstance, token: str | None) -> bool:
        """Returns whether the token is valid (IMDSv2), or without a token, whether the instance allows IMDSv1."""
        if token is None:
            return bool(instance.metadata_options.http_tokens != "required")
        return self._tokens.is_good(instance.id, token)

    def _find(self, peer: str) -> SandboxInstance | None:
        for instance in ec2.list_instances(self._regions):
            if instance.state != "terminated" and str(instance.private_ip) == peer:
                return instance
        return None

    def _issue_token(self, instance: SandboxInstance, request: Request) -> Response:
        if request.path != TOKEN_PATH:
            return Response(status=405)
        if "X-Forwarded-For" in request.headers:  # from an open proxy in the host
            return Response(status=403)
        ttl = request.headers.get(TTL_HEADER, "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= MAX_TTL_S:
            return Response(status=400)
        return Response(self._tokens.issue(instance.id, int(ttl)), headers={TTL_HEADER: ttl})

    def _look_up(self, instance: SandboxInstance, path: str) -> str | bytes | None:
        """Returns the text at a path, or the list of a folder; None if there is neither."""
        version, _, below = path.strip("/").partition("/")
        if not version:
            return "latest"
        if version != "latest" and not version[:4].isdecimal():
            return None
        below = below.strip("/")
        if below == "user-data":
            return read_user_data(instance) or None
        if not below:
            return "\n".join(ROOTS)
        tree = read_tree(instance, self._credentials)
        return tree[below] if below in tree else list_folder(tree, below, instance.key_name)


class MetadataServer(Server):
    """IMDS's server. Create it in the router's namespace."""

    def __init__(self, service: MetadataService) -> None:
        super().__init__(METADATA_ADDRESS, METADATA_PORT, service)
        self._server_version = "EC2ws"

    def start(self) -> None:
        """Serves in a separate thread."""
        threading.Thread(target=self.serve_forever, name="metadata", daemon=True).start()
