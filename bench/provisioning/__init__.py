"""The parts of `python -m bench provision`: a sandbox whose API calls are counted, and the launchers that run on it."""
