import torch
import torch_npu

dtypes = {"npu": torch.float16, "cpu": torch.bfloat16}
config = {"cuda": True, "seed": 1}
device = "npu" if config["cuda"] else "cpu"
dtype = dtypes[device] if device == "npu" else dtypes["cpu"]
print(config.get("cuda"), dtypes.get("npu"), f"on cuda {device}", "cuda is fast")
