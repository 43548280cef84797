"""The base of every settings model: frozen, and closed to keys that it does not know."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings are read once and never change. Strict: "8" is not 8. Non-finite numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
