"""The kinds of a cluster's resources, in the order in which `up` creates them; `down` deletes them in reverse.

To add a kind: write a module with a ResourceKind (see resource.py), and add a line here.
"""

from typing import Any

from provision.resources.instance_profile import INSTANCE_PROFILE
from provision.resources.instances import INSTANCES
from provision.resources.key_pair import KEY_PAIR
from provision.resources.orphans import NETWORK_INTERFACES, VOLUMES
from provision.resources.placement_group import PLACEMENT_GROUP
from provision.resources.resource import ResourceKind
from provision.resources.security_group import SECURITY_GROUP
from provision.resources.shared_volume import SHARED_VOLUME

HEAD_KINDS: tuple[ResourceKind[Any], ...] = (INSTANCES,)
"""The kinds that the head itself creates, to replace lost nodes."""

KINDS: tuple[ResourceKind[Any], ...] = (
    KEY_PAIR,
    SECURITY_GROUP,
    NETWORK_INTERFACES,
    PLACEMENT_GROUP,
    INSTANCE_PROFILE,
    SHARED_VOLUME,
    VOLUMES,
    INSTANCES,
)
"""What costs money is last: `down` deletes it first, in case that a later call is refused."""
