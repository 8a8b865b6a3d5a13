"""`cluster train`, after its options are parsed: what it means, the submission, and what follows it."""
