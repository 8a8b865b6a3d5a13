"""A training job on ready nodes, and its data in S3."""
