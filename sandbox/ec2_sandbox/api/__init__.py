"""EC2, S3 and other services, based on moto. The lines below must run before moto is imported."""

import functools
import gzip
import json
import os
from pathlib import Path
from typing import Any

import botocore.loaders
import botocore.session
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
# On import, moto creates three sessions, each of which would read the list of all endpoints. The cache saves 0.35 s of
# the 1.2 s that a sandbox needs to start. moto has a loader of its own, because clients change the model of S3.
botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)

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


def _read_offerings_later() -> None:
    """Imports moto's instance types, for which it reads the offers of all regions."""
    load = utils.load_resource
    utils.load_resource = lambda resource: [] if OFFERINGS in resource else load(resource)
    from moto.ec2.models import instance_types  # noqa: PLC0415 -- while its files are not read

    utils.load_resource = load
    known = instance_types.INSTANCE_TYPE_OFFERINGS
    known.update({kind: Offerings(kind) for kind in known})


_read_offerings_later()
