"""EC2, S3 and other services: moto, extended. The lines below have to run before moto is imported."""

import functools
import os

import botocore.loaders
import botocore.session

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # images.py has the sandbox's
# On import moto makes three sessions, each of which would read the list of all endpoints. Saves 0.35 of the 1.2 s in
# which a sandbox starts.
botocore.session.create_loader = functools.cache(botocore.loaders.create_loader)
