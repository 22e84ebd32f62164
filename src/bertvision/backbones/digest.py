"""Digests of an encoder's weights and tokenizer, to recognise the encoder of a run or a store."""

import hashlib

from bertvision.backbones.encoder import Encoder


def weights_digest(encoder: Encoder) -> str:
    """Digest of the pre-trained weights, without the output layer, which depends on the seed."""
    total = hashlib.sha256()
    for name, value in sorted(encoder.model.base_model.state_dict().items()):
        if encoder.pooled or not name.startswith("pooler."):
            total.update(name.encode())
            total.update(value.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def tokenizer_digest(encoder: Encoder) -> str:
    encoder.tokenizer.backend_tokenizer.no_truncation()  # the last call may have enabled it
    return hashlib.sha256(encoder.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
