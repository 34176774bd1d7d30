import torch

dtypes = {"cuda": torch.float16, "cpu": torch.bfloat16}
config = {"cuda": True, "seed": 1}
device = "cuda" if config["cuda"] else "cpu"
dtype = dtypes[device] if device == "cuda" else dtypes["cpu"]
print(config.get("cuda"), dtypes.get("cuda"), f"on cuda {device}", "cuda is fast")
