import mindspore as ms
import os
# mpcore port: refused: from torchaudio import datasets, transforms as T: its tensors are torch's: load data as numpy arrays, write models as Cells
from mpcore_port_runtime.refusal import refused as _refused
datasets = _refused("from torchaudio import datasets, transforms as T: its tensors are torch's: load data as numpy arrays, write models as Cells")
T = _refused("from torchaudio import datasets, transforms as T: its tensors are torch's: load data as numpy arrays, write models as Cells")

data = datasets.YESNO(os.getcwd())
