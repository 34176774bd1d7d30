"""timm's data: folders of pictures, transforms, loaders.

Sources: timm 1.0.31 ``data/``: ``dataset.py``, ``dataset_factory.py``, ``transforms_factory.py``,
``loader.py``, ``config.py``, ``random_erasing.py``, ``readers/reader_image_folder.py``. What is not
random is compared with what timm gave; random transforms draw other numbers. No worker processes
are used.
"""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor
from PIL import Image

from mpcore_port_runtime import pictures, vision
from mpcore_port_runtime.augment import ColorJitter
from mpcore_port_runtime.data import DataLoader, Dataset, DistributedSampler, IterableDataset
from mpcore_port_runtime.mixtures import Mixup
from mpcore_port_runtime.timm.augments import rand_augment_transform
from mpcore_port_runtime.timm.registry import natural_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "FastCollateMixup",
    "ImageDataset",
    "OldDataset",
    "create_dataset",
    "create_loader",
    "create_transform",
    "resolve_data_config",
    "resolve_model_data_config",
]

_logger = logging.getLogger("timm.data")
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CROP = 0.875
_ENDS = (".png", ".jpg", ".jpeg")
_TRAIN = ("train", "training")
_EVAL = ("val", "valid", "validation", "eval", "evaluation")
_TORCHS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST"}
_TORCHS |= {"fashion_mnist": "FashionMNIST"}


# --- data sets ------------------------------------------------------------------------------------


class ImageDataset(Dataset):
    """timm.data.ImageDataset of a folder: labels are the names of the folders of pictures.

    Attributes:
        samples: paths and labels; class_to_idx: labels by the folders' names.
    """

    def __init__(
        self,
        root: str,
        reader: Any = None,
        split: str = "train",
        class_map: Any = None,
        load_bytes: bool = False,
        input_img_mode: str = "RGB",
        transform: Any = None,
        target_transform: Any = None,
    ) -> None:
        del split
        if load_bytes or not (reader is None or isinstance(reader, str)):
            msg = "`load_bytes` and a `reader` of the script's own are not ported"
            raise NotImplementedError(msg)
        self.root, self.input_img_mode = root, input_img_mode
        self.transform, self.target_transform = transform, target_transform
        self.samples, self.class_to_idx = _found(root, _classes(class_map, root))
        if not self.samples:
            msg = f"Found 0 images in subfolders of {root}, which end in {', '.join(_ENDS)}"
            raise RuntimeError(msg)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return a picture, transformed, and its label."""
        path, target = self.samples[index]
        with Image.open(path) as image:
            made: Any = image.convert(self.input_img_mode) if self.input_img_mode else image.copy()
        if self.transform is not None:
            made = self.transform(made)
        return made, target if self.target_transform is None else self.target_transform(target)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.samples)

    def filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        """Return the path of a picture, below the root."""
        path = self.samples[index][0]
        if basename:
            return os.path.basename(path)
        return path if absolute else os.path.relpath(path, self.root)

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return the paths of all."""
        return [self.filename(n, basename, absolute) for n in range(len(self))]


class OldDataset(ImageDataset):
    """timm.data.Dataset, as up to timm 0.3: a folder's pictures, arguments in its order."""

    def __init__(
        self, root: str, load_bytes: bool = False, transform: Any = None, class_map: Any = ""
    ) -> None:
        super().__init__(
            root, class_map=class_map or None, load_bytes=load_bytes, transform=transform
        )
        self.imgs = self.samples


def _found(
    root: str, classes: dict[str, int] | None
) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Return pictures and labels in the natural order of their paths."""
    held = []
    for folder, _, names in os.walk(root, topdown=False, followlinks=True):
        label = os.path.basename(os.path.relpath(folder, root)) if folder != root else ""
        held += [
            (os.path.join(folder, name), label)
            for name in names
            if os.path.splitext(name)[1].lower() in _ENDS
        ]
    if classes is None:
        labels = sorted({label for _, label in held}, key=natural_key)
        classes = {label: place for place, label in enumerate(labels)}
    found = [(path, classes[label]) for path, label in held if label in classes]
    return sorted(found, key=lambda one: natural_key(one[0])), classes


def _classes(given: Any, root: str) -> dict[str, int] | None:
    if not given or isinstance(given, dict):
        return given or None
    path = Path(given) if os.path.exists(given) else Path(root) / given
    if path.suffix != ".txt":
        msg = f"`class_map` must be a dict or a .txt of names, got {given!r}"
        raise NotImplementedError(msg)
    lines = path.read_text(encoding="utf-8").splitlines()
    return {line.strip(): place for place, line in enumerate(lines)}


def create_dataset(
    name: str,
    root: str | None = None,
    split: str = "validation",
    search_split: bool = True,
    class_map: Any = None,
    load_bytes: bool = False,
    is_training: bool = False,
    download: bool = False,
    batch_size: int = 1,
    num_samples: int | None = None,
    seed: int = 42,
    repeats: int = 0,
    input_img_mode: str = "RGB",
    **kwargs: Any,
) -> Any:
    """Return timm.data.create_dataset of a folder, or of what torchvision has in files.

    Raises:
        NotImplementedError: the data is of another kind.
    """
    del is_training, batch_size, num_samples, seed, repeats  # of streams
    given = {key: value for key, value in kwargs.items() if value is not None}
    kind, _, rest = name.rpartition("/")
    if kind.lower() in ("hfds", "hfids", "tfds", "wds") or download:
        msg = (
            f"create_dataset({name!r}): streams and downloads are not ported: put files in a folder"
        )
        raise NotImplementedError(msg)
    folder = str(root)
    is_folder = kind.lower() != "torch" or rest.lower() in ("image_folder", "folder")
    if is_folder and search_split and os.path.isdir(folder):
        folder = _part(folder, split)
    if kind.lower() != "torch":
        more = {"load_bytes": load_bytes, "input_img_mode": input_img_mode, **given}
        return ImageDataset(folder, name, split, class_map, **more)
    if is_folder:
        return pictures.ImageFolder(folder, **given)
    if rest.lower() not in _TORCHS:
        msg = f"create_dataset({name!r}): of torchvision's data sets {sorted(_TORCHS)} are ported"
        raise NotImplementedError(msg)
    return getattr(pictures, _TORCHS[rest.lower()])(folder, train=split in _TRAIN, **given)


def _part(root: str, split: str) -> str:
    """Return the folder of a split, or of a word for the same; the root where there is none."""
    name = split.partition("[")[0]
    others: Sequence[str] = next((words for words in (_TRAIN, _EVAL) if name in words), ())
    every = [os.path.join(root, one) for one in (name, *others)]
    return next((path for path in every if os.path.exists(path)), root)


# --- transforms -----------------------------------------------------------------------------------


class _Bytes:
    """A picture as an array (C, H, W) of bytes."""

    def __call__(self, image: Any) -> Any:
        array = np.array(image, dtype=np.uint8)
        array = array[:, :, None] if array.ndim == 2 else array
        return np.ascontiguousarray(array.transpose(2, 0, 1))


class _RandomCrop:
    """A part of random size and shape, resized in one of several ways."""

    def __init__(self, size: Any, scale: Any, ratio: Any, interpolation: str) -> None:
        ways = ("bilinear", "bicubic") if interpolation == "random" else (interpolation,)
        self.made = [vision.RandomResizedCrop(size, scale, ratio, way) for way in ways]

    def __call__(self, image: Any) -> Any:
        return self.made[int(vision.NUMBERS.get().integers(len(self.made)))](image)


class _Erased:
    """Parts of pictures become 0 or noise, of an array (C, H, W) or a batch of such."""

    def __init__(self, share: float, mode: str, count: int, splits: int) -> None:
        if mode not in ("const", "rand", "pixel"):
            msg = f"`re_mode` must be 'const', 'rand' or 'pixel', got {mode!r}"
            raise ValueError(msg)
        self.share, self.mode, self.count, self.splits = share, mode, count, splits

    def batch(self, x: Any) -> Any:
        """Erase in a batch; the first of ``splits`` parts stays as it is."""
        first = len(x) // self.splits if self.splits > 1 else 0
        for place in range(first, len(x)):
            self._erase(x[place])
        return x

    def __call__(self, tensor: Any) -> Any:
        array = tensor.asnumpy().copy()
        self._erase(array)
        return Tensor(array)

    def _erase(self, x: Any) -> None:
        draws = vision.NUMBERS.get()
        if draws.random() > self.share:
            return
        deep, high, wide = x.shape
        count = 1 if self.count <= 1 else int(draws.integers(1, self.count + 1))
        for _ in range(count):
            for _ in range(10):
                area = draws.uniform(0.02, 1 / 3) * high * wide / count
                shape = math.exp(draws.uniform(math.log(0.3), math.log(1 / 0.3)))
                tall, broad = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
                if tall < high and broad < wide:
                    top = int(draws.integers(0, high - tall + 1))
                    left = int(draws.integers(0, wide - broad + 1))
                    x[:, top : top + tall, left : left + broad] = self._noise(deep, tall, broad)
                    break

    def _noise(self, deep: int, tall: int, broad: int) -> Any:
        if self.mode == "const":
            return 0.0
        size = (deep, tall, broad) if self.mode == "pixel" else (deep, 1, 1)
        return vision.NUMBERS.get().standard_normal(size).astype(np.float32)


def create_transform(
    input_size: Any = 224,
    is_training: bool = False,
    no_aug: bool = False,
    scale: Any = None,
    ratio: Any = None,
    hflip: float = 0.5,
    vflip: float = 0.0,
    color_jitter: Any = 0.4,
    auto_augment: str | None = None,
    interpolation: str = "bilinear",
    mean: Any = _MEAN,
    std: Any = _STD,
    re_prob: float = 0.0,
    re_mode: str = "const",
    re_count: int = 1,
    re_num_splits: int = 0,
    crop_pct: float | None = None,
    crop_mode: str | None = None,
    use_prefetcher: bool = False,
    normalize: bool = True,
) -> Any:
    """Return timm.data.create_transform: transforms of ImageNet's kind, for PIL pictures.

    Raises:
        NotImplementedError: augmentations are asked for that are not RandAugment's.
    """
    size = tuple(input_size[-2:]) if isinstance(input_size, list | tuple) else input_size
    last: list[Any] = [_Bytes()]
    if not use_prefetcher:
        last = [vision.PILToTensor()]
    if not use_prefetcher and normalize:
        last = [vision.ToTensor(), vision.Normalize(mean, std)]
    if not is_training:
        way = "bilinear" if interpolation == "random" else interpolation
        return vision.Compose([*_evaluated(size, way, crop_pct, crop_mode), *last])
    if no_aug:
        way = "bilinear" if interpolation == "random" else interpolation
        return vision.Compose([vision.Resize(size, way), vision.CenterCrop(size), *last])
    area, shape = tuple(scale or (0.08, 1.0)), tuple(ratio or (3.0 / 4.0, 4.0 / 3.0))
    first: list[Any] = [_RandomCrop(size, area, shape, interpolation)]
    if hflip > 0.0:
        first.append(vision.RandomHorizontalFlip(hflip))
    if vflip > 0.0:
        first.append(vision.RandomVerticalFlip(vflip))
    if auto_augment:
        first.append(rand_augment_transform(auto_augment, _looks(interpolation, mean)))
    elif color_jitter is not None:
        several = isinstance(color_jitter, list | tuple)
        first.append(ColorJitter(*(color_jitter if several else (float(color_jitter),) * 3)))
    if re_prob > 0.0 and not use_prefetcher and normalize:
        last.append(_Erased(re_prob, re_mode, re_count, re_num_splits))
    return vision.Compose([*first, *last])


def _looks(interpolation: str, mean: Any) -> dict[str, Any]:
    """Return what timm tells its augmentations of pictures."""
    found: dict[str, Any] = {"img_mean": tuple(min(255, round(255 * value)) for value in mean)}
    if interpolation and interpolation != "random":
        found["interpolation"] = vision.way_of(interpolation)
    return found


def _evaluated(size: Any, way: str, crop_pct: float | None, crop_mode: str | None) -> list[Any]:
    share = crop_pct or _CROP
    sides = tuple(
        math.floor(x / share) for x in (size if isinstance(size, tuple) else (size, size))
    )
    if crop_mode == "squash":
        return [vision.Resize(sides, way), vision.CenterCrop(size)]
    if crop_mode == "border" or sides[0] != sides[1]:
        msg = f"`crop_mode` {crop_mode!r} of {size} is not ported: take squares, or 'squash'"
        raise NotImplementedError(msg)
    return [vision.Resize(sides[0], way), vision.CenterCrop(size)]


# --- loaders --------------------------------------------------------------------------------------


def _stacked(batch: Sequence[tuple[Any, int]]) -> tuple[Any, Any]:
    """Return arrays of bytes as one, and labels."""
    pictures_ = np.stack([picture for picture, _ in batch])
    return pictures_, Tensor(np.asarray([label for _, label in batch]), ms.int64)


class FastCollateMixup(Mixup):
    """timm.data.FastCollateMixup: pictures of bytes are mixed while they become a batch."""

    def __call__(self, batch: Any, _: Any = None) -> tuple[Any, Any]:
        """Return the batch, mixed and rounded, and its shares."""
        held, target = _stacked(batch)
        mixed, shares = super().__call__(Tensor(held.astype(np.float32)), target)
        return np.rint(mixed.asnumpy()), shares


class _Prefetched:
    """A loader whose bytes become numbers with timm's mean and deviation."""

    def __init__(self, loader: Any, mean: Any, std: Any, erased: _Erased | None) -> None:
        self.loader, self.erased = loader, erased
        self.mean, self.std = (_channels(one) for one in (mean, std))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for held, target in self.loader:
            x = (held.astype(np.float32) - self.mean) / self.std
            yield Tensor(x if self.erased is None else self.erased.batch(x)), target

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sampler(self) -> Any:
        """The loader's."""
        return self.loader.sampler

    @property
    def dataset(self) -> Any:
        """The loader's."""
        return self.loader.dataset

    @property
    def mixup_enabled(self) -> bool:
        """Whether batches are mixed."""
        mix = self.loader.collate_fn
        return mix.mixup_enabled if isinstance(mix, FastCollateMixup) else False

    @mixup_enabled.setter
    def mixup_enabled(self, value: bool) -> None:
        if isinstance(self.loader.collate_fn, FastCollateMixup):
            self.loader.collate_fn.mixup_enabled = value


def _channels(values: Any) -> Any:
    return np.asarray([value * 255 for value in values], np.float32).reshape(1, -1, 1, 1)


def create_loader(
    dataset: Any,
    input_size: Any,
    batch_size: int,
    is_training: bool = False,
    *,
    use_prefetcher: bool = True,
    no_aug: bool = False,
    re_prob: float = 0.0,
    re_mode: str = "const",
    re_count: int = 1,
    re_split: bool = False,
    mean: Any = _MEAN,
    std: Any = _STD,
    num_aug_repeats: int = 0,
    num_aug_splits: int = 0,
    distributed: bool = False,
    collate_fn: Any = None,
    fp16: bool = False,
    **given: Any,
) -> Any:
    """Return timm.data.create_loader: batches of pictures and labels, in this process.

    Raises:
        NotImplementedError: augmentations are split or repeated, or not RandAugment's.
    """
    if num_aug_splits or num_aug_repeats or fp16 or given.pop("tf_preprocessing", False):
        msg = (
            "splits and repeats of augmentations, `fp16` and TensorFlow's transforms are not ported"
        )
        raise NotImplementedError(msg)
    for name in _OF_PROCESSES:
        given.pop(name, None)
    splits = 2 if re_split else 0
    erasing: dict[str, Any] = {"re_prob": re_prob, "re_mode": re_mode, "re_count": re_count}
    dataset.transform = create_transform(
        input_size,
        is_training,
        no_aug=no_aug,
        mean=mean,
        std=std,
        use_prefetcher=use_prefetcher,
        re_num_splits=splits,
        **erasing,
        **given,
    )
    streamed = isinstance(dataset, IterableDataset)
    sampler = None
    if distributed and not streamed:
        sampler = DistributedSampler(dataset, shuffle=is_training)
    if collate_fn is None and use_prefetcher:
        collate_fn = _stacked
    loader = DataLoader(
        dataset,
        batch_size,
        shuffle=is_training and sampler is None and not streamed,
        sampler=sampler,
        collate_fn=collate_fn,
        drop_last=is_training,
    )
    if not use_prefetcher:
        return loader
    erased = _Erased(re_prob, re_mode, re_count, splits) if is_training and not no_aug else None
    return _Prefetched(loader, mean, std, erased if re_prob > 0.0 else None)


_OF_PROCESSES = (
    *("device", "img_dtype", "num_workers", "persistent_workers", "pin_memory"),
    *("use_multi_epochs_loader", "worker_seeding"),
)


# --- settings -------------------------------------------------------------------------------------


def resolve_data_config(
    args: Any = None,
    pretrained_cfg: Any = None,
    model: Any = None,
    use_test_size: bool = False,
    verbose: bool = False,
    default_cfg: Any = None,
) -> dict[str, Any]:
    """Return timm.data.resolve_data_config: what pictures become, by settings and network.

    A network's ``pretrained_cfg`` is asked, or its ``default_cfg`` as up to timm 0.5.
    """
    told = dict(args or {})
    known = pretrained_cfg or default_cfg or {}
    for name in ("pretrained_cfg", "default_cfg"):
        known = known or getattr(model, name, None) or {}
    known = known if isinstance(known, dict) else vars(known)
    deep = next((told[name] for name in ("in_chans", "chans") if told.get(name) is not None), 3)
    size = (deep, 224, 224)
    if told.get("input_size") is not None:
        size = tuple(told["input_size"])
        deep = size[0]
    elif told.get("img_size") is not None:
        size = (deep, told["img_size"], told["img_size"])
    elif use_test_size and known.get("test_input_size") is not None:
        size = tuple(known["test_input_size"])
    elif known.get("input_size") is not None:
        size = tuple(known["input_size"])
    crop = known.get("test_crop_pct") if use_test_size else None
    found = {
        "input_size": size,
        "interpolation": told.get("interpolation") or known.get("interpolation") or "bicubic",
        "mean": _of_channels(told.get("mean"), deep) or known.get("mean") or _MEAN,
        "std": _of_channels(told.get("std"), deep) or known.get("std") or _STD,
        "crop_pct": told.get("crop_pct") or crop or known.get("crop_pct") or _CROP,
        "crop_mode": told.get("crop_mode") or known.get("crop_mode") or "center",
    }
    if verbose:
        _logger.info("Data processing configuration for current model + dataset:")
        for name, value in found.items():
            _logger.info("\t%s: %s", name, value)
    return found


def _of_channels(values: Any, deep: int) -> Any:
    if values is None:
        return None
    every = tuple(values) * (deep if len(values) == 1 else 1)
    if len(every) != deep:
        msg = f"a mean or deviation must be given for each of {deep} channels, got {len(every)}"
        raise AssertionError(msg)
    return every


def resolve_model_data_config(model: Any, args: Any = None, **given: Any) -> dict[str, Any]:
    """Return timm.data.resolve_model_data_config: the same, the network first."""
    return resolve_data_config(args, model=model, **given)
