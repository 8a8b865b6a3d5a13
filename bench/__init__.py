"""Side-by-side benchmarks: `make bench`, or `python -m bench NAME...`; what they showed last is in RESULTS.md."""
