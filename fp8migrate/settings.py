"""The base of every settings model: frozen, and closed to keys that it does not know; and what does not go together."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings are read once and never change. Strict: "8" is not 8. Non-finite numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class InconsistentError(ValueError):
    """Settings that do not go together: for each problem the key (relative to the model, dotted) and what is wrong with it."""

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__("; ".join(f"{key}: {what}" for key, what in problems.items()))
        self.problems = problems
