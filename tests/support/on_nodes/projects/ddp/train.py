"""An own project as people have them: a package, a YAML file, images, TensorBoard, checkpoints."""

import argparse
import os

import torch
import torch.distributed as dist
import yaml
from shapes.data import Images
from shapes.model import Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config.yaml")
    with open(parser.parse_args().config) as file:
        config = yaml.safe_load(file)

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    images = Images(config["data"])
    sampler = DistributedSampler(images)
    loader = DataLoader(images, batch_size=config["batch_size"], sampler=sampler, num_workers=1)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    os.makedirs(config["out"], exist_ok=True)
    writer = SummaryWriter(os.path.join(config["out"], "tensorboard")) if rank == 0 else None
    for epoch in range(config["epochs"]):
        sampler.set_epoch(epoch)
        for pictures, labels in tqdm(loader, desc=f"epoch {epoch}", disable=rank != 0):
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if writer is not None:
            writer.add_scalar("loss", loss.item(), epoch)
            print(f"epoch {epoch}: {len(images)} images, loss {loss.item():.4f}")
            torch.save(model.module.state_dict(), os.path.join(config["out"], f"checkpoint-{epoch}.pt"))
    if writer is not None:
        writer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
