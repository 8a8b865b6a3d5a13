"""Calls of AWS that act inside the hosts."""
