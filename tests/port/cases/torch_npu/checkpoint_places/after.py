import torch
import torch_npu


def load(path, rank, scaler, model):
    state = torch.load(path, map_location={"npu:0": f"npu:{rank}"})
    other = torch.load(path, map_location=lambda storage, place: storage.npu(rank))
    model.load_state_dict(state["model"])
    scaler.load_state_dict({"dynamic": True, **(state["scaler"] if "scaler" in state else other["scaler"])})
    return torch.load(path, map_location="npu:%d" % rank)
