"""Sentences about an image of a class, for text encoders: FedBM's scheme, from nouns for the pictures of a data set.

Each noun with its article stands in each frame: ``an OCT scan of {name}``, ``{name} presented in an OCT scan``. The
name of the class, or other words for it, takes the place of ``{name}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FRAMES = (
    "{noun} of {name}",
    "{name} presented in {noun}",
    "{noun} shows {name}",
    "{noun} shows the presence of {name}",
    "the presence of {name} in {noun}",
)
GENERAL = ("image", "photo")
"""Nouns for the pictures of every data set."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How sentences speak of a data set's pictures and classes."""

    nouns: tuple[str, ...]
    """For its pictures, beside ``GENERAL``, without article: ``OCT scan``."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Class name -> what sentences call the class, where that is not its name."""

    def prompts(self) -> tuple[str, ...]:
        """The templates, five for every noun, each with ``{name}``."""
        nouns = [with_article(noun) for noun in (*GENERAL, *self.nouns)]
        return tuple(frame.replace("{noun}", noun) for noun in nouns for frame in FRAMES)

    def of(self, class_names: tuple[str, ...]) -> tuple[str, ...]:
        """What sentences call each of the classes."""
        return tuple(self.words.get(name, name) for name in class_names)


def with_article(noun: str) -> str:
    """The noun behind ``a`` or ``an``, by its first letter; letters that are read out one by one (``MRI``, ``X-ray``)
    by the sound of the first one's name.
    """
    first = noun.replace("-", " ").split()[0]
    vowels = "AEFHILMNORSX" if first.isupper() else "AEIOUaeiou"
    return f"{'an' if noun[0] in vowels else 'a'} {noun}"
