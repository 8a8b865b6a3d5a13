"""Side-by-side benchmarks: `make bench`, or `python -m bench NAME...`. RESULTS.md has the latest results."""
