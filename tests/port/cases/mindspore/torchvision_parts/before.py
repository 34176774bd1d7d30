import torch
import torchvision
import torchvision.transforms as T
from torch.utils.data import DataLoader
from torchvision import datasets, models
from torchvision.transforms import InterpolationMode, v2

train = T.Compose(
    [
        T.Resize(256, interpolation=InterpolationMode.BICUBIC),
        T.RandomCrop(32, padding=4),
        T.RandomHorizontalFlip(),
        T.ToTensor(),
        T.Normalize((0.5,), (0.25,)),
    ]
)
data = datasets.MNIST("data", train=True, download=True, transform=train)
more = torchvision.datasets.ImageFolder("pictures", transform=T.ToTensor())
loader = DataLoader(data, 64, True, None, None, 4, drop_last=True)
net = models.resnet50(weights=None)
grid = torchvision.utils.make_grid(torch.zeros(4, 3, 8, 8))
jitter = v2.ScaleJitter(0.1)
