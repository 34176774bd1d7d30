import os, torch
from torchaudio import datasets, transforms as T

data = datasets.YESNO(os.getcwd())
