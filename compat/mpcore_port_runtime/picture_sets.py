"""More data sets of pictures, from the files that torchvision's classes read; nothing is fetched.

Source: torchvision 0.28.0 ``datasets/vision.py``, ``coco.py``, ``voc.py``, ``svhn.py`` and
``stl10.py``, read.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from mpcore_port_runtime.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "STL10",
    "SVHN",
    "CocoCaptions",
    "CocoDetection",
    "StandardTransform",
    "VOCDetection",
    "VOCSegmentation",
    "VisionDataset",
]


class StandardTransform:
    """A transform of what is seen, and one of what is wanted."""

    def __init__(
        self,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.transform, self.target_transform = transform, target_transform

    def __call__(self, input: Any, target: Any) -> tuple[Any, Any]:
        """Return both."""
        input = input if self.transform is None else self.transform(input)
        return input, target if self.target_transform is None else self.target_transform(target)


class VisionDataset(Dataset):
    """What data sets of pictures have: a folder, and transforms."""

    def __init__(
        self,
        root: Any = None,
        transforms: Callable[..., Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.root = os.path.expanduser(root) if isinstance(root, str) else root
        alone = transform is not None or target_transform is not None
        if transforms is not None and alone:
            msg = "Only transforms or transform/target_transform can be passed as argument"
            raise ValueError(msg)
        self.transform, self.target_transform = transform, target_transform
        self.transforms = StandardTransform(transform, target_transform) if alone else transforms

    def __getitem__(self, index: int) -> Any:
        """Return one of them."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return how many there are."""
        raise NotImplementedError


def _there(path: Any, where: str) -> Path:
    if not Path(path).exists():
        msg = f"{path} is not there, and ports fetch no data: {where}"
        raise FileNotFoundError(msg)
    return Path(path)


class CocoDetection(VisionDataset):
    """Pictures with what COCO says of them, read by pycocotools."""

    def __init__(
        self,
        root: Any,
        annFile: str,  # noqa: N803  # torchvision's name
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(root, transforms, transform, target_transform)
        self.coco = importlib.import_module("pycocotools.coco").COCO(annFile)
        self.ids = sorted(self.coco.imgs.keys())

    def _load_image(self, id: int) -> Any:
        path = self.coco.loadImgs(id)[0]["file_name"]
        return Image.open(os.path.join(self.root, path)).convert("RGB")

    def _load_target(self, id: int) -> Any:
        return self.coco.loadAnns(self.coco.getAnnIds(id))

    def __getitem__(self, index: int) -> Any:
        """Return a picture and its list of annotations, transformed."""
        id = self.ids[index]
        pair = self._load_image(id), self._load_target(id)
        return pair if self.transforms is None else self.transforms(*pair)

    def __len__(self) -> int:
        """Return how many pictures there are."""
        return len(self.ids)


class CocoCaptions(CocoDetection):
    """Pictures and their captions."""

    def _load_target(self, id: int) -> Any:
        return [one["caption"] for one in super()._load_target(id)]


class _Voc(VisionDataset):
    _splits, _folder, _end = "", "", ""

    def __init__(
        self,
        root: Any,
        year: str = "2012",
        image_set: str = "train",
        download: bool = False,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(root, transforms, transform, target_transform)
        del download
        self.year, self.image_set = year, image_set
        below = ("TrainVal",) if year == "2011" else ()
        home = Path(self.root, *below, "VOCdevkit", f"VOC{year}")
        home = _there(home, "unpack the data set there")
        listed = home / "ImageSets" / self._splits / f"{image_set.rstrip(chr(10))}.txt"
        lines = _there(listed, "it has no such set").read_text("utf-8").splitlines()
        names = [line.strip() for line in lines]
        self.images = [str(home / "JPEGImages" / f"{name}.jpg") for name in names]
        self.targets = [
            str(home / self._folder / f"{name}{self._end}") for name in map(str.strip, names)
        ]

    def __getitem__(self, index: int) -> Any:
        """Return a picture and what is wanted of it, transformed."""
        pair = Image.open(self.images[index]).convert("RGB"), self._wanted(self.targets[index])
        return pair if self.transforms is None else self.transforms(*pair)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.images)

    def _wanted(self, path: str) -> Any:
        raise NotImplementedError


class VOCSegmentation(_Voc):
    """Pictures, and the class of each of their pixels: ``ROOT/VOCdevkit/VOC2012``."""

    _splits, _folder, _end = "Segmentation", "SegmentationClass", ".png"

    @property
    def masks(self) -> list[str]:
        """The paths of what is wanted."""
        return self.targets

    def _wanted(self, path: str) -> Any:
        with Image.open(path) as image:
            return image.copy()


class VOCDetection(_Voc):
    """Pictures, and the things on them: ``ROOT/VOCdevkit/VOC2012``."""

    _splits, _folder, _end = "Main", "Annotations", ".xml"

    @property
    def annotations(self) -> list[str]:
        """The paths of what is wanted."""
        return self.targets

    def _wanted(self, path: str) -> Any:
        return self.parse_voc_xml(ElementTree.parse(path).getroot())  # the user's own

    @staticmethod
    def parse_voc_xml(node: Any) -> dict[str, Any]:
        """Return an element as a dictionary; of things there is a list."""
        children = list(node)
        text = node.text.strip() if node.text else ""
        if not children:
            return {node.tag: text} if text else {}
        parts: dict[str, list[Any]] = {}
        for child in map(VOCDetection.parse_voc_xml, children):
            for name, value in child.items():
                parts.setdefault(name, []).append(value)
        if node.tag == "annotation":
            parts["object"] = [parts.get("object", [])]
        held: Any = {name: one[0] if len(one) == 1 else one for name, one in parts.items()}
        return {node.tag: text or held}


class _Arrays(VisionDataset):
    """Pictures in one array (N, 3, H, W), and their labels.

    Attributes:
        data: bytes; labels: numbers.
    """

    data: Any
    labels: Any

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Return a picture, transformed, and its label."""
        image: Any = Image.fromarray(np.transpose(self.data[index], (1, 2, 0)))
        label: Any = None if self.labels is None else int(self.labels[index])
        image = image if self.transform is None else self.transform(image)
        return image, label if self.target_transform is None else self.target_transform(label)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.data)


class SVHN(_Arrays):
    """Numbers of houses: ``ROOT/train_32x32.mat``, read by scipy."""

    def __init__(
        self,
        root: Any,
        split: str = "train",
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        super().__init__(root, None, transform, target_transform)
        loadmat = importlib.import_module("scipy.io").loadmat
        del download
        self.split = split
        path = _there(Path(self.root) / f"{split}_32x32.mat", "put the files of the data set there")
        held = loadmat(path)
        self.labels = held["y"].astype(np.int64).squeeze()
        self.labels[self.labels == 10] = 0
        self.data = np.transpose(held["X"], (3, 2, 0, 1))


class STL10(_Arrays):
    """Things: ``ROOT/stl10_binary``; labels of what has none are -1."""

    def __init__(
        self,
        root: Any,
        split: str = "train",
        folds: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        super().__init__(root, None, transform, target_transform)
        del download
        self.split, self.folds = split, folds
        parts = [self._part(one) for one in split.split("+")]
        self.data = np.concatenate([data for data, _ in parts])
        self.labels = np.concatenate([labels for _, labels in parts])
        if folds is not None and split != "unlabeled":
            listed = _there(self._home() / "fold_indices.txt", "it is of the data set")
            line = listed.read_text("utf-8").splitlines()[folds]
            kept = np.fromstring(line, dtype=np.int64, sep=" ")
            self.data, self.labels = self.data[kept], self.labels[kept]
        names = self._home() / "class_names.txt"
        self.classes = names.read_text("utf-8").splitlines() if names.exists() else []

    def _home(self) -> Path:
        return Path(self.root) / "stl10_binary"

    def _part(self, split: str) -> tuple[Any, Any]:
        path = _there(self._home() / f"{split}_X.bin", "unpack the data set there")
        data = np.fromfile(path, np.uint8).reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)
        labels = self._home() / f"{split}_y.bin"
        if not labels.exists():
            return data, np.full(len(data), -1)
        return data, np.fromfile(labels, np.uint8).astype(np.int64) - 1
