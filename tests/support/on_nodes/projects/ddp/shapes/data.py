import os

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class Images(Dataset):
    """The images below a folder; the name of each one's folder is its class."""

    def __init__(self, folder):
        self.classes = sorted(os.listdir(folder))
        self.items = [
            (os.path.join(folder, name, file), label)
            for label, name in enumerate(self.classes)
            for file in sorted(os.listdir(os.path.join(folder, name)))
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, label = self.items[index]
        return torch.from_numpy(np.array(Image.open(path), dtype="float32"))[None] / 255, label
