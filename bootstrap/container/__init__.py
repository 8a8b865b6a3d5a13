"""Containers: the image that jobs run in, and the preparation of the nodes before a job."""
