"""The paper's heads on raw states, beyond those of the library (`learned-pooling`, `adapter-...`).

Where the text leaves an architecture open, ours has the printed number of parameters (tests/test_heads.py). For
classes, the pooler's output is one more layer, the last one.
"""

from collections.abc import Callable

from bertvision.heads import BuildBody, raw_head
from bertvision.heads.adapter import Adapter
from bertvision.heads.base import Body
from bertvision.heads.blocks import Beside, Ngrams, Then
from bertvision.heads.pooling import AveragePooling, LastLayer, LearnedPooling
from bertvision_paper.convolutions import FeatureConvolution, Inception, Xception
from bertvision_paper.xception import Abbreviated, Full

NARROW = ((6, 6, 1), (16, 16, 1), (3, 3, 1))  # 1xN convolutions: size, stride, dilation
DILATED = ((6, 6, 1), (16, 4, 2), (3, 1, 1), (4, 1, 1))
ADAPTED = ((6, 6, 1), (16, 16, 1), (2, 1, 1))
DROPOUT = 0.1


def pooled_adapter(layers: int, features: int) -> Body:
    return Then(LearnedPooling(layers, features), Adapter(1, features, 386))


def skipping(body: Body, features: int) -> Body:
    """The body's output, and the last layer's state beside it."""
    return Beside(body, LastLayer(features))


def after_adapter(kind: Callable[[int], Body]) -> BuildBody:
    """A body that reads the output of a learned pooling and an adapter."""
    return lambda layers, features: Then(pooled_adapter(layers, features), kind(386))


TABLE: list[tuple[str, str, BuildBody, str]] = [
    ("cnn-1xn", "three convolutions along features, layers as channels",
     lambda n, d: FeatureConvolution(n, d, NARROW, DROPOUT), "any"),
    ("cnn-1xn-dilated", "four convolutions along features, the second dilated",
     lambda n, d: FeatureConvolution(n, d, DILATED, DROPOUT), "any"),
    ("cnn-1xn-no-dropout", "cnn-1xn without dropout", lambda n, d: FeatureConvolution(n, d, NARROW), "any"),
    ("learned-pooling-cnn-1xn", "learned weighted sum, then cnn-1xn",
     lambda n, d: Then(LearnedPooling(n, d), FeatureConvolution(1, d, NARROW, DROPOUT)), "any"),
    ("average-pooling-cnn-1xn", "mean of all layers, then cnn-1xn",
     lambda n, d: Then(AveragePooling(d), FeatureConvolution(1, d, NARROW, DROPOUT)), "any"),
    ("learned-pooling-adapter-386", "learned weighted sum, then an adapter, and the last state",
     lambda n, d: skipping(pooled_adapter(n, d), d), "any"),
    ("adapter-386-skip-learned-pooling", "adapters on each layer and on their learned weighted sum",
     lambda n, d: Beside(Adapter(n, d, 386), pooled_adapter(n, d)), "any"),
    ("learned-pooling-adapter-cnn-1xn", "learned weighted sum, adapter, convolutions along its features",
     after_adapter(lambda d: FeatureConvolution(1, d, ADAPTED, DROPOUT)), "any"),
    ("learned-pooling-adapter-cnn-nxn", "learned weighted sum, adapter, convolutions over 1 to 7 tokens",
     after_adapter(Ngrams), "tokens"),
    ("learned-pooling-adapter-inception", "learned weighted sum, adapter, three Inception blocks over tokens",
     after_adapter(Inception), "tokens"),
    ("learned-pooling-adapter-xception", "learned weighted sum, adapter, seven Xception blocks over tokens",
     after_adapter(Xception), "tokens"),
    ("tenney-small", "learned weighted sum of all layers' [CLS]", LearnedPooling, "texts"),
    ("adapter-pooler-tenney", "learned weighted sum, adapter of 386, and the last state",
     lambda n, d: skipping(pooled_adapter(n, d), d), "texts"),
    ("adapter-pooler-average", "mean, adapter of 386, and the last state",
     lambda n, d: skipping(Then(AveragePooling(d), Adapter(1, d, 386)), d), "texts"),
    ("xception-abbreviated", "a short Xception along features, layers as channels", Abbreviated, "texts"),
    ("xception-abbreviated-cls", "the same, and the last state", lambda n, d: skipping(Abbreviated(n, d), d), "texts"),
    ("xception", "the whole Xception along features, layers as channels", Full, "texts"),
]  # fmt: skip


for _name, _about, _body, _reads in TABLE:
    raw_head(_name, _about, _body, reads=_reads)
