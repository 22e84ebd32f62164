"""tiny: a random 3-layer BERT with 32 features and a small English vocabulary, for fast tests."""

import atexit
import shutil
import string
import tempfile
from functools import cache
from pathlib import Path

from bertvision.backbones import Backbone, backbones

WORDS = """the a an of to and in is was it that he she they we you i not no on for with as at by from this but his her
their our are be have has had do did will would can could all one two more most very good bad great poor film movie
story man woman people who what when where why how said says new old first last time year day way like make made plays
red blue green big small fast slow happy sad cat dog house car city river music book""".split()


@cache
def folder() -> Path:
    """A temporary folder, written once per process. The weights are random but always the same."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    path = Path(tempfile.mkdtemp(prefix="bertvision-tiny-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    characters = string.ascii_lowercase + string.digits + string.punctuation
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = special + WORDS + list(characters) + ["##" + c for c in characters]
    words = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
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


backbones.add("tiny", Backbone("random 3 layers x 32, for tests", folder))
