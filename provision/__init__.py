"""Provisioning with boto3: turns a cluster.toml and an AWS account into running nodes, and deletes them again."""
