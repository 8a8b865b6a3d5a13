"""What a cluster costs: the ledger of its instances and volumes, and the bill that follows from it."""
