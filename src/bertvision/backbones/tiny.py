"""tiny: a random 3-layer BERT of 32 features with a small English vocabulary, for tests that must take seconds."""

import string
import tempfile
from functools import cache
from pathlib import Path

from bertvision.backbones import Backbone, backbones

WORDS = """the a an of to and in is was it that he she they we you i not no on for with as at by from this but his her
their our are be have has had do did will would can could all one two more most very good bad great poor film movie
story man woman people who what when where why how said says new old first last time year day way like make made plays
red blue green big small fast slow happy sad cat dog house car city river music book""".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary() -> dict[str, int]:
    characters = string.ascii_lowercase + string.digits + string.punctuation
    pieces = SPECIAL + WORDS + list(characters) + ["##" + c for c in characters]
    return {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}


@cache
def folder() -> Path:
    """Written once per process, into a temporary folder: the weights are random but always the same."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    place = tempfile.TemporaryDirectory(prefix="bertvision-tiny-")
    _keep.append(place)
    path = Path(place.name)
    words = vocabulary()
    (path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    BertTokenizerFast(vocab=words, do_lower_case=True, model_max_length=128).save_pretrained(path)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(path)
    return path


_keep: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends
backbones.add("tiny", Backbone("random 3 layers x 32, for tests", folder))
