"""The checks before anything is created: images, types and places, the quotas, the permissions, the prices."""
