"""Who is asking, and from where."""

import os
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from ipaddress import AddressValueError, IPv4Address

from provision.aws import Clients, aws_errors
from provision.config import ProvisionConfig
from provision.errors import ClusterError
from provision.model import Caller

CHECKIP_URL = "https://checkip.amazonaws.com"
_CHECKIP_TIMEOUT_S = 10


def describe_caller(clients: Clients, config: ProvisionConfig) -> Caller:
    """The account and the identity of the credentials, and the network that may reach the nodes by ssh.

    Raises AwsError, or ClusterError when ssh_from is "auto" and this machine's address cannot be found.
    """
    with aws_errors("asking who we are"):
        identity = clients.sts.get_caller_identity()
    return Caller(
        region=clients.region,
        account_id=identity["Account"],
        owner=identity["Arn"],
        ssh_from=f"{find_caller_address()}/32" if config.ssh_from == "auto" else config.ssh_from,
    )


def find_caller_address() -> IPv4Address:
    """The address that this machine is seen with on the Internet, as checkip.amazonaws.com tells it.

    CLUSTER_CHECKIP_URL names another service of the kind, AWS_CA_BUNDLE further authorities to trust.
    Raises ClusterError when it cannot be had.
    """
    url = os.environ.get("CLUSTER_CHECKIP_URL") or CHECKIP_URL
    hint = 'say it yourself in cluster.toml: [provision] ssh_from = "ADDRESS/32"'
    if not url.startswith("https://"):
        raise ClusterError(f"CLUSTER_CHECKIP_URL is {url}: only https:// can be believed", hint=hint)
    try:
        context = ssl.create_default_context()
        if bundle := os.environ.get("AWS_CA_BUNDLE"):
            context.load_verify_locations(bundle)
        with urllib.request.urlopen(url, timeout=_CHECKIP_TIMEOUT_S, context=context) as reply:  # noqa: S310 - https
            text = reply.read(64).decode("ascii", errors="replace").strip()
        return IPv4Address(text)
    except AddressValueError as error:
        raise ClusterError(f"{url} did not answer with an IPv4 address but with {text!r}", hint=hint) from error
    except (OSError, HTTPException) as error:  # URLError, SSLError and timeouts are OSErrors
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ClusterError(f"cannot find the address of this machine: {url}: {reason}", hint=hint) from error
