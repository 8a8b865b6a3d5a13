"""`cluster init`, `iam-policy` and `config`: cluster.toml, before the first `cluster up`."""
