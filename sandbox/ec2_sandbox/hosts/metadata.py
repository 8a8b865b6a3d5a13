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
from http import HTTPStatus
from typing import Any, NamedTuple
from wsgiref.types import StartResponse, WSGIEnvironment

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.sts.models import sts_backends
from werkzeug.wrappers import Request, Response

from ec2_sandbox.api import ec2
from ec2_sandbox.api.instances import SandboxInstance
from ec2_sandbox.api.server import Server
from ec2_sandbox.hosts.fleet import read_user_data
from ec2_sandbox.hosts.network import METADATA_ADDRESS

META = "meta-data"
INSTANCE_TAGS = f"{META}/tags/instance"
CREDENTIALS_S = 6 * 3600
RENEW_S = 15 * 60  # how long before they expire credentials are renewed
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
        self._known: dict[tuple[str, str], tuple[dt.datetime, str]] = {}

    def read(self, instance: SandboxInstance, role_arn: str) -> str:
        """Returns IMDS's document with the credentials, which is the same until their renewal."""
        now = dt.datetime.now(dt.UTC)
        ends, document = self._known.get((instance.id, role_arn), (now, ""))
        if (ends - now).total_seconds() > RENEW_S:
            return document
        ends = now + dt.timedelta(seconds=CREDENTIALS_S)
        role = sts_backends[DEFAULT_ACCOUNT_ID]["aws"].assume_role(
            region_name=str(instance.region_name), role_session_name=instance.id, role_arn=role_arn, policy="",
            duration=CREDENTIALS_S, external_id="",
        )  # fmt: skip
        content = {
            "Code": "Success", "LastUpdated": render_time(now), "Type": "AWS-HMAC", "AccessKeyId": role.access_key_id,
            "SecretAccessKey": role.secret_access_key, "Token": role.session_token, "Expiration": render_time(ends),
        }  # fmt: skip
        document = json.dumps(content, indent=2)
        self._known[instance.id, role_arn] = (ends, document)
        return document


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


class HttpResponse(NamedTuple):
    """A response. `hops`: the IP time to live of its packets."""

    status: HTTPStatus
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    hops: int = USUAL_HOPS


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
    """Answers requests. Thread-safe."""

    def __init__(self, regions: ec2.Regions) -> None:
        self._regions = regions
        self._tokens = Tokens()
        self._credentials = RoleCredentials()

    def answer(self, peer: str, method: str, path: str, headers: Any) -> HttpResponse:
        """Returns the response to a request from the host with the address `peer`."""
        with ec2.lock:
            instance = self._find(peer)
            if instance is None:
                return HttpResponse(HTTPStatus.NOT_FOUND)
            options = instance.metadata_options
            if options.http_endpoint == "disabled":
                return HttpResponse(HTTPStatus.FORBIDDEN)
            if method == "PUT":
                return self._issue_token(instance, path, headers)
            if method not in ("GET", "HEAD"):
                return HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED)
            if not self._is_admitted(instance, headers.get(TOKEN_HEADER)):
                return HttpResponse(HTTPStatus.UNAUTHORIZED)
            return self._look_up(instance, path)

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

    def _issue_token(self, instance: SandboxInstance, path: str, headers: Any) -> HttpResponse:
        if path != TOKEN_PATH:
            return HttpResponse(HTTPStatus.METHOD_NOT_ALLOWED)
        if "X-Forwarded-For" in headers:  # from an open proxy in the host
            return HttpResponse(HTTPStatus.FORBIDDEN)
        ttl = headers.get(TTL_HEADER, "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= MAX_TTL_S:
            return HttpResponse(HTTPStatus.BAD_REQUEST)
        token = self._tokens.issue(instance.id, int(ttl)).encode()
        hops = instance.metadata_options.http_put_response_hop_limit
        return HttpResponse(HTTPStatus.OK, token, ((TTL_HEADER, ttl),), hops=hops)

    def _look_up(self, instance: SandboxInstance, path: str) -> HttpResponse:
        version, _, below = path.strip("/").partition("/")
        if not version:
            return HttpResponse(HTTPStatus.OK, b"latest")
        if version != "latest" and not version[:4].isdecimal():
            return HttpResponse(HTTPStatus.NOT_FOUND)
        below = below.strip("/")
        if below == "user-data":
            user_data = read_user_data(instance)
            return HttpResponse(HTTPStatus.OK if user_data else HTTPStatus.NOT_FOUND, user_data)
        if not below:
            return HttpResponse(HTTPStatus.OK, "\n".join(ROOTS).encode())
        tree = read_tree(instance, self._credentials)
        text = tree[below] if below in tree else list_folder(tree, below, instance.key_name)
        return HttpResponse(HTTPStatus.NOT_FOUND) if text is None else HttpResponse(HTTPStatus.OK, text.encode())


class MetadataServer(Server):
    """IMDS's server. Create it in the router's namespace."""

    def __init__(self, service: MetadataService) -> None:
        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            request = Request(environ)
            answer = service.answer(environ["REMOTE_ADDR"], request.method, request.path, request.headers)
            environ["werkzeug.socket"].setsockopt(socket.IPPROTO_IP, socket.IP_TTL, answer.hops)
            return Response(answer.body, answer.status, dict(answer.headers), "text/plain")(environ, start_response)

        super().__init__(METADATA_ADDRESS, METADATA_PORT, app)
        self._server_version = "EC2ws"

    def start(self) -> None:
        """Serves in a separate thread."""
        threading.Thread(target=self.serve_forever, name="metadata", daemon=True).start()
