from torch import nn

stem = nn.Sequential(
    nn.Conv2d(3, 16, kernel_size=7, stride=2, padding=3, bias=False),
    nn.BatchNorm2d(16, momentum=0.01),  # slow statistics
    nn.ReLU(inplace=True),
    nn.Conv2d(
        16,
        32,
        3,
        padding=(1, 0),  # rows only
        groups=4,
    ),
    nn.AvgPool2d(3, padding=1),
)
up = nn.ConvTranspose2d(32, 16, 2, stride=2)
