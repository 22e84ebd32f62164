"""Name -> factory, filled by decorators in the files of one package, with did-you-mean errors."""

import difflib
import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from bertvision.errors import UserError

T = TypeVar("T")


def unknown(noun: str, name: str, known: list[str], listing: str = "") -> UserError:
    """The error for a name that is not known, with the nearest one that is."""
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    guess = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"There is no {noun} called '{name}'.{guess} {listing or 'Known: ' + ', '.join(known) + '.'}")


class Registry(Generic[T]):
    """The named things of one family; the family's package is scanned once, when a name is first asked for."""

    def __init__(self, noun: str, package: str, plural: str = "") -> None:
        self.noun, self.plural = noun, plural or f"{noun}s"
        self.package = package
        self._entries: dict[str, T] = {}
        self._scanned = False

    def add(self, name: str, entry: T, *, replace: bool = False) -> T:
        if name in self._entries and not replace:
            raise ValueError(f"two {self.plural} are called '{name}'")
        self._entries[name] = entry
        return entry

    def _scan(self) -> None:
        if not self._scanned:
            self._scanned = True
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
            for plugin in entry_points(group=f"bertvision.{self.plural}"):  # of packages beside this one
                plugin.load()

    def __iter__(self) -> Iterator[str]:
        self._scan()
        return iter(self._entries)

    def __contains__(self, name: str) -> bool:
        self._scan()
        return name in self._entries

    def __getitem__(self, name: str) -> T:
        self._scan()
        if name not in self._entries:
            listing = f"`bertvision ls {self.plural}` lists all {len(self._entries)}."
            raise unknown(self.noun, name, list(self._entries), listing)
        return self._entries[name]
