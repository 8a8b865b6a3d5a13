"""For each order (a line of JSON), forks, provisions, and prints `done` or `failed`. Run by SkyPilot's own Python.

The calls are those of SkyPilot's backend, in the same order, with the config of its template for AWS. The only
difference is the login's public key, which is a key pair here, but user data for cloud-init in SkyPilot.
https://github.com/skypilot-org/skypilot/blob/v0.14.1/sky/backends/cloud_vm_ray_backend.py
https://github.com/skypilot-org/skypilot/blob/v0.14.1/sky/templates/aws-ray.yml.j2
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from sky import clouds, global_user_state, provision
from sky.clouds import aws as aws_cloud
from sky.provision import provisioner
from sky.utils import resources_utils, yaml_utils

NAME = resources_utils.ClusterName("bench", "bench-0123")
USER = "ubuntu"


def main() -> None:
    """Serves until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # SkyPilot's output goes to the log
    answers.write("done\n")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            obey(json.loads(line))
        _, status = os.waitpid(child, 0)
        answers.write("done\n" if status == 0 else "failed\n")


def obey(order: dict[str, Any]) -> None:
    """Executes one order, and ends this process."""
    code = 1
    try:
        (bring_up if order["verb"] == "up" else take_down)(order)
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, and the log has the error
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def bring_up(order: dict[str, Any]) -> None:
    """Does what `sky launch` does until ssh answers."""
    cloud, config = clouds.AWS(), make_config(order)
    global_user_state.set_cluster_yaml(NAME.display_name, yaml_utils.dump_yaml_str(config))
    provisioner.bulk_provision(
        cloud,
        clouds.Region(order["region"]),
        [clouds.Zone(order["zone"])],
        NAME,
        num_nodes=order["count"],
        cluster_yaml=f"{NAME.display_name}.yml",
        prev_cluster_ever_up=False,
        log_dir=str(Path.home() / "log"),
    )
    nodes = provision.get_cluster_info(
        repr(cloud), order["region"], NAME.name_on_cloud, provider_config=config["provider"]
    )
    provisioner.wait_for_ssh(nodes, {"ssh_user": USER, "ssh_private_key": order["private_key"]})


def take_down(order: dict[str, Any]) -> None:
    """Does what `sky down` does in the cloud."""
    provider = make_config(order)["provider"]
    provisioner.teardown_cluster(repr(clouds.AWS()), NAME, terminate=True, provider_config=provider)


def make_config(order: dict[str, Any]) -> dict[str, Any]:
    """Returns the cluster's YAML, as the template creates it for a cluster without open ports."""
    tags = [{"Key": "skypilot-user", "Value": "bench"}]
    node = {
        "IamInstanceProfile": {"Name": order["instance_profile"]},
        "InstanceType": order["instance_type"],
        "ImageId": order["image"],
        "KeyName": order["key_name"],
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "VolumeType": "gp3", "Encrypted": True}}
        ],
        "CapacityReservationSpecification": {"CapacityReservationPreference": "open"},
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
        "MetadataOptions": {"HttpTokens": "required"},
    }
    return {
        "cluster_name": NAME.name_on_cloud,
        "provider": {
            "type": "external",
            "module": "sky.provision.aws",
            "region": order["region"],
            "availability_zone": order["zone"],
            "cache_stopped_nodes": True,
            "security_group": {"GroupName": aws_cloud.DEFAULT_SECURITY_GROUP_NAME, "ManagedBySkyPilot": True},
            "use_internal_ips": False,
            "disable_launch_config_check": True,
            "max_efa_interfaces": 0,
            "enforce_tags": [],
        },
        "auth": {"ssh_user": USER, "ssh_private_key": order["private_key"]},
        "head_node_type": "ray.head.default",
        "available_node_types": {"ray.head.default": {"resources": {}, "node_config": node}},
    }


if __name__ == "__main__":
    main()
