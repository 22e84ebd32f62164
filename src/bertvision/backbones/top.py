"""A copy of an encoder's last layers that starts from hidden states instead of tokens.

The copy keeps the architecture's own forward pass (attention masks, position biases, rotary embeddings, a last norm):
only its embeddings are replaced, by what it is given. So it works for every encoder that transformers has.
"""

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from bertvision.errors import UserError


class Given(nn.Module):
    """Stands where the embeddings were, and passes on the states that the model was called with."""

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        states: Tensor = next(v for v in (*inputs, *named.values()) if isinstance(v, Tensor) and v.is_floating_point())
        return states


class TopLayers(nn.Module):
    """(B, T, D) states below, (B, T) mask -> (B, T, D) states of the last layer."""

    def __init__(self, base: Any, count: int) -> None:
        super().__init__()
        if len(layers_of(base)) != base.config.num_hidden_layers:
            raise UserError(
                f"This encoder ({base.config.model_type}) shares its layers: its last {count} cannot be copied."
            )
        bottom = layers_of(base)[: len(layers_of(base)) - count]
        left_out = {id(value): None for part in (base.embeddings, bottom) for value in part.parameters()}
        self.model = deepcopy(base, left_out)  # the bottom's weights, most of the memory, are not copied
        self.model.embeddings = Given()
        if hasattr(self.model, "embeddings_project"):  # ELECTRA's way from narrow embeddings to its features
            self.model.embeddings_project = nn.Identity()
        if getattr(self.model, "pooler", None) is not None:
            self.model.pooler = None
        layers = layers_of(self.model)
        del layers[: len(layers) - count]
        self.model.requires_grad_(True)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        above: Tensor = self.model(inputs_embeds=states, attention_mask=mask.long()).last_hidden_state
        return above


def layers_of(base: nn.Module) -> nn.ModuleList:
    """The stack of transformer layers, wherever the architecture keeps it: the longest list of modules."""
    stacks = [module for module in base.modules() if isinstance(module, nn.ModuleList)]
    return max(stacks, key=len)
