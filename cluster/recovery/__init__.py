"""Recovery of jobs that have lost nodes: launches nodes in their place, including a new head."""
