"""The configuration files that lie beside logs, as flat settings: `--lr-warmup: .01` and `lr_warmup: 1e-2` are one setting."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import yaml

MAX_BYTES = 1 << 20
# No configuration has more; a file that does is a bomb (aliases multiply) or no configuration.
MAX_SETTINGS = 20_000
MAX_DEPTH = 20
SUFFIXES = (".yaml", ".yml", ".json")
# Of one log: its stem with `.config`. Of a folder with one run, or one experiment: what the common programs write.
FOLDER_NAMES = ("config", "hparams", "args", "training_args", "train_config", "model_config")


@dataclass(frozen=True)
class Configuration:
    """Settings of one run, by normalised dotted names. files: where they stand; problems: files that could not be read."""

    settings: Mapping[str, str]
    files: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()


def configuration_beside(log: Path) -> Configuration:
    """What lies beside a log: `<stem>.config.yaml`, else `config.yaml`, `hparams.yaml`, `args.json`, … of its folder."""
    own = [log.with_name(f"{stem}.config{suffix}") for stem in _stems(log) for suffix in SUFFIXES]
    found = [path for path in dict.fromkeys(own) if path.is_file() and path != log][:1]
    if not found:
        shared = [log.with_name(f"{name}{suffix}") for name in FOLDER_NAMES for suffix in SUFFIXES]
        found = [path for path in shared if path.is_file() and path != log]
    settings: dict[str, str] = {}
    problems = []
    for path in found:
        try:
            settings |= _read(path, path.stat().st_mtime_ns)
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            problems.append(f"{path.name}: {str(error).splitlines()[0] if str(error) else 'cannot be read'}")
    return Configuration(settings, tuple(found), tuple(problems))


def is_configuration(path: Path) -> bool:
    """Whether a file is read as the configuration of the logs beside it, and so is no log."""
    stem, _, suffix = path.name.rpartition(".")
    return f".{suffix}" in SUFFIXES and (stem in FOLDER_NAMES or stem.endswith(".config"))


def _stems(log: Path) -> list[str]:
    """`run.log.gz` → run.log, run."""
    name = log.name.removesuffix(".gz")
    return [name, name.rpartition(".")[0] or name]


@lru_cache(maxsize=256)
def _read(path: Path, modified: int) -> Mapping[str, str]:
    """modified: part of the key, so that a file that changed is read again."""
    with path.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError("is too large for a configuration")
    # BaseLoader: every value as it is written, and no Python objects. Numbers are compared as numbers below.
    value = orjson.loads(content) if path.suffix == ".json" else yaml.load(content, Loader=yaml.BaseLoader)  # noqa: S506
    if not isinstance(value, Mapping):
        raise ValueError("holds no settings")  # noqa: TRY004
    return dict(_flat(value))


def _flat(value: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    count = 0
    while waiting:
        name, item, depth = waiting.pop()
        count += 1
        if count > MAX_SETTINGS or depth > MAX_DEPTH:
            raise ValueError(f"holds more than {MAX_SETTINGS} settings, or nests them too deep")
        if isinstance(item, Mapping):
            waiting += [(_joined(name, key), child, depth + 1) for key, child in item.items()]
        elif isinstance(item, list):
            if any(isinstance(child, Mapping | list) for child in item):
                waiting += [(f"{name}[{place}]", child, depth + 1) for place, child in enumerate(item)]
            else:
                yield name, "[" + ", ".join(normal(child) for child in item) + "]"
        else:
            yield name, normal(item)


def _joined(name: str, key: Any) -> str:
    own = str(key).lstrip("-").replace("-", "_")
    return f"{name}.{own}" if name else own


def normal(value: Any) -> str:
    """A value as text: numbers as numbers (`1e-2` is 0.01), switches in lower case."""
    text = str(value).strip()
    if text.lower() in ("true", "false", "null", "none", "~", ""):
        return {"null": "none", "~": "none", "": "none"}.get(text.lower(), text.lower())
    try:
        number = float(text)
    except ValueError:
        return text
    return repr(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
