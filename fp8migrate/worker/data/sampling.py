"""Splits of a corpus and the order in which a run sees it: functions of a seed and a step, with no state to save.

Documents are dealt to splits by a hash of their name, so a document is in one split on every machine: 5 % validation, the rest
halved between `trunk` (what a trunk trains on) and `unseen` (what branches and screens train on, new to the trunk).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp8migrate.jobs import DataOrder

_VALIDATION_SHARE, _TRUNK_SHARE = 0.05, 0.475
# Which held-out windows are evaluated is the same in every run.
_VALIDATION_SEED = 0


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text by split. `streams`: the split's documents end to end, uint8. `validation`: (name, uint8 text) per document."""

    streams: Mapping[str, NDArray[np.uint8]]
    validation: tuple[tuple[str, NDArray[np.uint8]], ...]
    sha256: str
    num_tokens: int


@dataclass(frozen=True, eq=False)
class ValidationSet:
    """Held-out windows [n, t + 1] with the document each belongs to (an index into `documents`)."""

    windows: NDArray[np.uint8]
    document_of_window: NDArray[np.int64]
    documents: tuple[str, ...]

    @property
    def documents_sha256(self) -> str:
        """Of the windows and their documents: equal in two runs that evaluate the same tokens."""
        digest = hashlib.sha256(self.windows.tobytes())
        digest.update(self.document_of_window.tobytes())
        return digest.hexdigest()


def build_corpus(documents: tuple[tuple[str, bytes], ...]) -> Corpus:
    """Deal documents to splits; within a split they stand in the order of their hashes."""
    digest = hashlib.sha256()
    dealt: dict[str, list[tuple[float, str, bytes]]] = {"validation": [], "trunk": [], "unseen": []}
    for name, content in documents:
        digest.update(name.encode() + b"\0" + content + b"\0")
        place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2.0**64
        split = "validation" if place < _VALIDATION_SHARE else "trunk" if place < _VALIDATION_SHARE + _TRUNK_SHARE else "unseen"
        dealt[split].append((place, name, content))
    streams = {
        split: np.frombuffer(b"\n".join(content for _, _, content in sorted(dealt[split])), dtype=np.uint8)
        for split in ("trunk", "unseen")
    }
    validation = tuple((name, np.frombuffer(content, dtype=np.uint8)) for _, name, content in sorted(dealt["validation"]))
    return Corpus(streams, validation, digest.hexdigest(), sum(len(content) for _, content in documents))


def validation_set(corpus: Corpus, sequence_length: int, num_tokens: int) -> ValidationSet:
    """About num_tokens held-out tokens: windows drawn without regard to their document, so distributed as training windows are.

    Raises ValueError where no held-out document holds a single window.
    """
    wanted = max(1, num_tokens // sequence_length)
    places = [
        (index, start)
        for index, (_, text) in enumerate(corpus.validation)
        for start in range(0, len(text) - sequence_length, sequence_length)
    ]
    if not places:
        raise ValueError(f"no held-out document holds sequence_length + 1 = {sequence_length + 1} tokens")
    chosen = np.random.default_rng(_VALIDATION_SEED).permutation(len(places))[:wanted]
    drawn = [places[i] for i in sorted(chosen)]
    windows = np.stack([corpus.validation[index][1][start : start + sequence_length + 1] for index, start in drawn])
    owners = np.array([index for index, _ in drawn])
    used = np.unique(owners)
    return ValidationSet(windows, np.searchsorted(used, owners), tuple(corpus.validation[i][0] for i in used))


@dataclass(frozen=True, eq=False)
class TrainingStream:
    """Batches of one data order. Each pass over the windows has its own permutation."""

    text: NDArray[np.uint8]
    sequence_length: int
    batch_size: int
    seed: int

    @property
    def num_windows(self) -> int:
        return (len(self.text) - 1) // self.sequence_length

    def passes(self, num_steps: int) -> float:
        """How many times the text is seen in num_steps steps."""
        return num_steps * self.batch_size / self.num_windows

    def batch(self, step: int) -> NDArray[np.uint8]:
        """Tokens [batch, t + 1] of the step-th batch, counted from 0."""
        first = step * self.batch_size
        places = np.arange(first, first + self.batch_size)
        order = np.array([self._order(int(p) // self.num_windows)[int(p) % self.num_windows] for p in places])
        starts = order[:, None] * self.sequence_length + np.arange(self.sequence_length + 1)[None, :]
        return self.text[starts]

    def _order(self, turn: int) -> NDArray[np.int64]:
        cached: dict[int, NDArray[np.int64]] = self.__dict__.setdefault("_orders", {})
        if turn not in cached:
            cached.clear()
            cached[turn] = np.random.default_rng((self.seed, turn)).permutation(self.num_windows)
        return cached[turn]


def training_stream(corpus: Corpus, order: DataOrder, sequence_length: int, batch_size: int) -> TrainingStream:
    return TrainingStream(corpus.streams[order.split], sequence_length, batch_size, order.seed)
