"""Makes and deletes baked images (provision/preflight/machines.py), which outlive their cluster.

CreateImage has no token, but a name is unique in the account and region: an interrupted bake is found by its name. The
image and its snapshot get the tags of the user's cluster, and cluster:baked.
"""

from dataclasses import dataclass

from botocore.exceptions import ClientError

from foundation.errors import AwsError
from foundation.waiting import poll
from provision.aws.clients import Clients, aws_errors, error_code
from provision.plan import Context, Step
from provision.preflight.machines import TAG_BAKED, Image, describe_baked
from provision.resources.resource import tag_specification

IMAGE_TIMEOUT_S = 7200.0  # the first snapshot of a large disk takes long


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateImage(Step):
    """Make an image of a stopped instance, and wait for it. instance_id: None to wait only. cluster: whose it is."""

    name: str
    cluster: str
    recipe: str
    instance_id: str | None

    def describe(self) -> str:
        return f"make the image {self.name}"

    def apply(self, context: Context) -> bool:
        """Returns False if the image exists. Raises AwsError if EC2 cannot make it."""
        ec2, owner, more = context.clients.ec2, context.owner, {**context.tags, TAG_BAKED: self.recipe}
        if self.instance_id is not None:
            image = tag_specification("image", name=self.cluster, owner=owner, more=more)
            snapshot = tag_specification("snapshot", name=self.cluster, owner=owner, more=more)
            try:
                ec2.create_image(InstanceId=self.instance_id, Name=self.name, TagSpecifications=[image, snapshot])
            except ClientError as error:
                if error_code(error) != "InvalidAMIName.Duplicate":  # of a call whose answer was lost
                    raise

        def check() -> str | None:
            states = (one.state for one in describe_baked(ec2) if one.name == self.name)
            return next((state for state in states if state != "pending"), None)

        state = poll(check, timeout_s=IMAGE_TIMEOUT_S)
        if state != "available":
            raise AwsError(f"the image {self.name} is {state or 'not ready'}", hint=f"cluster image rm {self.name}")
        return self.instance_id is not None


def delete_image(clients: Clients, image: Image) -> None:
    """Deletes an image with its snapshots, in one call. Raises AwsError, also for a snapshot that EC2 keeps."""
    with aws_errors(f"deleting the image {image.image_id}"):
        done = clients.ec2.deregister_image(ImageId=image.image_id, DeleteAssociatedSnapshots=True)
    for kept in (one for one in done.get("DeleteSnapshotResults", []) if one["ReturnCode"] != "success"):
        raise AwsError(
            f"the image is deleted, but {kept['SnapshotId']} is left, and costs money: {kept['ReturnCode']}",
            hint=f"aws ec2 delete-snapshot --snapshot-id {kept['SnapshotId']} --region {clients.region}",
        )
