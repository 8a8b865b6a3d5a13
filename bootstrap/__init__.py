"""Fabric: running nodes in, nodes that can train out."""
