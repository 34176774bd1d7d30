import mindspore as ms
from mindspore import nn

stem = nn.SequentialCell(
    nn.Conv2d(3, 16, kernel_size=7, stride=2, padding=3, has_bias=False, pad_mode='pad'),
    nn.BatchNorm2d(16, momentum=1 - 0.01),  # slow statistics
    nn.ReLU(),
    nn.Conv2d(
        16,
        32,
        3,
        padding=(1, 1, 0, 0),  # rows only
        group=4,
        has_bias=True,
        pad_mode='pad',
    ),
    nn.AvgPool2d(3, padding=1, stride=3, pad_mode='pad'),
).set_train()
up = nn.Conv2dTranspose(32, 16, 2, stride=2, has_bias=True, pad_mode='pad')
