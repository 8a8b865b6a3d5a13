"""What every package uses: errors, progress, settings, files and locks, threads, waits. Only imports mxnet_cluster."""
