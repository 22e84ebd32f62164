"""Any transformers encoder with its own output layer, giving logits and the hidden states of every layer.

The only file that knows transformers' models and tokenizers.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as transformers_logging

from bertvision.backbones import backbones
from bertvision.errors import UserError
from bertvision.registry import unknown
from bertvision.types import Windows


@dataclass(frozen=True)
class Batch:
    """Padded tokens of some windows, (B, T) each."""

    inputs: dict[str, Tensor]
    mask: Tensor
    segments: Tensor


class Encoder(nn.Module):
    """tokens -> (logits (B, C) or for spans (B, T, 2), L x (B, T, D) hidden states, pooled (B, D) or None)."""

    def __init__(self, model: Any, tokenizer: Any, pooled: bool) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.pooled = pooled  # only a pooler that was pre-trained says something
        self._pooler_output: Tensor | None = None
        if pooled:
            model.base_model.pooler.register_forward_hook(self._keep_pooled)

    def _keep_pooled(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._pooler_output = output

    def forward(self, inputs: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...], Tensor | None]:
        result = self.model(**inputs, output_hidden_states=True)
        pooled, self._pooler_output = self._pooler_output, None
        if hasattr(result, "start_logits"):
            return torch.stack([result.start_logits, result.end_logits], -1), result.hidden_states, pooled
        return result.logits, result.hidden_states, pooled

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def layers(self) -> int:
        """Layers of hidden states, the embedding output included."""
        return int(self.model.config.num_hidden_layers) + 1

    @property
    def features(self) -> int:
        return int(self.model.config.hidden_size)

    @property
    def longest(self) -> int:
        """Tokens the encoder can take. RoBERTa's kin count positions from the padding index on."""
        config = self.model.config
        positions = getattr(config, "max_position_embeddings", None) or self.tokenizer.model_max_length
        if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
            positions -= (config.pad_token_id or 0) + 1
        return int(min(positions, self.tokenizer.model_max_length))

    def batch(self, windows: Windows, rows: np.ndarray) -> Batch:
        """Pad the given windows to the longest among them."""
        lengths = windows.lengths[rows]
        mask = np.arange(lengths.max())[None] < lengths[:, None]
        parts = {}
        for name, flat, filler in (
            ("input_ids", windows.tokens, self.tokenizer.pad_token_id or 0),
            ("token_type_ids", windows.types, 0),
            ("segments", windows.segments, 0),
        ):
            padded = np.full(mask.shape, filler, dtype=np.int64)
            padded[mask] = np.concatenate([flat[windows.offsets[i] : windows.offsets[i + 1]] for i in rows])
            parts[name] = torch.from_numpy(padded).to(self.device)
        parts["attention_mask"] = torch.from_numpy(mask.astype(np.int64)).to(self.device)
        inputs = {name: parts[name] for name in self.tokenizer.model_input_names if name in parts}
        return Batch(inputs, parts["attention_mask"], parts["segments"])

    def freeze(self, what: str | None) -> None:
        """Leave `none`, `embeddings`, these and the first N layers, or `all` (but the output layer) as they are."""
        base = self.model.base_model
        if what in (None, "none"):
            return
        frozen: list[nn.Module] = [base.embeddings]
        if what == "all":
            frozen = [base]
        elif what != "embeddings":
            layers = layers_of(base)
            if int(what) > len(layers):
                raise UserError(f"--freeze {what}: this encoder has {len(layers)} layers.")
            frozen += list(layers[: int(what)])
        for module in frozen:
            module.requires_grad_(False)

    @contextmanager
    def up_to(self, depth: int) -> Iterator[None]:
        """Inside, layers above `depth` are not computed: `forward` gives fewer of them, and no logits worth reading.

        Where a last norm is applied to whatever layer is the last, one more is computed, to be that one.
        """
        stack = layers_of(self.model.base_model)
        kept = depth + hasattr(self.model.base_model, "final_norm")
        above = list(stack)[kept:]
        del stack[kept:]
        try:
            yield
        finally:
            stack.extend(above)

    def cut(self, depth: int) -> None:
        """Drop the layers above `depth` for good."""
        base, config = self.model.base_model, self.model.config
        stack = layers_of(base)
        if len(stack) != config.num_hidden_layers:
            raise UserError(f"This encoder ({config.model_type}) shares its layers: none of them can be cut off.")
        if not 1 <= depth < len(stack):
            raise UserError(
                f"--layers {depth}: this encoder has {len(stack)}, so at least 1 and at most {len(stack) - 1}."
            )
        del stack[depth:]
        config.num_hidden_layers = depth
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:depth]

    def save(self, folder: Path) -> None:
        self.model.config.pooler_is_trained = self.pooled  # which the weights alone do not tell
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def layers_of(base: nn.Module) -> nn.ModuleList:
    """The stack of transformer layers, wherever the architecture keeps it: the longest list of modules."""
    stacks = [module for module in base.modules() if isinstance(module, nn.ModuleList)]
    return max(stacks, key=len)


def load(name: str, outputs: int, seed: int, *, span: bool = False, pooled: bool | None = None) -> Encoder:
    """The backbone called `name` (registered, a folder, or on the hub) with an output layer of `outputs` logits:
    per text or, with `span`, per token.

    `pooled` says whether the pooler counts as trained, for checkpoints that were saved with a new one.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    path = str(backbones[name].folder()) if name in backbones else name
    _check_folder(name, path)
    try:
        config = AutoConfig.from_pretrained(path, num_labels=outputs)
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # the new output layer's weights
            # Encoders are often stored as float16, which trains badly and slowly: float32 whatever the file says.
            kind = AutoModelForQuestionAnswering if span else AutoModelForSequenceClassification
            model, report = kind.from_pretrained(
                path, config=config, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
            )
        tokenizer = AutoTokenizer.from_pretrained(path, use_fast=True)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise _not_loaded(name, error) from None
    if not tokenizer.is_fast:
        raise UserError(f"--backbone '{name}' has no fast tokenizer, which is needed to tell a pair's texts apart.")
    # A tokenizer file may carry truncation and padding of its own (MiniLM's says 128): ours are the options.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    if pooled is None:
        has_pooler = getattr(model.base_model, "pooler", None) is not None
        found = has_pooler and not any(".pooler." in f".{key}" for key in report["missing_keys"])
        pooled = bool(getattr(config, "pooler_is_trained", found))
        _renew_output(model, report["missing_keys"], seed)
    _check_weights(name, model, [*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])])
    return Encoder(model, tokenizer, pooled)


def _check_folder(name: str, path: str) -> None:
    folder = Path(path)
    if not folder.is_dir():
        if name.startswith((".", "/", "~")):
            raise UserError(f"--backbone '{name}': there is no such folder.")
        return
    if not (folder / "config.json").exists():
        raise UserError(f"--backbone '{name}': the folder has no config.json, so it is not a transformers model.")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise UserError(f"--backbone '{name}': the folder has a config.json but no weights (model.safetensors).")


def _renew_output(model: Any, missing: Iterable[str], seed: int) -> None:
    """A checkpoint that was fine-tuned before brings its old output layer along: start that afresh, by the seed."""
    if any(not key.startswith(model.base_model_prefix + ".") for key in missing):
        return  # it was new anyway
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if not name.startswith(model.base_model_prefix + "."):
            fresh = torch.randn(parameter.shape, generator=draw) * model.config.initializer_range
            parameter.data = fresh if parameter.ndim > 1 else torch.zeros_like(parameter)


def _check_weights(name: str, model: Any, missing: Iterable[str]) -> None:
    """Refuse a checkpoint that lacks encoder layers: transformers would fill them with noise."""
    prefix = model.base_model_prefix + "."
    lost = [key for key in missing if key.startswith(prefix) and ".pooler." not in key]
    if lost:
        raise UserError(
            f"--backbone '{name}': the weights lack {len(lost)} tensors of the encoder's shape, e.g. {lost[0]}."
        )


def _not_loaded(name: str, error: Exception) -> UserError:
    first = str(error).strip().split("\n")[0]
    if "/" in name or Path(name).exists():
        return UserError(f"--backbone '{name}' could not be loaded: {first}")
    ways = "Give a name of `bertvision ls backbones`, a folder, or a name of the Hugging Face hub"
    return unknown("backbone", name, list(backbones), f"{ways} (which says: {first}).")
