"""The cost of a cluster: the ledger of its instances and volumes, and the bill that follows from it."""
