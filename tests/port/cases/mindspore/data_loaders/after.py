import mindspore as ms
import mpcore_port_runtime as port


class Squares(port.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return ms.Tensor([float(i)]), i * i


loader = port.DataLoader(Squares(), batch_size=4, shuffle=True)
