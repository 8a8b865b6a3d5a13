"""Calls EC2 with the node's role: finds the cluster's instances, reads their status checks, and ends instances.

Each call is signed as EC2 requires
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html).
Python 3.6 and later, standard library only: it works on a node that was never set up.
"""

import email.utils
import hashlib
import hmac
import http.client
import re
import ssl
import time
import urllib.parse
import xml.etree.ElementTree as ET
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from node.lease import metadata, terms

VERSION = "2016-11-15"
ANSWER_S = 4.0
MAX_BYTES = 16 << 20
_FORM = "application/x-www-form-urlencoded; charset=utf-8"
_SIGNED = "content-type;host;x-amz-date;x-amz-security-token"


class Instance(NamedTuple):
    """Another node that EC2 lists. lease: from its own tag; None without one."""

    instance_id: str
    address: str
    lease: Optional[terms.Lease]
    is_spot: bool


class Ec2(object):
    """Signed calls. Each raises PermissionError if the role does not allow it.

    endpoint: the URL of EC2. ahead_s: how far EC2's clock is ahead of the node's.
    """

    def __init__(self, endpoint: str, role: metadata.Role) -> None:
        self.url = urllib.parse.urlsplit(endpoint)
        self.role = role
        self.ahead_s = 0.0

    def now(self) -> float:
        """Returns EC2's time, in seconds since 1970, according to its last response."""
        return time.time() + self.ahead_s

    def find_others(self, cluster: str) -> List[Instance]:
        """Returns the cluster's other running or pending instances. Raises OSError, ValueError, HTTPException."""
        asked = [("Filter.1.Name", "tag:cluster:name"), ("Filter.1.Value.1", cluster)]
        asked += [("Filter.2.Name", "instance-state-name")] + _number("Filter.2.Value", ["pending", "running"])
        found = []
        for one in self._list("DescribeInstances", asked, "reservationSet/item/instancesSet/item"):
            instance_id, tags = one.findtext("instanceId", ""), one.findall("tagSet/item")
            texts = [tag.findtext("value", "") for tag in tags if tag.findtext("key") == metadata.TAG]
            lease = terms.parse_lease(texts[0]) if texts else None
            if instance_id and instance_id != self.role.own_id:
                is_spot = one.findtext("instanceLifecycle") == "spot"
                found.append(Instance(instance_id, one.findtext("privateIpAddress", ""), lease, is_spot))
        return found

    def find_impaired(self, instance_ids: List[str]) -> Dict[str, float]:
        """Returns the instances that fail EC2's status checks, with the seconds since they began to fail.

        Raises OSError, ValueError, HTTPException.
        """
        found = {}
        asked = _number("InstanceId", instance_ids)
        for one in self._list("DescribeInstanceStatus", asked, "instanceStatusSet/item"):
            if one.findtext("instanceStatus/status") == "impaired":
                since = one.findtext("instanceStatus/details/item/impairedSince", "")
                moment = re.match(r"\d+-\d+-\d+T\d+:\d+:\d+", since)
                at = terms.parse_moment(moment.group() + "Z") if moment else self.now()
                found[one.findtext("instanceId", "")] = max(self.now() - at, 0.0)
        return found

    def terminate(self, instance_ids: List[str]) -> None:
        """Terminates instances. Raises OSError, ValueError, HTTPException."""
        self._call("TerminateInstances", _number("InstanceId", instance_ids))

    def stop(self, instance_ids: List[str]) -> None:
        """Stops instances. Raises OSError, ValueError, HTTPException."""
        self._call("StopInstances", _number("InstanceId", instance_ids))

    def force_to_stop(self, instance_ids: List[str]) -> None:
        """Stops instances without waiting for them to write to their disks.

        Raises OSError, ValueError, HTTPException.
        """
        self._call("StopInstances", _number("InstanceId", instance_ids) + [("Force", "true")])

    def _list(self, action: str, words: List[Tuple[str, str]], path: str) -> List[Any]:
        found: List[Any] = []
        more: List[Tuple[str, str]] = []
        while True:
            answer = self._call(action, words + more)
            found += answer.findall(path)
            token = answer.findtext("nextToken", "")
            if not token:
                return found
            more = [("NextToken", token)]

    def _call(self, action: str, words: List[Tuple[str, str]]) -> Any:
        body = urllib.parse.urlencode([("Action", action), ("Version", VERSION)] + words).encode("ascii")
        path = self.url.path or "/"
        headers = sign(body, host=self.url.netloc, path=path, role=self.role, now=self.now())
        context = ssl.create_default_context() if self.url.scheme == "https" else None
        host, port = self.url.hostname or "", self.url.port
        if context is None:
            connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_S, context=context)
        try:
            connection.request("POST", path, body=body, headers=headers)
            answer = connection.getresponse()
            text = answer.read(MAX_BYTES).decode("utf-8", "replace")
        finally:
            connection.close()
        told = email.utils.parsedate_tz(answer.getheader("Date", ""))
        if told is not None:
            self.ahead_s = email.utils.mktime_tz(told) - time.time()
        if answer.status != 200:
            found = re.search("<Code>([^<]*)</Code>", text)
            code = found.group(1) if found else str(answer.status)
            kind = PermissionError if code == "UnauthorizedOperation" else OSError
            why = "{}: {}".format(action, code)
            raise kind(why)
        try:
            return ET.fromstring(re.sub(r' xmlns="[^"]*"', "", text, count=1))  # noqa: S314 - EC2's own, over TLS
        except ET.ParseError as error:
            why = "{}: {}".format(action, error)
            raise ValueError(why) from None


def sign(body: bytes, host: str, path: str, role: metadata.Role, now: float) -> Dict[str, str]:
    """Returns the headers of a POST, with its signature (Signature Version 4). Pure."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    headers = {"content-type": _FORM, "host": host, "x-amz-date": moment, "x-amz-security-token": role.token}
    lines = ["{}:{}\n".format(name, headers[name]) for name in _SIGNED.split(";")]
    request = "\n".join(["POST", path, "", "".join(lines), _SIGNED, hashlib.sha256(body).hexdigest()])
    scope = "{}/{}/ec2/aws4_request".format(moment[:8], role.region)
    text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode("utf-8")).hexdigest()])
    key = ("AWS4" + role.secret).encode("utf-8")
    for word in scope.split("/") + [text]:
        key = hmac.new(key, word.encode("utf-8"), hashlib.sha256).digest()
    said = "AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}"
    headers["authorization"] = said.format(role.key_id, scope, _SIGNED, key.hex())
    return headers


def _number(name: str, values: List[str]) -> List[Tuple[str, str]]:
    return [("{}.{}".format(name, number), value) for number, value in enumerate(values, 1)]
