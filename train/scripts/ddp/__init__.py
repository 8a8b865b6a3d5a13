"""Training with PyTorch's DistributedDataParallel. Runs on the nodes: Python >= 3.9, torch 1.13 or 2.x."""
