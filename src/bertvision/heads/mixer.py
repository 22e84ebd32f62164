"""A mixer over layers and features: features compressed per layer, then a small network across layers and one across
features, each with a way around it.

After LoSA's low-rank mixer on frozen features (CVPR 2024), with layers in the place of image patches.
"""

from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads import register
from bertvision.heads.base import Body, Head, Shape
from bertvision.heads.pooling import all_views


class LayerMixer(Body):
    """(B, L, V, D) -> (B, V, L * size)"""

    def __init__(self, layers: int, features: int, size: int) -> None:
        super().__init__()
        self.compress = nn.Linear(features, size)
        self.across_layers = nn.Sequential(nn.Linear(layers, 2 * layers), nn.GELU(), nn.Linear(2 * layers, layers))
        self.across_features = nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, size))
        self.width = layers * size

    def forward(self, layers: Tensor) -> Tensor:
        small = functional.gelu(self.compress(layers)).permute(0, 2, 3, 1)  # (B, V, size, L)
        small = (small + self.across_layers(small)).transpose(2, 3)
        small = small + self.across_features(small)
        return small.flatten(2)


@register("layer-mixer", "ours", "a mixer over layers and features, every view, normalised states")
def layer_mixer(shape: Shape) -> Head:
    views = ("tokens",) if shape.span else all_views(shape)
    return Head(shape, LayerMixer(shape.layers, shape.features, 48), views=views, normalised=True, dropout=0.1)
