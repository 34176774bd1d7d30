"""Weights of torchvision's networks: read where they lie on this machine, never fetched.

Names of files: torchvision 0.28 ``models/*.py``; their folder: ``hub.py`` beside this folder.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any

from mpcore.errors import BackendError
from mpcore_port_runtime.hub import kept
from mpcore_port_runtime.modules import load_state_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = [
    "AlexNet_Weights",
    "DenseNet121_Weights",
    "DenseNet161_Weights",
    "DenseNet169_Weights",
    "DenseNet201_Weights",
    "MobileNet_V2_Weights",
    "ResNeXt50_32X4D_Weights",
    "ResNeXt101_32X8D_Weights",
    "ResNet18_Weights",
    "ResNet34_Weights",
    "ResNet50_Weights",
    "ResNet101_Weights",
    "ResNet152_Weights",
    "VGG11_BN_Weights",
    "VGG11_Weights",
    "VGG13_BN_Weights",
    "VGG13_Weights",
    "VGG16_BN_Weights",
    "VGG16_Weights",
    "VGG19_BN_Weights",
    "VGG19_Weights",
    "ViT_B_16_Weights",
    "ViT_B_32_Weights",
    "ViT_H_14_Weights",
    "ViT_L_16_Weights",
    "ViT_L_32_Weights",
    "Wide_ResNet50_2_Weights",
    "Wide_ResNet101_2_Weights",
]


class _Weights(Enum):
    """What ``weights=`` names."""

    @property
    def url(self) -> str:
        """Where torchvision fetches it from."""
        return f"https://download.pytorch.org/models/{self.value}.pth"

    def transforms(self, **_: Any) -> Any:
        """Refuse: the pictures' preparation is not kept with the weights here.

        Raises:
            BackendError: always.
        """
        msg = (
            "weights.transforms() is not ported: write Resize(256), CenterCrop(224), ToTensor and "
            "Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]) out (version 2 of "
            "weights resizes to 232)"
        )
        raise BackendError(msg)


def _of(kind: str, *files: str) -> Any:
    """What ``weights=`` of a network names: files that torchvision has of it."""
    made: Any = _Weights
    named = {f"IMAGENET1K_V{number}": file for number, file in enumerate(files, 1)}
    return made(f"{kind}_Weights", named | ({"DEFAULT": files[-1]} if files else {}))


# On ImageNet at 224 pixels; SWAG's are left out: they want larger pictures.
AlexNet_Weights = _of("AlexNet", "alexnet-owt-7be5be79")
DenseNet121_Weights = _of("DenseNet121", "densenet121-a639ec97")
DenseNet161_Weights = _of("DenseNet161", "densenet161-8d451a50")
DenseNet169_Weights = _of("DenseNet169", "densenet169-b2777c0a")
DenseNet201_Weights = _of("DenseNet201", "densenet201-c1103571")
MobileNet_V2_Weights = _of("MobileNet_V2", "mobilenet_v2-b0353104", "mobilenet_v2-7ebf99e0")
ResNeXt101_32X8D_Weights = _of(
    "ResNeXt101_32X8D",
    "resnext101_32x8d-8ba56ff5",
    "resnext101_32x8d-110c445d",
)
ResNeXt50_32X4D_Weights = _of(
    "ResNeXt50_32X4D",
    "resnext50_32x4d-7cdf4587",
    "resnext50_32x4d-1a0047aa",
)
ResNet101_Weights = _of("ResNet101", "resnet101-63fe2227", "resnet101-cd907fc2")
ResNet152_Weights = _of("ResNet152", "resnet152-394f9c45", "resnet152-f82ba261")
ResNet18_Weights = _of("ResNet18", "resnet18-f37072fd")
ResNet34_Weights = _of("ResNet34", "resnet34-b627a593")
ResNet50_Weights = _of("ResNet50", "resnet50-0676ba61", "resnet50-11ad3fa6")
VGG11_BN_Weights = _of("VGG11_BN", "vgg11_bn-6002323d")
VGG11_Weights = _of("VGG11", "vgg11-8a719046")
VGG13_BN_Weights = _of("VGG13_BN", "vgg13_bn-abd245e5")
VGG13_Weights = _of("VGG13", "vgg13-19584684")
VGG16_BN_Weights = _of("VGG16_BN", "vgg16_bn-6c64b313")
VGG16_Weights = _of("VGG16", "vgg16-397923af")
VGG19_BN_Weights = _of("VGG19_BN", "vgg19_bn-c79401a0")
VGG19_Weights = _of("VGG19", "vgg19-dcbb9e9d")
ViT_B_16_Weights = _of("ViT_B_16", "vit_b_16-c867db91")
ViT_B_32_Weights = _of("ViT_B_32", "vit_b_32-d86f8d99")
ViT_H_14_Weights = _of("ViT_H_14")
ViT_L_16_Weights = _of("ViT_L_16", "vit_l_16-852ce7e3")
ViT_L_32_Weights = _of("ViT_L_32", "vit_l_32-c7638314")
Wide_ResNet101_2_Weights = _of(
    "Wide_ResNet101_2",
    "wide_resnet101_2-32ee1156",
    "wide_resnet101_2-d733dc28",
)
Wide_ResNet50_2_Weights = _of(
    "Wide_ResNet50_2",
    "wide_resnet50_2-95faca4d",
    "wide_resnet50_2-9ba9bcbe",
)


def maker(name: str, known: Any, make: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """Return torchvision's function of a network, with weights from this machine or none."""

    def made(weights: Any = None, progress: bool = True, **settings: Any) -> Any:
        del progress
        chosen = settings.pop("pretrained", False) if weights is None else weights
        path = None if chosen in (None, False) else _path(known, chosen, settings)
        network = make(**(fixed | settings))
        if path is not None:
            from safetensors.numpy import load_file

            load_state_dict(network, dict(_renamed(load_file(path))))
        return network

    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"""Return torchvision's ``{name}`` as a Cell, in training mode.

    Args:
        weights: a member of ``{known.__name__}``, its name, or True for its first; None for none.
        progress: taken and ignored.
        **settings: what the network is made with; ``pretrained`` is an old name of ``weights``.

    Raises:
        BackendError: there are no such weights; or their file is not here, and how to get it.
    """
    return made


def _path(known: Any, weights: Any, settings: dict[str, Any]) -> Path:
    if weights is True:
        weights = "IMAGENET1K_V1"  # what `pretrained=True` has always meant
    found = weights if isinstance(weights, known) else known.__members__.get(str(weights))
    if found is None:
        msg = f"`weights` must be one of {', '.join(known.__members__) or 'None'}, got {weights!r}"
        raise BackendError(msg)
    if settings.get("num_classes", 1000) != 1000:  # ImageNet's
        msg = f"`num_classes` must be 1000 beside weights, got {settings['num_classes']!r}"
        raise BackendError(msg)
    return kept(found.url)


def _renamed(arrays: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield arrays by the names of today, which torchvision gives those of its older files."""
    for name, array in arrays.items():
        if name.endswith("num_batches_tracked"):
            continue
        today = re.sub(r"(denselayer\d+\.\w+)\.([12])\.", r"\1\2.", name)
        yield today.replace("mlp.linear_1.", "mlp.0.").replace("mlp.linear_2.", "mlp.3."), array
