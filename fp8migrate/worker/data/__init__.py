"""Data sources: documents of byte tokens. A new one is one file and one line in `SOURCES`."""

from collections.abc import Callable

from fp8migrate.plan.schema import PythonSourceData
from fp8migrate.worker.data.python_source import load_documents
from fp8migrate.worker.data.sampling import Corpus, build_corpus

SOURCES: dict[str, Callable[[], tuple[tuple[str, bytes], ...]]] = {"python_source": load_documents}


def load_corpus(settings: PythonSourceData) -> Corpus:
    """Read the source's documents and split them."""
    return build_corpus(SOURCES[settings.kind]())


__all__ = ["SOURCES", "Corpus", "load_corpus"]
