"""EC2, S3 and other services: moto, extended. Everything here has to happen before moto is imported."""

import functools
import os

import botocore.loaders
import botocore.session

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # ours are in images.py
# On import moto makes three sessions, each of which would read the list of all endpoints: 0.35 of the 1.2 s in which a
# sandbox starts.
botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
