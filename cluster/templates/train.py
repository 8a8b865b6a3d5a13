"""Trains a small network with PyTorch's DistributedDataParallel. Replace the data and the network with your own.

torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; `cluster train` starts it on every node.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_data(count=8192):
    """Return points in a square, and whether each is inside a circle."""
    points = torch.rand(count, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return TensorDataset(points, (points.norm(dim=1) < 0.8).long())


def save(path, state):
    """Write a checkpoint atomically: after a killed job, the previous checkpoint remains."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    torch.save(state, path + ".partial")
    os.replace(path + ".partial", path)


def main():
    parser = argparse.ArgumentParser(description="Tell points inside a circle from those outside.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--checkpoint", default="~/checkpoint.pt", help="on the node of rank 0")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint, if there is one")
    options = parser.parse_args()

    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if has_gpu else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    checkpoint = os.path.expanduser(options.checkpoint)
    done = torch.zeros(1, dtype=torch.long, device=device)  # epochs
    if options.resume and rank == 0 and os.path.exists(checkpoint):
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(state["network"])
        done += state["epochs"]
    dist.broadcast(done, src=0)
    model = DistributedDataParallel(network)  # sends rank 0's weights to all ranks
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)

    data = make_data()
    sampler = DistributedSampler(data)  # each rank trains on its part of the data
    loader = DataLoader(data, options.batch_size, sampler=sampler)
    for epoch in range(int(done), options.epochs):
        began = time.time()
        sampler.set_epoch(epoch)
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients of all ranks
            optimizer.step()
        # `cluster train` shows the epoch, speed and loss from lines in this format.
        cost = time.time() - began
        print(f"Epoch[{epoch}] Speed: {len(sampler) / cost:.2f} samples/sec loss={loss.item():.4f}", flush=True)
        print(f"Epoch[{epoch}] Time cost={cost:.3f}", flush=True)
        if rank == 0:
            save(checkpoint, {"network": network.state_dict(), "epochs": epoch + 1})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
