"""Decides which instances are nodes of a cluster. Pure; provision/describe.py reads the input.

The tag cluster:name is only a claim: anyone in the account who may run tagged instances can make it. A node receives
the code, the job's credentials and the `--env` values, so an instance must meet all three conditions:

    known here    the cluster's key pair    its security group    the instance is
    yes           yes                       yes                   a node
    no            yes                       yes                   untrusted; `cluster adopt` makes it a node
    any           no                        any                   untrusted; `cluster adopt` refuses it
    any           any                       no                    untrusted; `cluster adopt` refuses it

Known here: this machine launched it, adopted it, or has pinned its host key; or the head launched it, which the
signature in its ClientToken proves. The key of these signatures is derived from the cluster's private key. The head
gets it, so a launch is proven even if the head ends before it can report it.
"""

import hashlib
import hmac
import secrets
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from foundation.errors import NotFoundError
from provision.model import ClusterState, Instance, KeyPair, UntrustedInstance, resource_name

SIGNED_FOR_S = 900.0
"""A signed token proves an instance that was launched at most so long after its signature. EC2 lists an ended instance
for about an hour, so it still lists the head's own launch when somebody else uses the same token again."""


class KnownInstances(Struct, frozen=True, kw_only=True):
    """The instances of a cluster that this machine knows.

    instance_ids: it launched or adopted them, or pinned their host keys. tokens: ClientTokens of launches that the
    journal has not confirmed. public_key: the public half of its private key; None without a readable key. launch_key:
    signs the tokens of the head's launches; None without a readable key.
    """

    instance_ids: frozenset[str] = frozenset()
    tokens: frozenset[str] = frozenset()
    public_key: str | None = None
    launch_key: bytes | None = None


def find_known(instances: Collection[Instance], known: KnownInstances) -> frozenset[str]:
    """Returns the ids of the instances that this machine launched, adopted or pinned, or that the head launched.

    A token counts only while one RunInstances call launched all instances that carry it. EC2 accepts the same token
    once in each zone (https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html), and anyone who may
    describe instances can read it.
    """
    reservations: dict[str | None, set[str]] = {}
    for one in instances:
        reservations.setdefault(one.client_token, set()).add(one.reservation_id)
    return frozenset(
        one.instance_id
        for one in instances
        if one.instance_id in known.instance_ids
        or (
            (one.client_token in known.tokens or is_signed(one, known.launch_key))
            and len(reservations[one.client_token]) == 1
        )
    )


def derive_launch_key(private_key: bytes) -> bytes:
    """Returns the key that signs the head's ClientTokens, from the cluster's private key. Pure."""
    return hmac.digest(private_key, b"cluster: launches of the head", hashlib.sha256)


def sign_token(launch_key: bytes, *, now: float) -> str:
    """Returns a new ClientToken with the time and a signature, 58 characters; EC2 takes 64. now: as Unix time."""
    signed = f"{int(now):x}.{secrets.token_hex(8)}"
    return f"{signed}.{_sign(signed, launch_key)}"


def is_signed(instance: Instance, launch_key: bytes | None) -> bool:
    """Returns whether an instance was launched with a token of sign_token, at the time in the token. Pure."""
    signed, _, signature = (instance.client_token or "").rpartition(".")
    if not launch_key or not hmac.compare_digest(signature.encode(), _sign(signed, launch_key).encode()):
        return False
    return abs(instance.launched_at.timestamp() - int(signed.partition(".")[0], 16)) <= SIGNED_FOR_S


def find_problems(
    instance: Instance, *, name: str, key_problem: str | None, group_ids: frozenset[str]
) -> tuple[str, ...]:
    """Returns why an instance cannot be a node of the cluster `name`, whoever launched it; empty if it can.

    key_problem: see find_key_problem. group_ids: the cluster's security groups.
    """
    wanted = resource_name(name)
    problems = []
    if instance.key_name != wanted:
        has = "it has no key pair" if instance.key_name is None else f"its key pair is {instance.key_name!r}"
        problems.append(f"{has}, not {wanted!r}")
    elif key_problem is not None:
        problems.append(key_problem)
    if group_ids.isdisjoint(instance.group_ids):
        ours = ", ".join(sorted(group_ids)) or f"{wanted}, which does not exist"
        theirs = ", ".join(instance.group_ids) or "none"
        problems.append(f"its security group is {theirs}, not {ours}")
    return tuple(problems)


def find_tokens(instances: Iterable[Instance]) -> Mapping[str, frozenset[str]]:
    """ClientToken -> the ids of the instances that were launched with it."""
    found: dict[str, set[str]] = {}
    for one in instances:
        if one.client_token is not None:
            found.setdefault(one.client_token, set()).add(one.instance_id)
    return {token: frozenset(ids) for token, ids in found.items()}


def no_nodes(state: ClusterState, *, what: str = "") -> NotFoundError:
    """Returns the error for a cluster without nodes. what: the end of the sentence, such as "to stop"."""
    if state.untrusted:
        return NotFoundError(
            f"cluster {state.name} has no nodes that this machine launched; {describe_untrusted(state.untrusted)}",
            hint="cluster adopt",
        )
    return NotFoundError(f"cluster {state.name} has no nodes{f' {what}' if what else ''}", hint="cluster up")


def describe_untrusted(instances: Collection[UntrustedInstance]) -> str:
    """Returns the end of a sentence about a cluster: how many instances are not trusted, and which."""
    ids = [instance.instance_id for instance in instances]
    listed = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    counted = "1 instance with its tag is" if len(ids) == 1 else f"{len(ids)} instances with its tag are"
    return f"{counted} not trusted: {listed}"


def find_key_problem(key_pair: KeyPair | None, public_key: str | None) -> str | None:
    """Returns why the key pair with the cluster's name is not the cluster's; None if it is, or does not exist."""
    if key_pair is None:
        return None
    if not key_pair.ours:
        return f"the key pair {key_pair.key_name!r} in EC2 does not carry the cluster's tag"
    if public_key is not None and key_pair.public_key not in {None, public_key}:
        return f"the key pair {key_pair.key_name!r} in EC2 is not the one on this machine"
    return None


def _sign(signed: str, launch_key: bytes) -> str:
    return hmac.digest(launch_key, signed.encode(), hashlib.sha256)[:16].hex()
