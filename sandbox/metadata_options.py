"""ModifyInstanceMetadataOptions, where moto's answer would be wrong."""

from moto.ec2.models import EC2Backend
from moto.ec2.models.instances import MetadataOptions


class MetadataOptionsOfInstances(EC2Backend):
    """Part of the sandbox's EC2: what a call does not name stays as it is; moto forgets it."""

    def modify_instance_metadata_options(  # noqa: PLR0917 -- moto's signature
        self,
        instance_id: str,
        http_tokens: str | None = None,
        hop_limit: int | None = None,
        http_endpoint: str | None = None,
        dry_run: bool | None = False,  # noqa: FBT001, FBT002 -- moto's signature
        http_protocol: str | None = None,
        metadata_tags: str | None = None,
    ) -> MetadataOptions:
        """As moto's."""
        now = self.get_instance(instance_id).metadata_options
        return super().modify_instance_metadata_options(
            instance_id,
            http_tokens=http_tokens or now.http_tokens,
            hop_limit=hop_limit or now.http_put_response_hop_limit,
            http_endpoint=http_endpoint or now.http_endpoint,
            dry_run=dry_run,
            http_protocol=http_protocol or now.http_protocol_ipv6,
            metadata_tags=metadata_tags or now.instance_metadata_tags,
        )
