"""EC2, S3 and other services, based on moto. The lines below must run before moto is imported."""

import functools
import gc
import gzip
import json
import os
from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.session
from moto.core import base_backend
from moto.utilities import utils

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # images.py publishes the sandbox's images


class Models(botocore.loaders.JSONFileLoader):
    """Reads botocore's models without their documentation, which takes two thirds of the memory."""

    def load_file(self, file_path: str) -> Any:
        """Returns a model, or None if there is no such file. file_path: without the suffix."""
        plain, packed = Path(f"{file_path}.json"), Path(f"{file_path}.json.gz")
        if not plain.exists() and not packed.exists():
            return None
        data = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
        return json.loads(data, object_hook=_drop_documentation)


def _drop_documentation(found: dict[str, Any]) -> dict[str, Any]:
    if isinstance(found.get("documentation"), str):
        found["documentation"] = ""  # botocore looks for some of them
    return found


botocore.loaders.Loader.FILE_LOADER_CLASS = Models
OFFERINGS = "ec2/resources/instance_type_offerings"


class Offerings(dict[str, Any]):
    """The types that AWS offers in each region, read when a region is first used: all regions take 46 MB and 0.5 s.

    kind: of location, as in DescribeInstanceTypeOfferings.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __missing__(self, region: str) -> list[dict[str, str]]:
        try:
            offers: list[dict[str, str]] = utils.load_resource(f"{OFFERINGS}/{self._kind}/{region}.json")
        except FileNotFoundError:
            raise KeyError(region) from None
        self[region] = found = [{**offer, "LocationType": self._kind} for offer in offers]
        return found

    def get(self, region: str, default: Any = None) -> Any:
        """Returns the offers of a region."""
        try:
            return self[region]
        except KeyError:
            return default


def _import_ec2() -> None:
    """Imports moto's EC2 without the offers of all regions, and frees the rest of what moto reads for it.

    moto creates three sessions, which read the list of all endpoints and EC2's model, for the names of the regions.
    With one loader for all three, and without the model, a sandbox starts 0.5 s earlier.
    """
    session = botocore.session
    load, create_loader, get_data = utils.load_resource, session.create_loader, session.Session.get_service_data
    utils.load_resource = lambda resource: [] if OFFERINGS in resource else _load_shared(resource)
    session.create_loader = functools.cache(create_loader)
    session.Session.get_service_data = lambda *_: {"metadata": {}}  # type: ignore[method-assign]
    from moto.ec2.models import availability_zones_and_regions, instance_types  # noqa: PLC0415 -- with these functions

    utils.load_resource, session.create_loader = load, create_loader
    session.Session.get_service_data = get_data  # type: ignore[method-assign]
    known = instance_types.INSTANCE_TYPE_OFFERINGS
    known.update({kind: Offerings(kind) for kind in known})
    # Every service is in all regions of EC2: otherwise, moto would read the endpoints and each service's model again.
    names = [region.name for region in availability_zones_and_regions.RegionsAndZonesBackend.regions]
    base_backend.AccountSpecificBackend._generate_regions = lambda *_: names  # type: ignore[assignment,method-assign]  # noqa: SLF001 -- moto has no setting
    gc.collect()  # 5 MB, for the modules that are imported next


def _load_shared(resource: str) -> Any:
    """Reads a file of moto's. Equal values in it are one: instance types have much in common, which saves 7 MB."""
    known: dict[str, Any] = {}

    def share(found: dict[str, Any]) -> Any:
        shared = {
            name: value if isinstance(value, dict) else known.setdefault(repr(value), value)
            for name, value in found.items()
        }
        return known.setdefault(repr(shared), shared)

    return json.loads(gzip.decompress(utils.load_resource_as_bytes(f"{resource}.gz")), object_hook=share)


_import_ec2()
