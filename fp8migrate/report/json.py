"""report.json: everything in the Report, for programs.

Top-level keys: schema_version, name, created, version, verdict (name, code, why, next_step, decided_by), headline, scope,
not_covered, forced, phases (name, state, note, wall_seconds, results), baseline, integration, comparisons, environment,
plan_text, plan_sha256, evidence_sha256, reproduce, items (item evaluations, null without). The names below them are those of
the types in `verdict`, `evidence`, `checks`, `plan.audit` and `records`.

Beyond the types' own fields, each delta has its `value`; each cell its `pairs`, `mean` and the one-sided 95 % bounds
`lower` and `upper` (null below two pairs), as each difference of item scores; each series its number of `points`, and
`decimated`: true where only some are given (the first and last, and of each bucket the lowest, the highest and the first
non-finite). Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity"; null means missing. Keys are sorted.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel

from fp8migrate.evidence.schema import Comparison, Delta
from fp8migrate.records.schema import Series
from fp8migrate.report.cells import gap
from fp8migrate.report.curves import kept_points
from fp8migrate.report.words import clean
from fp8migrate.statistics.items import Difference
from fp8migrate.verdict import Report

# A curve with more points is decimated. The run directories hold every step.
MAX_POINTS = 1000


def render(report: Report) -> bytes:
    return orjson.dumps(_plain(report), option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _plain(value: Any) -> Any:
    """Any value of a report as what JSON knows."""
    if value is None or isinstance(value, bool | int | np.bool_ | np.integer):
        return value if value is None else value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float | np.floating):
        return _number(float(value))
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, BaseModel):
        return _plain(value.model_dump())
    if isinstance(value, Mapping):
        return {clean(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return _dataclass(value)


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _dataclass(value: Any) -> dict[str, Any]:
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Series):
        return _plain_fields(_thinned(value, fields))
    plain = _plain_fields(fields)
    if isinstance(value, Difference):
        plain |= _plain({"lower": value.lower, "upper": value.upper})
    if isinstance(value, Delta):
        plain["value"] = _number(value.value) if value.baseline else "NaN"
    if isinstance(value, Comparison):
        for cell, entry in zip(value.cells, plain["cells"], strict=True):
            one = gap(value, cell)
            entry |= _plain({"pairs": one.pairs, "mean": one.mean, "lower": one.lower, "upper": one.upper})
    return plain


def _plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(item) for name, item in fields.items()}


def _thinned(series: Series, fields: Mapping[str, Any]) -> dict[str, Any]:
    kept = kept_points(series.values, MAX_POINTS)
    return {
        **fields,
        "steps": series.steps[kept],
        "values": series.values[kept],
        "points": int(series.values.size),
        "decimated": bool(kept.size < series.values.size),
    }
