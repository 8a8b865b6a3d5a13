"""What every package uses: errors, progress, settings, files and locks, threads, waiting. Imports no other package."""
