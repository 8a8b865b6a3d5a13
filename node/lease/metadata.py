"""This node's properties from EC2: the instance metadata service, by IMDSv2 only.

Python 3.6 and later, standard library only.
"""

import http.client
import json
from typing import Dict, List, NamedTuple, Optional

ADDRESS = "169.254.169.254"
TAG = "cluster:lease"
ANSWER_S = 5.0
_ROLES = "iam/security-credentials/"


class Role(NamedTuple):
    """The node's role in EC2, with its temporary keys. own_id: its instance id."""

    own_id: str
    region: str
    key_id: str
    secret: str
    token: str


def read_tag() -> Optional[str]:
    """Returns the instance's tag with the lease; empty without one, None without a metadata service."""
    found = read(["tags/instance/{}".format(TAG)])
    return None if found is None else found[0] or ""


def read_role() -> Optional[Role]:
    """Returns the node's role; None without one."""
    found = read(["instance-id", "placement/region", _ROLES])
    if found is None or not all(found):
        return None
    own_id, region, roles = [str(one) for one in found]
    said = read([_ROLES + roles.split()[0]])
    try:
        keys: Dict[str, str] = json.loads((said or [None])[0] or "{}")
        return Role(own_id, region, keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"])
    except (ValueError, KeyError, TypeError):
        return None


def read(paths: List[str]) -> Optional[List[Optional[str]]]:
    """Returns the texts at these paths, None for one that does not exist; None without a metadata service."""
    connection = http.client.HTTPConnection(ADDRESS, timeout=ANSWER_S)
    try:
        connection.request("PUT", "/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        answer = connection.getresponse()
        token = answer.read(1024).decode("ascii")
        if answer.status != 200:
            return None
        texts: List[Optional[str]] = []
        for path in paths:
            connection.request("GET", "/latest/meta-data/" + path, headers={"X-aws-ec2-metadata-token": token})
            answer = connection.getresponse()
            text = answer.read(1 << 16).decode("utf-8", "replace")
            texts.append(text if answer.status == 200 else None)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    else:
        return texts
    finally:
        connection.close()
