"""Text as token ids, one per character: printable ASCII, one id for every other character, and the padding."""

from __future__ import annotations

PAD = 0
UNKNOWN = 1
_FIRST, _LAST = 0x20, 0x7E
VOCABULARY = _LAST - _FIRST + 3


def encode(text: str) -> list[int]:
    """The ids of a text's characters; anything but printable ASCII is UNKNOWN."""
    return [ord(c) - _FIRST + 2 if _FIRST <= ord(c) <= _LAST else UNKNOWN for c in text]


def decode(ids: list[int]) -> str:
    """The text of ids, without the padding; the unknown show as '\N{REPLACEMENT CHARACTER}'."""
    return "".join(chr(i - 2 + _FIRST) if i > UNKNOWN else "\N{REPLACEMENT CHARACTER}" for i in ids if i != PAD)
