"""Credentials out of a text, for whatever else a report shows than a verdict (those come redacted)."""

from unhang.diagnosis.redact import redact

__all__ = ["redact"]
