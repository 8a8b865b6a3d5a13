"""The command line: parses, calls the other packages, prints."""
