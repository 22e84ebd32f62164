"""BERTVision: partial fine-tuning of encoders, with small heads on the hidden states of every layer.

>>> import bertvision
>>> run = bertvision.fit("reviews.csv")
>>> bertvision.load(run).predict("What a film!")
{'label': 'positive', 'probabilities': {'negative': 0.02, 'positive': 0.98}}
"""

import importlib
from typing import TYPE_CHECKING, Any

from bertvision.errors import UserError

if TYPE_CHECKING:
    from bertvision.api import analyse, compare, cut, evaluate, extract, fit, load, open_store, report, train
    from bertvision.heads import register_head
    from bertvision.heads.base import Body, Head, Shape
    from bertvision.inference.evaluate import Comparison, Evaluation
    from bertvision.inference.model import Model
    from bertvision.metrics.intervals import Score
    from bertvision.runs.directory import Run
    from bertvision.stores.reader import Store

__version__ = "0.2.0"
__all__ = [
    "Body", "Comparison", "Evaluation", "Head", "Model", "Run", "Score", "Shape", "Store", "UserError", "analyse",
    "compare", "cut", "evaluate", "extract", "fit", "load", "open_store", "register_head", "report", "train",
]  # fmt: skip
# Where each name is: torch and transformers are imported when one is first used, not before.
_HOMES = {
    "register_head": "heads", "Body": "heads.base", "Head": "heads.base", "Shape": "heads.base",
    "Comparison": "inference.evaluate", "Evaluation": "inference.evaluate", "Model": "inference.model",
    "Score": "metrics.intervals", "Run": "runs.directory", "Store": "stores.reader",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bertvision' has no attribute '{name}'")
    return getattr(importlib.import_module(f"bertvision.{_HOMES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
