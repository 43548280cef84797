"""Splits and data orders: functions of names, seeds and steps."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from fp8migrate.jobs import DataOrder
from fp8migrate.worker.data.python_source import load_documents
from fp8migrate.worker.data.sampling import Corpus, TrainingStream, build_corpus, training_stream, validation_set
from fp8migrate.worker.tasks.train import document_losses
from tests.worker import runs


def some_documents() -> tuple[tuple[str, bytes], ...]:
    """400 documents of 50 to 500 bytes, each marked with its own number."""
    generator = np.random.default_rng(0)
    return tuple((f"{i}.py", f"<{i}>".encode() * int(generator.integers(10, 100))) for i in range(400))


def split_of(corpus: Corpus, name: str, content: bytes) -> set[str]:
    found = {split for split, text in corpus.streams.items() if content in text.tobytes()}
    return found | {"validation" for other, _ in corpus.validation if other == name}


def test_every_document_is_in_exactly_one_split() -> None:
    documents = some_documents()
    corpus = build_corpus(documents)
    places = [split_of(corpus, name, content) for name, content in documents]
    assert all(len(place) == 1 for place in places)
    shares = {split: places.count({split}) / 400 for split in ("validation", "trunk", "unseen")}
    assert shares == pytest.approx({"validation": 0.05, "trunk": 0.475, "unseen": 0.475}, abs=0.06)
    separators = sum(places.count({split}) - 1 for split in ("trunk", "unseen"))
    kept = sum(len(text) for text in corpus.streams.values()) + sum(len(text) for _, text in corpus.validation)
    assert kept - separators == corpus.num_tokens == sum(len(content) for _, content in documents)


def test_a_document_keeps_its_split_whatever_stands_beside_it() -> None:
    documents = some_documents()
    whole, part = build_corpus(documents), build_corpus(documents[::2])
    assert all(split_of(whole, *document) == split_of(part, *document) for document in documents[::2])


def test_the_corpus_is_named_by_names_and_contents_in_order() -> None:
    documents = some_documents()
    corpus = build_corpus(documents)
    joined = b"".join(name.encode() + b"\0" + content + b"\0" for name, content in documents)
    assert corpus.sha256 == hashlib.sha256(joined).hexdigest()
    assert build_corpus(documents[:-1]).sha256 != corpus.sha256
    again = build_corpus(documents)
    assert all(np.array_equal(again.streams[split], corpus.streams[split]) for split in corpus.streams)


def test_the_standard_librarys_documents() -> None:
    names = [name for name, _ in load_documents()]
    assert names == sorted(names)
    assert {"ast.py", "json/decoder.py"} <= set(names)
    assert not [name for name in names if "site-packages" in name]


def windows_of(stream: TrainingStream, first: int, batches: int) -> NDArray[np.uint8]:
    return np.concatenate([stream.batch(step) for step in range(first, first + batches)])


def numbered_stream(seed: int = 3) -> TrainingStream:
    """60 windows of 4 tokens, each starting with its number; batches of 5."""
    text = np.zeros(241, dtype=np.uint8)
    text[::4] = np.arange(61)
    return TrainingStream(text, sequence_length=4, batch_size=5, seed=seed)


def test_a_pass_repeats_no_window_and_leaves_none_out() -> None:
    stream = numbered_stream()
    assert stream.num_windows == 60
    first, second = (windows_of(stream, start, 12)[:, 0].tolist() for start in (0, 12))
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second
    assert (stream.passes(12), stream.passes(6)) == (1.0, 0.5)


def test_a_window_carries_the_token_after_it() -> None:
    batch = numbered_stream().batch(0)
    assert batch.shape == (5, 5)
    assert (batch[:, 4] == batch[:, 0] + 1).all()


def test_a_batch_that_spans_two_passes_takes_the_rest_of_the_first() -> None:
    text = np.zeros(7 * 4 + 1, dtype=np.uint8)
    text[::4] = np.arange(8)
    stream = TrainingStream(text, sequence_length=4, batch_size=5, seed=0)
    seen = windows_of(stream, 0, 3)[:, 0].tolist()
    assert sorted(seen[:7]) == sorted(seen[7:14]) == list(range(7))


def test_a_batch_is_a_function_of_seed_and_step_alone() -> None:
    stream, fresh = numbered_stream(), numbered_stream()
    in_order = [stream.batch(step) for step in range(30)]
    for step in (29, 0, 13, 12, 11):
        assert np.array_equal(fresh.batch(step), in_order[step])
    assert not np.array_equal(numbered_stream(seed=4).batch(0), in_order[0])


def test_an_order_reads_its_own_split() -> None:
    corpus = runs.corpus()
    for split in ("trunk", "unseen"):
        stream = training_stream(corpus, DataOrder(split=split, seed=0), 16, 4)
        assert stream.text is corpus.streams[split]
        assert all(window.tobytes() in corpus.streams[split].tobytes() for window in stream.batch(0))


def test_validation_windows_hold_what_their_documents_hold() -> None:
    corpus = build_corpus(some_documents())
    texts = {name: text.tobytes() for name, text in corpus.validation}
    found = validation_set(corpus, sequence_length=16, num_tokens=800)
    assert found.windows.shape == (50, 17)
    for window, owner in zip(found.windows, found.document_of_window, strict=True):
        assert window.tobytes() in texts[found.documents[owner]]
    assert set(found.document_of_window) == set(range(len(found.documents)))


def test_no_held_out_token_is_predicted_twice() -> None:
    """All windows of all documents: what each predicts follows what the one before it predicts."""
    corpus = build_corpus(some_documents())
    found = validation_set(corpus, sequence_length=16, num_tokens=10**6)
    assert len(found.windows) == sum((len(text) - 1) // 16 for _, text in corpus.validation)
    for (a, owner), (b, after) in pairwise(zip(found.windows, found.document_of_window, strict=True)):
        assert owner != after or a[-1] == b[0]
    for number, name in enumerate(found.documents):
        text = dict(corpus.validation)[name]
        predicted = found.windows[found.document_of_window == number][:, 1:].flatten()
        assert np.array_equal(predicted, text[1 : 1 + predicted.size])


def test_the_same_tokens_are_evaluated_in_every_run() -> None:
    corpus = build_corpus(some_documents())
    first, second, more = (validation_set(corpus, 16, tokens) for tokens in (320, 320, 640))
    assert first.documents_sha256 == second.documents_sha256 != more.documents_sha256
    assert (len(first.windows), len(more.windows)) == (20, 40)


def test_documents_too_short_for_a_window_are_an_error() -> None:
    corpus = build_corpus(some_documents())
    with pytest.raises(ValueError, match=r"sequence_length \+ 1 = 5001 tokens"):
        validation_set(corpus, 5000, 1024)


def test_document_sums_are_those_of_their_windows() -> None:
    """By an evaluation of its own: window by window, float64."""
    model = runs.new_state(runs.BF16).model
    held_out = runs.validation()
    nll, tokens = document_losses(model, held_out)
    expected = np.zeros(len(held_out.documents))
    with torch.no_grad():
        for window, owner in zip(held_out.windows, held_out.document_of_window, strict=True):
            row = torch.from_numpy(window.astype(np.int64))
            log_p = F.log_softmax(model(row[None, :-1])[0].double(), dim=-1)
            expected[owner] -= float(log_p[torch.arange(len(row) - 1), row[1:]].sum())
    np.testing.assert_allclose(nll, expected, rtol=1e-5)
    assert tokens.tolist() == (np.bincount(held_out.document_of_window) * 16).tolist()
    assert tokens.sum() == runs.DATA.validation_tokens
