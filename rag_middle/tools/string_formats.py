"""Formats of strings for which the engine writes more than their readers read.

It has seconds of 60 in every minute, where RFC 3339 has them in leap seconds and Python nowhere; a
year 0000; a 29th of February in every year; durations of any length; and addresses whose local
part has more than the 64 characters of RFC 5321.
"""

from __future__ import annotations

from typing import Any

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-]{_HOUR}:[0-5][0-9])"

# As many digits as let all parts together stay below what pydantic reads: 999,999,999 days, of
# which 2^32 seconds are in the parts after T.
_SECONDS = "[0-9]{1,9}S"
_MINUTES = f"[0-9]{{1,7}}M(?:{_SECONDS})?"
_HOURS = f"[0-9]{{1,5}}H(?:{_MINUTES})?"
_OF_DAY = f"T(?:{_HOURS}|{_MINUTES}|{_SECONDS})"
_DAYS = "[0-9]{1,7}D"
_MONTHS = f"[0-9]{{1,6}}M(?:{_DAYS})?"
_YEARS = f"[0-9]{{1,5}}Y(?:{_MONTHS})?"
_DURATION = f"P(?:(?:{_YEARS}|{_MONTHS}|{_DAYS})(?:{_OF_DAY})?|{_OF_DAY}|[0-9]{{1,8}}W)"

#: Expressions in place of formats.
_INSTEAD = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[tT]{_TIME}$",
    "duration": f"^{_DURATION}$",
}
#: Expressions beside formats.
_BESIDE = {"email": "^[!-?A-~]{1,64}@"}


def with_formats_kept(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with an expression for what its format means, besides its own `pattern`."""
    name = schema.get("format")
    if not isinstance(name, str) or name not in {*_INSTEAD, *_BESIDE}:
        return schema
    kept = {key: value for key, value in schema.items() if key != "format" or name in _BESIDE}
    pattern = _INSTEAD.get(name) or _BESIDE[name]
    if "pattern" not in kept:
        return {**kept, "pattern": pattern}
    if not isinstance(others := kept.get("allOf", []), list):
        return schema
    return {**kept, "allOf": [*others, {"pattern": pattern}]}
