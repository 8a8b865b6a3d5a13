"""One thin module per command group: parse, call, print."""
