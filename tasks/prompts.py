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
    """The words of a data set's pictures and classes in sentences."""

    nouns: tuple[str, ...]
    """Nouns for its pictures, beside ``GENERAL``, without article: ``OCT scan``."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Class name -> word for the class in sentences, where that is not its name."""

    def prompts(self) -> tuple[str, ...]:
        """Return the templates, five for every noun, each with ``{name}``."""
        nouns = [with_article(noun) for noun in (*GENERAL, *self.nouns)]
        return tuple(frame.replace("{noun}", noun) for noun in nouns for frame in FRAMES)

    def of(self, class_names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words for each of the classes in sentences."""
        return tuple(self.words.get(name, name) for name in class_names)


def with_article(noun: str) -> str:
    """Return the noun behind ``a`` or ``an``.

    The first letter decides; of letters that are read out one by one (``MRI``, ``X-ray``), the sound of the first one's
    name.
    """
    first = noun.replace("-", " ").split()[0]
    vowels = "AEFHILMNORSX" if first.isupper() else "AEIOUaeiou"
    return f"{'an' if noun[0] in vowels else 'a'} {noun}"
