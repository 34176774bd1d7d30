"""Data sets of pictures, from the files that torchvision's classes read; nothing is fetched.

Source: torchvision/datasets/folder.py, pytorch/vision 077317588e72, read; the pages of MNIST and
CIFAR for their formats.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor
from PIL import Image

from mpcore_port_runtime.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CIFAR10", "CIFAR100", "KMNIST", "MNIST", "DatasetFolder", "FakeData", "FashionMNIST"]
__all__ += ["ImageFolder", "find_classes", "has_file_allowed_extension", "is_image_file"]
__all__ += ["default_loader", "make_dataset", "make_grid", "pictured", "save_image"]

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def _missing(path: Path, where: str) -> FileNotFoundError:
    return FileNotFoundError(f"{path} is not there, and ports fetch no data: {where}")


class _Pictures(Dataset):
    """Pictures and their labels.

    Attributes:
        data: (N, H, W) or (N, H, W, 3), bytes.
        targets: N labels, from 0.
    """

    data: Any
    targets: list[int]

    def __init__(
        self,
        root: Any,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        """Take torchvision's arguments; ``download`` means nothing."""
        self.root, self.train = Path(root), train
        self.transform, self.target_transform = transform, target_transform
        self.data, self.targets = self._load()

    def _load(self) -> tuple[Any, list[int]]:
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return a picture, transformed, and its label."""
        return _pair(self, Image.fromarray(self.data[index]), self.targets[index])

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.targets)


def _pair(holder: Any, image: Any, label: Any) -> tuple[Any, Any]:
    image = image if holder.transform is None else holder.transform(image)
    return image, label if holder.target_transform is None else holder.target_transform(label)


class _Held:
    """An array of a data set that the script sees as a tensor."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, holder: Any, owner: type | None = None) -> Any:
        held = vars(holder)[self.name]
        if not isinstance(held, Tensor):
            held = vars(holder)[self.name] = Tensor(held)
        return held

    def __set__(self, holder: Any, value: Any) -> None:
        vars(holder)[self.name] = value


class MNIST(_Pictures):
    """Digits: ``ROOT/MNIST/raw/train-images-idx3-ubyte`` and so on, or those with ``.gz``.

    Attributes:
        data: (N, H, W), a tensor of bytes; targets: a tensor of N labels.
    """

    data, targets = _Held(), _Held()  # arrays until they are asked for

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return a picture, transformed, and its label."""
        pictures, labels = (_array(vars(self)[name]) for name in ("_data", "_targets"))
        return _pair(self, Image.fromarray(pictures[index]), int(labels[index]))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(vars(self)["_data"])

    def _load(self) -> tuple[Any, Any]:
        part = "train" if self.train else "t10k"
        images = self._read(f"{part}-images-idx3-ubyte", 16)
        labels = self._read(f"{part}-labels-idx1-ubyte", 8)
        return images.reshape(-1, 28, 28), labels.astype(np.int64)

    def _read(self, name: str, head: int) -> Any:
        path = self.root / type(self).__name__ / "raw" / name
        packed = path.with_name(f"{name}.gz")
        if path.exists():
            content = path.read_bytes()
        elif packed.exists():
            content = gzip.decompress(packed.read_bytes())
        else:
            raise _missing(path, "put the four files of the data set there")
        return np.frombuffer(content, np.uint8, offset=head)


class FashionMNIST(MNIST):
    """Clothes: as MNIST, in ``ROOT/FashionMNIST/raw``."""


class KMNIST(MNIST):
    """Characters: as MNIST, in ``ROOT/KMNIST/raw``."""


class CIFAR10(_Pictures):
    """Things: ``ROOT/cifar-10-batches-bin``, the binary version of the data set."""

    _folder, _labels = "cifar-10-batches-bin", 1
    _train = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
    _test = ("test_batch.bin",)

    def _load(self) -> tuple[Any, list[int]]:
        folder = self.root / self._folder
        rows = [self._read(folder / name) for name in (self._train if self.train else self._test)]
        table = np.concatenate(rows)
        pictures = table[:, self._labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pictures), table[:, self._labels - 1].tolist()

    def _read(self, path: Path) -> Any:
        if not path.exists():
            where = "unpack the binary version there (the python version is pickled, and not read)"
            raise _missing(path, where)
        return np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, self._labels + 3072)


class CIFAR100(CIFAR10):
    """Things of 100 kinds: ``ROOT/cifar-100-binary``; the fine labels."""

    _folder, _labels = "cifar-100-binary", 2
    _train, _test = ("train.bin",), ("test.bin",)


class FakeData(Dataset):
    """Random pictures and labels, the same for each number."""

    def __init__(
        self,
        size: int = 1000,
        image_size: tuple[int, int, int] = (3, 224, 224),
        num_classes: int = 10,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        random_offset: int = 0,
    ) -> None:
        self.size, self.image_size, self.num_classes = size, tuple(image_size), num_classes
        self.transform, self.target_transform = transform, target_transform
        self.random_offset = random_offset

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return a picture, transformed, and its label."""
        if index >= self.size:
            raise IndexError(index)
        draws = np.random.default_rng(index + self.random_offset)
        values = draws.standard_normal(self.image_size, np.float32).transpose(1, 2, 0)
        array = (values * 255).astype(np.int64).astype(np.uint8)
        image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
        return _pair(self, image, int(draws.integers(self.num_classes)))

    def __len__(self) -> int:
        """Return how many there are."""
        return self.size


def has_file_allowed_extension(filename: str, extensions: Any) -> bool:
    """Return whether a file's name ends as it should."""
    ends = extensions if isinstance(extensions, str) else tuple(extensions)
    return filename.lower().endswith(ends)


def is_image_file(filename: str) -> bool:
    """Return whether a file's name is a picture's."""
    return has_file_allowed_extension(filename, IMG_EXTENSIONS)


def find_classes(directory: Any) -> tuple[list[str], dict[str, int]]:
    """Return the folders in a folder, in the order of their names, and their numbers."""
    classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    if not classes:
        msg = f"{directory}: no classes"
        raise FileNotFoundError(msg)
    return classes, {name: number for number, name in enumerate(classes)}


def make_dataset(
    directory: Any,
    class_to_idx: dict[str, int] | None = None,
    extensions: Any = None,
    is_valid_file: Callable[[str], bool] | None = None,
    allow_empty: bool = False,
) -> list[tuple[str, int]]:
    """Return pairs (path, number of its class) of the files in one folder for each class."""
    if class_to_idx is None:
        _, class_to_idx = find_classes(directory)
    if (extensions is None) == (is_valid_file is None):
        msg = "Both extensions and is_valid_file cannot be None or not None at the same time"
        raise ValueError(msg)
    valid = is_valid_file or (lambda path: has_file_allowed_extension(path, extensions))
    home = Path(os.path.expanduser(directory))
    samples = [
        (path, class_to_idx[name])
        for name in sorted(class_to_idx)
        for path in (_files(home / name) if (home / name).is_dir() else ())
        if valid(path)
    ]
    counts = {number for _, number in samples}
    empty = [name for name, number in sorted(class_to_idx.items()) if number not in counts]
    if empty and not allow_empty:
        msg = f"{directory}: no pictures for the classes {', '.join(empty)}"
        raise FileNotFoundError(msg)
    return samples


class DatasetFolder(Dataset):
    """Files in one folder for each class, the classes in the order of their names.

    Attributes:
        classes: names of the folders; class_to_idx: their numbers.
        samples: pairs (path, number); targets: the numbers.
    """

    def __init__(
        self,
        root: Any,
        loader: Callable[[str], Any],
        extensions: Any = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> None:
        self.root, self.transform, self.target_transform = Path(root), transform, target_transform
        self.loader, self.extensions = loader, extensions
        if not self.root.is_dir():
            raise _missing(self.root, "a folder for each class belongs into it")
        self.classes, self.class_to_idx = self.find_classes(self.root)
        words: dict[str, Any] = {"allow_empty": True} if allow_empty else {}
        self.samples = self.make_dataset(
            self.root,
            class_to_idx=self.class_to_idx,
            extensions=extensions,
            is_valid_file=is_valid_file,
            **words,
        )
        self.targets = [number for _, number in self.samples]

    def find_classes(self, directory: Any) -> tuple[list[str], dict[str, int]]:
        """Return names of classes, and their numbers."""
        return find_classes(directory)

    make_dataset = staticmethod(make_dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return what the loader reads, transformed, and the number of its class."""
        path, number = self.samples[index]
        return _pair(self, self.loader(path), number)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.samples)


class ImageFolder(DatasetFolder):
    """Pictures in one folder for each class; ``imgs`` is ``samples``."""

    def __init__(
        self,
        root: Any,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[str], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
    ) -> None:
        ends = IMG_EXTENSIONS if is_valid_file is None else None
        others = (transform, target_transform, is_valid_file, allow_empty)
        super().__init__(root, loader or default_loader, ends, *others)
        self.imgs = self.samples


def pictured(data: Any) -> Any:
    """Return the picture that wandb makes of a tensor, (H, W, C) in bytes; others stay.

    Source: wandb/sdk/data_types/image.py, wandb 0.16: torchvision's grid, normalized, times 255.
    """
    if not isinstance(data, Tensor):
        return data
    grid = _array(make_grid(data.float(), normalize=True))
    return np.clip(grid * 255, 0, 255).astype(np.uint8).transpose(1, 2, 0)


def make_grid(
    tensor: Any,
    nrow: int = 8,
    padding: int = 2,
    normalize: bool = False,
    value_range: tuple[float, float] | None = None,
    scale_each: bool = False,
    pad_value: float = 0.0,
    range: tuple[float, float] | None = None,  # torchvision's, up to 0.12
) -> Any:
    """Return pictures (N, C, H, W), or a list of them, as one (3, H, W).

    ``range`` is what torchvision up to 0.12 called ``value_range``.
    """
    value_range = range if value_range is None else value_range
    array = np.stack([_array(x) for x in tensor]) if isinstance(tensor, list) else _array(tensor)
    array = array[None] if array.ndim == 2 else array
    if array.ndim == 3:
        array = np.concatenate([array] * 3) if array.shape[0] == 1 else array
        array = array[None]
    array = np.concatenate([array] * 3, 1) if array.shape[1] == 1 else array
    if normalize:
        parts = list(array) if scale_each else [array]
        parts = [_spread(part, value_range) for part in parts]
        array = np.stack(parts) if scale_each else parts[0]
    if len(array) == 1:
        return Tensor(array[0])
    across = min(nrow, len(array))
    down = -(-len(array) // across)
    high, wide = array.shape[2] + padding, array.shape[3] + padding
    shape = (array.shape[1], high * down + padding, wide * across + padding)
    grid = np.full(shape, pad_value, array.dtype)
    for place, picture in enumerate(array):
        top, left = place // across * high + padding, place % across * wide + padding
        grid[:, top : top + high - padding, left : left + wide - padding] = picture
    return Tensor(grid)


def _array(value: Any) -> Any:
    return value.asnumpy() if isinstance(value, Tensor) else np.asarray(value)


def _spread(array: Any, limits: tuple[float, float] | None) -> Any:
    low, high = (float(array.min()), float(array.max())) if limits is None else limits
    return (np.clip(array, low, high) - low) / max(high - low, 1e-5)


def save_image(
    tensor: Any,
    fp: Any = None,
    format: str | None = None,
    filename: Any = None,
    **settings: Any,
) -> None:
    """Write a grid of pictures as ``make_grid`` makes it; values are in [0, 1].

    ``filename`` is what torchvision up to 0.4 called ``fp``.
    """
    grid = _array(make_grid(tensor, **settings))
    pixels = np.clip(grid * 255 + 0.5, 0, 255).astype(np.uint8)
    Image.fromarray(pixels.transpose(1, 2, 0)).save(filename if fp is None else fp, format=format)


def _files(folder: Path) -> list[str]:
    """Return the files below a folder, in the order of its folders' paths as text."""
    return [
        os.path.join(root, name)  # the order of torchvision is that of texts
        for root, _, names in sorted(os.walk(folder, followlinks=True))
        for name in sorted(names)
    ]


def default_loader(path: str) -> Any:
    """Return the picture of a file, in colours."""
    with Image.open(path) as image:
        return image.convert("RGB")
