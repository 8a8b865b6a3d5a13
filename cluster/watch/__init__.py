"""`cluster watch`: a job on the whole terminal, by textual. Importing this package does not import textual."""
