"""EC2, S3 and other services, based on moto. The lines below must run before moto is imported."""

import functools
import os

import botocore.loaders
import botocore.session

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # images.py publishes the sandbox's images
# On import, moto creates three sessions, each of which would read the list of all endpoints. The cache saves 0.35 s of
# the 1.2 s that a sandbox needs to start.
botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
