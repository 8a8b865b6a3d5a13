"""What the steps of a plan share while they are carried out."""

from dataclasses import dataclass, field, replace

from provision.aws import Clients
from provision.describe import Instances, describe_instances, find_security_groups
from provision.files import ClusterFiles
from provision.membership import find_membership
from provision.model import LaunchOption, SecurityGroup
from provision.progress import Report


@dataclass(kw_only=True, slots=True)
class Context:
    """One `apply`.

    cluster and owner go into the tags. What this run did: made_group_id is the security group that it made, launched
    the ids of the instances that it launched, option where, and without the indices of the nodes that it did without
    because there was no capacity.
    """

    cluster: str
    owner: str
    clients: Clients
    files: ClusterFiles
    report: Report
    made_group_id: str | None = field(default=None, init=False)
    launched: set[str] = field(default_factory=set, init=False)
    option: LaunchOption | None = field(default=None, init=False)
    without: set[int] = field(default_factory=set, init=False)
    _groups: tuple[SecurityGroup, ...] | None = field(default=None, init=False)

    def group_id(self, known: str | None) -> str:
        """The security group's id: the one the plan knew, or the one made since."""
        group_id = known or self.made_group_id
        if group_id is None:
            raise ValueError("the plan uses a security group before it makes it")
        return group_id

    def describe_instances(self) -> Instances:
        """The cluster's instances as they are now: one read, and another one the first time. Raises AwsError.

        The key pair is not looked at again: the plan has refused one that is not the cluster's.
        """
        ec2 = self.clients.ec2
        if self._groups is None:
            self._groups = find_security_groups(ec2, name=self.cluster)
        membership = find_membership(
            name=self.cluster, key_pair=None, groups=self._groups, known=self.files.known_instances()
        )
        if self.made_group_id is not None:
            membership = replace(membership, group_ids=membership.group_ids | {self.made_group_id})
        return describe_instances(ec2, membership=membership)
