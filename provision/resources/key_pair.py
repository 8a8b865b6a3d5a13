"""The key pair: only this machine has the private key; EC2 has the public half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foundation.errors import ClusterError
from provision.aws.clients import aws_errors, not_ours
from provision.model import TAG_NAME, ClusterState, KeyPair, resource_name
from provision.plan import Context, Step, World
from provision.resources.resource import ResourceKind, create_once, find_tag, tag_new

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import KeyPairInfoTypeDef

KIND = "key pair"


def find_key_pair(ec2: EC2Client, *, name: str) -> KeyPair | None:
    """Returns the key pair with the cluster's name; None if it does not exist. Raises AwsError.

    Uses a filter instead of KeyNames: for a missing key pair, EC2 returns an empty list, not an error.
    """
    with aws_errors(f"looking for the key pair of cluster {name}"):
        found = ec2.describe_key_pairs(
            Filters=[{"Name": "key-name", "Values": [resource_name(name)]}],
            IncludePublicKey=True,
        )["KeyPairs"]
    return read_key_pair(found[0], name=name) if found else None


def read_key_pair(key: KeyPairInfoTypeDef, *, name: str) -> KeyPair:
    """Reads a key pair from EC2's description: its key without comment and line end. name: of the cluster. Pure."""
    return KeyPair(
        key_name=key["KeyName"],
        public_key=" ".join(key.get("PublicKey", "").split()[:2]) or None,
        ours=find_tag(key.get("Tags", []), TAG_NAME) == name,
    )


def plan_key_pair(world: World) -> tuple[Step, ...]:
    """Plans to make EC2's key pair match this machine's private key. Raises ClusterError.

    in EC2       here         nodes   steps
    none         none         none    make, import
    none         present      any     import
    ours         the same     any     -
    ours         none         none    delete, make, import
    ours         another      none    delete, import
    any          none         some    error: this machine could not reach the nodes
    ours         another      some    error: the same
    not ours     any          any     error

    Untrusted instances with a key pair of this name count as nodes: someone who has their private key may use them, so
    the key pair must not be replaced.
    """
    key, state, local_key = world.state.key_pair, world.state, world.local_key
    key_name = world.resource_name
    if key is not None and not key.ours:
        raise not_ours(f"key pair {key_name}", name=world.request.name)
    using = (*state.nodes, *(instance for instance in state.untrusted if instance.key_name == key_name))
    if using and (local_key is None or (key is not None and key.public_key != local_key)):
        raise missing_key(world.request.name, local_key)
    if key is not None and key.public_key == local_key:
        return ()
    deletion = KEY_PAIR.plan_deletion(key.key_name) if key is not None else ()
    return (*deletion, ImportKeyPair(key_name=key_name, is_made=local_key is None))


def missing_key(name: str, local_key: str | None) -> ClusterError:
    """Returns the error for a cluster whose private key this machine lacks. local_key: this machine's key, if any."""
    what = "is not on this machine" if local_key is None else "is not the one on this machine"
    return ClusterError(
        f"the private key of cluster {name} {what}; without it this machine cannot reach the nodes",
        hint="restore the key, or use the machine that made the cluster; if it is somebody else's, set another name in "
        "cluster.toml: cluster down would delete their cluster",
    )


def _plan_down(state: ClusterState) -> tuple[Step, ...]:
    key = state.key_pair
    return KEY_PAIR.plan_deletion(key.key_name) if key is not None and key.ours else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportKeyPair(Step):
    """Import the public half of the private key. is_made: create the private key first, on this machine."""

    makes = KIND
    key_name: str
    is_made: bool = False

    def describe(self) -> str:
        if self.is_made:
            return f"make key pair {self.key_name} (ed25519; the private key stays on this machine)"
        return f"import key pair {self.key_name} from this machine's private key"

    def apply(self, context: Context) -> bool:
        """Creates the private key if it is missing, and imports its public half. Returns False if EC2 had it."""
        public_key = context.files.make_key()
        ec2 = context.clients.ec2

        def create() -> None:
            ec2.import_key_pair(
                KeyName=self.key_name,
                PublicKeyMaterial=public_key.encode(),
                TagSpecifications=tag_new(context, "key-pair"),
            )

        existing = create_once(
            create,
            lambda: find_key_pair(ec2, name=context.cluster),
            taken="InvalidKeyPair.Duplicate",
            what=f"key pair {self.key_name}",
            name=context.cluster,
        )
        if existing is not None and existing.public_key != public_key:  # another machine has imported it since the plan
            raise missing_key(context.cluster, public_key)
        return existing is None


KEY_PAIR: ResourceKind[KeyPair | None] = ResourceKind(
    kind=KIND,
    listing="describe_key_pairs",
    ids=lambda page: (key["KeyName"] for key in page["KeyPairs"]),
    deletion="delete-key-pair --key-name",  # EC2 also reports success for one that does not exist
    plan_up=plan_key_pair,
    plan_down=_plan_down,
    actions=("ImportKeyPair",),
)
