"""Fabric: turns running nodes into nodes that can train."""
