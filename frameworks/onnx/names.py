"""Names of an ONNX file as names that C and Python allow."""

from __future__ import annotations

import re
from itertools import chain, count

from tilewright.errors import SpecError
from tilewright.spec.names import check_name
from tilewright.spec.network.value import TAKEN

_OTHER = re.compile(r"[^A-Za-z0-9]+")


class Names:
    """Gives each thing a name of its own. ``of`` maps names of the file to those given."""

    def __init__(self, reserved: tuple[str, ...] = ()) -> None:
        self.of: dict[str, str] = {}
        self._given = {*TAKEN, *reserved}

    def give(self, name: str, what: str = "a tensor") -> str:
        """Return the name for ``name``, for example ``onnx_Flatten_0`` for ``onnx::Flatten_0``."""
        if name not in self.of:
            self.of[name] = self.another(name, what)
        return self.of[name]

    def another(self, name: str, what: str) -> str:
        """Return a new name that resembles ``name``."""
        plain = _OTHER.sub("_", name).strip("_") or "n"
        plain = f"n{plain}" if plain[0].isdigit() else plain
        numbered = (f"{plain}_{number}" for number in count(2))
        for found in chain((plain, f"n_{plain}"), numbered):
            if found in self._given or re.fullmatch(r"out\d*", found):
                continue
            try:
                check_name(found, what)
            except SpecError:
                continue
            self._given.add(found)
            return found
        raise AssertionError(name)
