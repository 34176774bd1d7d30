import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor([float(i)]), i * i


loader = DataLoader(Squares(), batch_size=4, shuffle=True, num_workers=4, pin_memory=True)
