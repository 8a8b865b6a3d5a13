"""Used by every package: errors, progress, settings, files and locks, threads, waits. Imports only mxnet_cluster."""
