"""A local EC2 and S3: moto behind TLS, and one real Linux host per running instance."""
