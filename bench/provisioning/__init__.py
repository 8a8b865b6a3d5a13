"""What `python -m bench provision` measures with: a sandbox that is observed, and the launchers that run on it."""
