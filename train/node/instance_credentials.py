"""The credentials that EC2 gives this host for the role of its instance profile.

They are read from the instance metadata service, IMDSv2: a token first, by PUT, then the role's name, then its keys
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html). It answers one hop
away only: the host itself, but no container on it.
Python 3.6 and later, standard library only.
"""

import calendar
import http.client
import json
import time

ADDRESS = "169.254.169.254"
ROLES = "/latest/meta-data/iam/security-credentials/"
TIMEOUT_S = 2.0
PATIENCE_S = 6.0  # for an instance that has just started; less than the user's machine waits for a word
PAUSE_S = 0.5
TOLD_BELOW_S = 6 * 3600  # what AWS gives at most


class CredentialsError(OSError):
    """There are no credentials here; says why, and what to do."""


class Refused(Exception):
    """The metadata service answered, and not with what was asked for."""

    def __init__(self, status, reason):
        super(Refused, self).__init__("%d %s" % (status, reason))
        self.status = status


def take(job, address=ADDRESS):
    """Put the instance's credentials among the job's secrets, if it is to use them; returns lines for the user.

    Raises CredentialsError.
    """
    if not job["nodes_credentials"]:
        return []
    found = wait_for(address)
    job["secrets"] = {
        "AWS_ACCESS_KEY_ID": found["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": found["SecretAccessKey"],
        "AWS_SESSION_TOKEN": found["Token"],
    }
    if job.get("env", {}).get("CLUSTER_DATA_MODE") == "stage":
        return []  # stage.py renews them
    return render_expiry(found["Expiration"], time.time())


def wait_for(address):
    """The credentials as IMDS has them, a dict. Raises CredentialsError when there are none after PATIENCE_S."""
    give_up_at = time.time() + PATIENCE_S
    while True:
        try:
            return read(address)
        except CredentialsError:
            if time.time() > give_up_at:
                raise
        time.sleep(PAUSE_S)


def read(address):
    """Ask once. Raises CredentialsError."""
    try:
        token = _ask(address, "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        header = {"X-aws-ec2-metadata-token": token}
        role = _ask(address, "GET", ROLES, header).split()[0]
        found = json.loads(_ask(address, "GET", ROLES + role, header))
    except Refused as refusal:
        if refusal.status == 404:
            raise CredentialsError(
                "this instance has no credentials: it was launched without the instance profile that cluster.toml asks "
                'for; cluster down, then cluster up; or set [provision] instance_profile = "none"'
            ) from None
        raise CredentialsError("the instance metadata service refuses to give credentials: %s" % refusal) from None
    except (OSError, ValueError, IndexError, http.client.HTTPException) as error:
        raise CredentialsError("the instance metadata service gives no credentials: %s" % error) from None
    if found.get("Code") != "Success":
        raise CredentialsError(
            "AWS gives this instance no credentials for the role %s: %s %s"
            % (role, found.get("Code"), found.get("Message", ""))
        )
    return found


def render_expiry(expiration, now):
    """What a user has to know of credentials that end at `expiration` (ISO 8601, UTC): a list of no line or one.

    now: seconds since the epoch.
    """
    left_s = calendar.timegm(time.strptime(expiration, "%Y-%m-%dT%H:%M:%SZ")) - now
    if left_s >= TOLD_BELOW_S:
        return []
    return [
        "the job's AWS credentials end in %d h %d min, at %s: MXNet's s3:// reader cannot renew them"
        % (left_s // 3600, left_s % 3600 // 60, expiration)
    ]


def _ask(address, method, path, headers):
    """The text at a path of the metadata service, asked without any proxy. Raises Refused, OSError, HTTPException."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise Refused(answer.status, answer.reason)
    return body.decode("utf-8")
