"""The encoder's last k layers once more, as a head that starts from their weights and reads the states below.

Fine-tuning of the top without ever computing the bottom again. Whoever builds the head hands it the copied layers.
"""

from functools import partial

from torch import Tensor, nn

from bertvision.heads import register
from bertvision.heads.base import Head, Shape
from bertvision.heads.pooling import LastLayer, all_views
from bertvision.states.hidden import TOKENS, HiddenStates, pool, pooling_weights, views_of

DEEPEST = 4


class Top(Head):
    """Tokens below -> k layers -> views of what comes out (for spans: its tokens) -> one linear layer."""

    def __init__(self, shape: Shape, count: int) -> None:
        views = TOKENS if shape.span else all_views(shape)
        # A tenth of the other heads' steps: what is pre-trained is close to where it should be.
        super().__init__(shape, LastLayer(shape.features), views=views, normalised=True, dropout=0.1, lr_scale=0.1)
        self.borrows, self.below, self.pairs = count, shape.layers - 1 - count, shape.paired
        self.sequences = (self.below,)
        self.top: nn.Module | None = None

    def adopt(self, top: nn.Module) -> None:
        self.top = top

    def forward(self, states: HiddenStates) -> Tensor:
        assert self.top is not None, "the head was not given its layers"
        tokens, mask = states.sequence(self.below)
        above = self.top(tokens, mask)
        if self.span:
            above = HiddenStates((above * mask[..., None])[:, None], TOKENS, None, mask, states.places)
        else:
            assert states.sequences is not None
            weights = pooling_weights(mask, states.sequences.segments, self.pairs)
            above = HiddenStates(pool([above], weights.to(above.dtype)), views_of(self.pairs))
        return super().forward(above)


for _count in range(1, DEEPEST + 1):
    _about = (
        f"a copy of the encoder's last {'layer' if _count == 1 else f'{_count} layers'}, fine-tuned on the states below"
    )
    register(f"top-{_count}", "ours", _about, layers=_count + 1)(partial(Top, count=_count))
