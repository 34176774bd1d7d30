import torch


def load(path, rank, scaler, model):
    state = torch.load(path, map_location={"cuda:0": f"cuda:{rank}"})
    other = torch.load(path, map_location=lambda storage, place: storage.cuda(rank))
    model.load_state_dict(state["model"])
    scaler.load_state_dict(state["scaler"] if "scaler" in state else other["scaler"])
    return torch.load(path, map_location="cuda:%d" % rank)
