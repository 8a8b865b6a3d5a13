"""Containers: the image that jobs run in, and what is done on the nodes before a job."""
