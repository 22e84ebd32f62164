"""Which heads a store can feed."""

from bertvision.errors import UserError
from bertvision.heads.base import Head
from bertvision.progress import Progress
from bertvision.states.hidden import DERIVED_VIEWS
from bertvision.stores.reader import Store


def fed(heads: dict[str, Head], store: Store, progress: Progress) -> dict[str, Head]:
    """The heads that the store can feed; the others are skipped and named."""
    header = store.header
    left, out = {}, []
    for name, head in heads.items():
        wanted = set(head.views) if head.body is not None else set()
        if head.cosines or wanted & set(DERIVED_VIEWS):
            wanted = (wanted - set(DERIVED_VIEWS)) | {"first", "second"}
        if header.tokens or wanted <= set(header.views):
            left[name] = head
        else:
            out.append(name)
    if out:
        progress.say(f"skipped, as the store does not have their views or tokens: {', '.join(out)}")
    if out and not left:
        raise UserError(f"--heads: '{store.place}' has {', '.join(header.views)}, which cannot feed {', '.join(out)}.")
    return left
