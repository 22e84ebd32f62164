"""Any transformers encoder with its own output layer: logits and the hidden states of every layer.

The only file that loads transformers' models and tokenizers.
"""

from collections.abc import Iterator
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
        self.model, self.tokenizer = model, tokenizer
        self.pooled = pooled  # does it have a pooler, and was that pre-trained?
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
        """Layers of hidden states, including the embedding output."""
        return int(self.model.config.num_hidden_layers) + 1

    @property
    def features(self) -> int:
        return int(self.model.config.hidden_size)

    @property
    def longest(self) -> int:
        """The maximum number of tokens. RoBERTa and its relatives count positions from the padding index, which their
        position embedding knows; encoders with relative positions have none."""
        limits = [getattr(self.model.config, "max_position_embeddings", None), self.tokenizer.model_max_length]
        for name, module in self.model.base_model.named_modules():
            if name.rpartition(".")[2] == "position_embeddings" and hasattr(module, "weight"):
                padding = getattr(module, "padding_idx", None)
                limits.append(len(module.weight) - (0 if padding is None else padding + 1))
        return int(min(limit for limit in limits if limit is not None and limit > 0))  # XLNet's is -1

    def batch(self, windows: Windows, rows: np.ndarray) -> Batch:
        """Pad the given windows to the longest among them."""
        lengths = windows.offsets[rows + 1] - windows.offsets[rows]
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
        """Freeze `none`, `embeddings`, these and the first N layers, or `all` except the output layer."""
        if what in (None, "none"):
            return
        base, layers = self.model.base_model, layers_of(self.model.base_model)
        if what.isdigit() and int(what) > len(layers):
            raise UserError(f"--freeze {what}: this encoder has {len(layers)} layers.")
        if what != "all" and not hasattr(base, "embeddings"):
            raise UserError(f"--freeze {what}: this encoder ({base.config.model_type}) has no embeddings to freeze.")
        lowest = layers[: int(what)] if what.isdigit() else ()
        for module in [base] if what == "all" else [base.embeddings, *lowest]:
            module.requires_grad_(False)

    @contextmanager
    def up_to(self, depth: int) -> Iterator[None]:
        """Inside, layers above `depth` are not computed: `forward` returns fewer of them, and meaningless logits.

        Some encoders apply a final norm, beside their layers, to whichever layer is last. For these, one more layer is
        computed; and always one, without which DeBERTa fails.
        """
        base, stack = self.model.base_model, layers_of(self.model.base_model)
        beside = next(module for module in base.modules() if any(child is stack for child in module.children()))
        kept = max(1, depth + any(isinstance(child, nn.LayerNorm) for child in beside.children()))
        above = list(stack)[kept:]
        del stack[kept:]
        try:
            yield
        finally:
            stack.extend(above)

    def cut(self, depth: int) -> None:
        """Remove the layers above `depth`."""
        stack, config = layers_of(self.model.base_model), self.model.config
        if len(stack) != config.num_hidden_layers:
            raise UserError(f"The layers of this encoder ({config.model_type}) share weights and cannot be cut off.")
        if not 1 <= depth < len(stack):
            raise UserError(f"--depth must be 1 to {len(stack) - 1} (this encoder has {len(stack)}); got {depth}.")
        del stack[depth:]
        config.num_hidden_layers = depth
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:depth]

    def save(self, folder: Path) -> None:
        self.model.config.pooler_is_trained = self.pooled  # the weights alone do not show it
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def layers_of(base: nn.Module) -> nn.ModuleList:
    """The stack of transformer layers: the longest list of modules, whatever the architecture."""
    return max((module for module in base.modules() if isinstance(module, nn.ModuleList)), key=len)


def load(name: str, outputs: int, seed: int, *, span: bool = False, pooled: bool | None = None) -> Encoder:
    """The backbone `name` (registered, a folder, or on the hub) with an output layer of `outputs` logits: per text or,
    with `span`, per token.

    `pooled` says whether the pooler counts as trained, for checkpoints that were saved with a new one.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    path = str(backbones[name].folder()) if name in backbones else name
    _check_folder(name, Path(path))
    try:
        config = AutoConfig.from_pretrained(path, num_labels=outputs)
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # the new output layer's weights
            # Encoders are often stored as float16, which trains badly and slowly: always use float32.
            kind = AutoModelForQuestionAnswering if span else AutoModelForSequenceClassification
            model, report = kind.from_pretrained(
                path, config=config, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
            )
        tokenizer = AutoTokenizer.from_pretrained(path, use_fast=True)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise _not_loaded(name, error) from None
    if not tokenizer.is_fast:
        raise UserError(f"--backbone '{name}' has no fast tokenizer, which is needed to tell a pair's texts apart.")
    # A tokenizer file may have its own truncation and padding (MiniLM's says 128): only the options count.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    missing, prefix = list(report["missing_keys"]), model.base_model_prefix + "."
    if pooled is None:
        has_pooler = getattr(model.base_model, "pooler", None) is not None
        found = has_pooler and not any(".pooler." in f".{key}" for key in missing)
        pooled = bool(getattr(config, "pooler_is_trained", found))
        if all(key.startswith(prefix) for key in missing):
            _renew_output(model, seed)
    mismatched = [key for key, *_ in report["mismatched_keys"]]
    lost = [key for key in missing + mismatched if key.startswith(prefix) and ".pooler." not in key]
    if lost:  # transformers would fill them with noise
        raise UserError(f"--backbone '{name}': the weights lack {len(lost)} tensors of the encoder, e.g. {lost[0]}.")
    encoder = Encoder(model, tokenizer, pooled)
    _check_states(name, encoder)
    return encoder


def _check_states(name: str, encoder: Encoder) -> None:
    """Refuse architectures that heads cannot read: states must be of every token and layer, and an answer must not
    depend on the padding behind it (XLNet takes its answer from the last token)."""
    rows = encoder.tokenizer(["a", "a b c"], ["b", "d e f g"])["input_ids"]
    lengths, tokens = [len(row) for row in rows], np.concatenate(rows).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    windows = Windows(tokens, np.zeros_like(tokens), np.zeros_like(tokens), offsets, 0, np.arange(2))
    who = f"--backbone '{name}' ({encoder.model.config.model_type})"
    try:
        with torch.no_grad():
            alone, _, _ = encoder(encoder.batch(windows, np.array([0])).inputs)
            padded, layers, _ = encoder(encoder.batch(windows, np.array([0, 1])).inputs)
    except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{who} cannot read texts in batches: {str(error)[:200]}") from None
    shape = (2, max(lengths), encoder.features)
    if layers is None or [tuple(layer.shape) for layer in layers] != [shape] * encoder.layers:
        raise UserError(f"{who} does not give a hidden state for every layer and token, which heads need.")
    if not torch.allclose(alone[0], padded[0, : len(alone[0])], rtol=1e-2, atol=1e-3):
        raise UserError(f"{who}: its answer to a text changes with the padding behind it. Choose another encoder.")


def _check_folder(name: str, folder: Path) -> None:
    if not folder.is_dir():
        if name.startswith((".", "/", "~")):
            raise UserError(f"--backbone '{name}': there is no such folder.")
        return
    if not (folder / "config.json").exists():
        raise UserError(f"--backbone '{name}': the folder has no config.json, so it is not a transformers model.")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise UserError(f"--backbone '{name}': the folder has a config.json but no weights (model.safetensors).")


def _renew_output(model: Any, seed: int) -> None:
    """Replace the output layer of a checkpoint that was fine-tuned before by a new one, decided by the seed."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if not name.startswith(model.base_model_prefix + "."):
            if parameter.ndim > 1:
                parameter.data = torch.randn(parameter.shape, generator=draw) * model.config.initializer_range
            else:  # a bias or, of a norm, its weight
                parameter.data = torch.full_like(parameter, 0.0 if name.endswith("bias") else 1.0)


def _not_loaded(name: str, error: Exception) -> UserError:
    first = str(error).strip().split("\n")[0]
    if "/" in name or Path(name).exists():
        return UserError(f"--backbone '{name}' could not be loaded: {first}")
    choices = "Give a name from `bertvision ls backbones`, a folder, or a Hugging Face hub name"
    return unknown("backbone", name, list(backbones), f"{choices} (the hub says: {first}).")
