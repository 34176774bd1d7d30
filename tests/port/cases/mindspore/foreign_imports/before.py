import os, torch
from torchvision import datasets, transforms as T

data = datasets.MNIST(os.getcwd())
