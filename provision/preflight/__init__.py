"""What is found out before anything is made: from what and where, the limits, the permissions, the price."""
