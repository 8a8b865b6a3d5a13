"""A job that has lost nodes: new nodes in their place, and another head."""
