"""The networks, as MXNet symbols; `networks.names` knows them without MXNet. Runs on the nodes."""
