"""boto3: a cluster.toml and an AWS account in, running nodes out, and back to nothing."""
