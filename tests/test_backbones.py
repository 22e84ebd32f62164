"""Backbones: states equal raw transformers', padding changes nothing, and broken encoders are refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertvision
from bertvision.backbones import packaged, tiny
from bertvision.backbones.encoder import Encoder, layers_of, load
from bertvision.backbones.tokenise import tokenise
from bertvision.errors import UserError
from bertvision.recipe import Recipe
from bertvision.states.hidden import places_of
from bertvision.types import Examples, Windows

PAIRS = Examples(["the cat is big", "a dog"], ["the small cat", "the dog and the river is fast"], None)
SMALL = {
    "vocab_size": 200,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
LONGEST = {"max_position_embeddings": 64}
FROM_PADDING = {"max_position_embeddings": 66, "pad_token_id": 1}  # positions 0 and 1 are for padding
ARCHITECTURES = {
    "bert": (transformers.BertConfig(**SMALL, **LONGEST), True),
    "roberta": (transformers.RobertaConfig(**SMALL, **FROM_PADDING), False),
    "mpnet": (transformers.MPNetConfig(**SMALL, **FROM_PADDING), False),
    "longformer": (transformers.LongformerConfig(**SMALL, **FROM_PADDING, attention_window=12), False),
    "xlm-roberta-xl": (transformers.XLMRobertaXLConfig(**SMALL, **FROM_PADDING), False),
    "deberta-v2": (
        transformers.DebertaV2Config(
            **SMALL, **LONGEST, relative_attention=True, position_biased_input=False,
            pos_att_type=["p2c", "c2p"], position_buckets=16,
        ),
        False,
    ),
    "electra": (transformers.ElectraConfig(**SMALL, **LONGEST, embedding_size=32), True),
    "distilbert": (
        transformers.DistilBertConfig(vocab_size=200, dim=32, n_layers=2, n_heads=2, hidden_dim=64, **LONGEST),
        False,
    ),
    "modernbert": (
        transformers.ModernBertConfig(
            **SMALL, **LONGEST, **dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id"), 0)
        ),
        False,
    ),
}  # fmt: skip


def saved(name: str, folder: Path) -> Path:
    """A random encoder of the architecture, with tiny's tokenizer (ids below 200), as a model folder."""
    config, types = ARCHITECTURES[name]
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny.folder())
    if not types:
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(folder)
    return folder


def tokenised(encoder: Encoder, examples: Examples, limit: int) -> Windows:
    return tokenise(encoder, examples, Recipe(max_length=limit), split_contexts=False).together


# Longformer finds the question by three separators, which only its own tokenizer makes.
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "longformer"])
def test_every_architecture_answers_per_token(name: str, tmp_path: Path) -> None:
    """Start and end logits of a window do not depend on its neighbours in the batch, with and without token types."""
    encoder = load(str(saved(name, tmp_path / name)), 2, seed=0, span=True).eval()
    windows = tokenise(encoder, PAIRS, Recipe(max_length=40, stride=8), split_contexts=True).together
    with torch.no_grad():
        together, layers, _ = encoder(encoder.batch(windows, np.array([0, 1])).inputs)
        alone, _, _ = encoder(encoder.batch(windows, np.array([0])).inputs)
    assert together.shape == (2, int(windows.lengths.max()), 2)
    assert len(layers) == encoder.layers
    assert torch.allclose(together[:1, : alone.shape[1]], alone, atol=1e-5)
    places = places_of(encoder.batch(windows, np.array([0, 1])).segments)
    assert places[:, 0].all()
    assert places.sum(1).tolist() == [1 + 3, 1 + 7]  # [CLS] and the words of the second text


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gives_the_states_of_raw_transformers(name: str, tmp_path: Path) -> None:
    encoder = load(str(saved(name, tmp_path)), 2, seed=0).eval()
    windows = tokenised(encoder, PAIRS, 64)
    # The texts of a pair are told apart also without token types.
    assert windows.segments[: windows.offsets[1]].tolist() == [0, 1, 1, 1, 1, 0, 2, 2, 2, 0]
    for row in range(2):
        batch = encoder.batch(windows, np.array([row]))
        with torch.no_grad():
            logits, layers, _ = encoder(batch.inputs)
            raw = encoder.model(**batch.inputs, output_hidden_states=True)
            wide = {"global_attention_mask": torch.eye(1, batch.mask.shape[1])} if name == "longformer" else {}  # [CLS]
            base = encoder.model.base_model(**batch.inputs, **wide)
        assert len(layers) == encoder.layers == 3
        assert torch.equal(logits, raw.logits)
        assert torch.allclose(layers[-1], base.last_hidden_state, atol=1e-6)
        assert layers[0].shape[-1] == encoder.features == 32
    with torch.no_grad():
        alone = encoder(encoder.batch(windows, np.array([0])).inputs)
        padded = encoder(encoder.batch(windows, np.array([0, 1])).inputs)
    assert torch.allclose(alone[0][0], padded[0][0], atol=1e-5)
    length = int(windows.lengths[0])
    assert torch.allclose(alone[1][-1][0], padded[1][-1][0, :length], atol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_can_be_frozen_and_run_in_part(name: str, tmp_path: Path) -> None:
    encoder = load(str(saved(name, tmp_path)), 2, seed=0).eval()
    batch = encoder.batch(tokenised(encoder, PAIRS, 64), np.array([0, 1]))
    stack = list(layers_of(encoder.model.base_model))
    with torch.no_grad():
        whole = encoder(batch.inputs)
        for depth in (0, 1, 2):
            with encoder.up_to(depth):
                part = encoder(batch.inputs)[1][: depth + 1]
            assert all(torch.equal(one, other) for one, other in zip(part, whole[1], strict=False)), depth
            assert len(part) == depth + 1
        assert torch.equal(encoder(batch.inputs)[0], whole[0])
    assert list(layers_of(encoder.model.base_model)) == stack
    total = sum(p.numel() for p in encoder.parameters())
    encoder.freeze("1")
    part = sum(p.numel() for p in encoder.parameters() if p.requires_grad)
    encoder.freeze("all")
    rest = sum(p.numel() for p in encoder.parameters() if p.requires_grad)
    assert 0 < rest < part < total
    with pytest.raises(UserError, match="has 2 layers"):
        encoder.freeze("7")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_text_is_read_up_to_the_last_position_and_no_further(name: str, tmp_path: Path) -> None:
    """Some count positions from the padding index; those with relative positions keep to what they were trained on."""
    encoder = load(str(saved(name, tmp_path)), 2, seed=0).eval()
    encoder.tokenizer.model_max_length = 10**30  # as those have that state no limit
    assert encoder.longest == 64
    long = Examples(["the cat " * 100], None, None)
    windows = tokenised(encoder, long, 512)
    assert (windows.truncated, windows.lengths.tolist()) == (1, [64])
    with torch.no_grad():
        _, layers, _ = encoder(encoder.batch(windows, np.array([0])).inputs)
    assert {tuple(layer.shape) for layer in layers} == {(1, 64, 32)}  # Longformer pads inside
    if name in ("modernbert", "deberta-v2"):
        return
    beyond = Windows(*(np.resize(flat, 65) for flat in (windows.tokens, windows.types, windows.segments)),
                     np.array([0, 65]), 0, np.array([0]))  # fmt: skip
    with pytest.raises((IndexError, RuntimeError)), torch.no_grad():
        encoder(encoder.batch(beyond, np.array([0])).inputs)


def test_the_packaged_encoder_pools_and_tokenises_without_its_baked_in_limits() -> None:
    encoder = load("minilm-l6", 2, seed=0)
    assert (encoder.layers, encoder.features, encoder.pooled, encoder.longest) == (7, 384, True, 512)
    windows = tokenised(encoder, Examples(["word " * 300, "word"], None, None), 400)
    assert (windows.truncated, windows.lengths.tolist()) == (0, [302, 3])
    with torch.no_grad():
        batch = encoder.batch(windows, np.array([1]))
        assert torch.equal(encoder(batch.inputs)[2], encoder.model.base_model(**batch.inputs).pooler_output)


def test_weights_of_layers_are_not_told_where_the_pooler_is_among_them(table: Path, tmp_path: Path) -> None:
    """Its output is not normalised as layers are, and it is none of them."""
    names = ["learned-pooling:layers=0-2:normalised=yes", "learned-pooling-views:layers=0-2"]
    run = bertvision.fit(
        "table", train=table, heads=",".join(names), epochs=0, polish=1, limit=40, out=tmp_path / "run", quiet=True
    )
    weights = run.results.marks[0].layer_weights
    assert {name.removesuffix("+polish"): len(found) for name, found in weights.items()} == {names[1]: 3}


def test_altered_packaged_weights_are_noticed(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    shutil.copy(packaged.folder() / "model.safetensors", weights)
    packaged.check(weights, packaged.SHA256)
    with weights.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\x00\x01")
    with pytest.raises(UserError, match="sha256"):
        packaged.check(weights, packaged.SHA256)


def test_float16_weights_without_pooler_are_loaded_as_float32_with_no_pooled_output(tmp_path: Path) -> None:
    model = transformers.AutoModel.from_pretrained(tiny.folder(), add_pooling_layer=False, dtype=torch.float16)
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tiny.folder()).save_pretrained(tmp_path)
    encoder = load(str(tmp_path), 2, seed=0)
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}
    assert not encoder.pooled
    assert encoder(encoder.batch(tokenised(encoder, PAIRS, 64), np.array([0])).inputs)[2] is None


def test_the_seed_decides_the_output_layer_and_nothing_else() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, three = load("tiny", 2, seed=0), load("tiny", 2, seed=0), load("tiny", 2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.model.classifier.weight, two.model.classifier.weight)
    assert not torch.equal(one.model.classifier.weight, three.model.classifier.weight)


def test_broken_encoders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'minilm-l6'"):
        load("minilm", 2, seed=0)
    with pytest.raises(UserError, match="no such folder"):
        load("./nowhere", 2, seed=0)
    with pytest.raises(UserError, match=r"no config.json"):
        load(str(tmp_path), 2, seed=0)
    shutil.copytree(tiny.folder(), tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights"):
        load(str(tmp_path / "m"), 2, seed=0)
    cut = (tiny.folder() / "model.safetensors").read_bytes()[:2000]
    (tmp_path / "m" / "model.safetensors").write_bytes(cut)
    with pytest.raises(UserError, match="could not be loaded"):
        load(str(tmp_path / "m"), 2, seed=0)


UNREADABLE = {
    "padding behind it": transformers.XLNetConfig(vocab_size=200, d_model=32, n_layer=2, n_head=2, d_inner=64),
    "every layer and token": transformers.FunnelConfig(
        vocab_size=200, block_sizes=[1, 1], d_model=32, n_head=2, d_head=16, d_inner=64
    ),
    "in batches": transformers.GPT2Config(vocab_size=200, n_embd=32, n_layer=2, n_head=2),
}


@pytest.mark.parametrize("reason", UNREADABLE)
def test_architectures_that_heads_cannot_read_are_refused(reason: str, tmp_path: Path) -> None:
    """Answers must not depend on padding (XLNet) and states must be of tokens (Funnel shortens the sequence)."""
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_config(UNREADABLE[reason]).save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny.folder())
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=reason):
        load(str(tmp_path), 2, seed=0)


def test_weights_of_another_depth_are_refused(tmp_path: Path) -> None:
    shutil.copytree(tiny.folder(), tmp_path / "m")
    config = (tmp_path / "m" / "config.json").read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 5')
    (tmp_path / "m" / "config.json").write_text(config)
    with pytest.raises(UserError, match="the weights lack"):
        load(str(tmp_path / "m"), 2, seed=0)


def test_a_fine_tuned_checkpoint_starts_with_a_new_output_layer(tmp_path: Path) -> None:
    """Even one with another number of labels: only the encoder is taken over."""
    first = load("tiny", 3, seed=0)
    first.save(tmp_path)
    same, again, other = load(str(tmp_path), 3, seed=1), load(str(tmp_path), 3, seed=1), load(str(tmp_path), 2, seed=1)
    assert other.model.classifier.weight.shape == (2, 32)
    assert torch.equal(same.model.classifier.weight, again.model.classifier.weight)
    assert not torch.equal(same.model.classifier.weight, first.model.classifier.weight)
    words = [encoder.model.base_model.embeddings.word_embeddings.weight for encoder in (first, same, other)]
    assert torch.equal(words[0], words[1])
    assert torch.equal(words[0], words[2])
    kept = load(str(tmp_path), 3, seed=1, pooled=True)
    assert torch.equal(kept.model.classifier.weight, first.model.classifier.weight)
