"""What the steps of a plan share while they are carried out."""

from dataclasses import dataclass, field

from provision.aws import Clients
from provision.files import ClusterFiles
from provision.model import LaunchOption
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

    def group_id(self, known: str | None) -> str:
        """The security group's id: the one the plan knew, or the one made since."""
        group_id = known or self.made_group_id
        if group_id is None:
            raise ValueError("the plan uses a security group before it makes it")
        return group_id
