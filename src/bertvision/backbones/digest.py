"""Digests of an encoder's weights and tokenizer: is this the encoder that a run or a store was made with?"""

import hashlib

from bertvision.backbones.encoder import Encoder


def weights_digest(encoder: Encoder) -> str:
    """Digest of the pre-trained weights, without the new output layer, which the seed decides."""
    total = hashlib.sha256()
    for name, value in sorted(encoder.model.base_model.state_dict().items()):
        if encoder.pooled or not name.startswith("pooler."):
            total.update(name.encode())
            total.update(value.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def tokenizer_digest(encoder: Encoder) -> str:
    encoder.tokenizer.backend_tokenizer.no_truncation()  # the last call may have left it switched on
    return hashlib.sha256(encoder.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
