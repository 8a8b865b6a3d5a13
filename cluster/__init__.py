"""The command line: parses arguments, calls the other packages and prints their results."""
