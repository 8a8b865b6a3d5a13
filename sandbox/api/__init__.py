"""EC2, S3 and their kin: moto, extended. What stands here counts before moto is imported."""

import functools
import os

import botocore.loaders
import botocore.session

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # moto reads it when it is imported; ours are in images.py
# moto makes three sessions when it is imported, each of which would read the list of all endpoints: 0.35 of the 1.2 s
# that the start of a sandbox takes.
botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
