"""Writes the numbers of Office documents as their programs show them: dates, times, percents, currencies."""

import re
from datetime import datetime, timedelta
from math import isfinite

EPOCH, EPOCH_1904 = datetime(1899, 12, 30), datetime(1904, 1, 1)
"""The days that are 0, in most documents and in old ones of the Mac."""
MAX_CODE = 255
"""The characters of a format in Excel."""
_LITERALS = re.compile(r'"[^"]{0,255}"|\\.|_.|\*.|\[(?![hms]{1,9}\])[^\]]{0,255}\]', re.IGNORECASE)
_PIECES = re.compile(r'"[^"]{0,255}"|\\.|.', re.DOTALL)
"""A literal or a sign of a format."""
_WORDS = re.compile(r'"([^"]{0,255})"|\\(.)')
_CURRENCY = re.compile(r"\[\$([^\]-]{1,30})(?:-[^\]]{0,99})?\]|([$€£¥₩₹])")


def number_text(value: str, code: str, epoch: datetime = EPOCH) -> str:
    """Return a number as Excel shows it with this format, if it is a date, a time, a percent or a currency.

    Dates are written in the order of ISO 8601, which no reader mistakes. Other numbers keep all digits.
    """
    try:
        number = float(value)
    except ValueError:
        return value
    if not isfinite(number):
        return value
    shown = value if re.fullmatch(r"-?\d{1,20}", value) else f"{number:.15g}"  # a long number can be a name
    first = _section(code[:MAX_CODE], number)
    plain = _LITERALS.sub("", first).lower()
    if first and not re.search("[0#?@dmyhsgeb%]", plain):  # the text of the format stands for the number
        words = "".join(quoted or escaped for quoted, escaped in _WORDS.findall(first)).strip()
        return words or shown
    if plain and plain not in ("general", "standard") and re.search(r"[dmyhs]", plain):
        return _moment(number, plain, epoch)
    if "%" in plain:
        return f"{number * 100:.15g}%"
    if re.fullmatch("00+", plain) and number == int(number):  # such as a postcode
        return shown.zfill(len(plain))
    if found := _CURRENCY.search(first):
        sign = found[1] or found[2]
        return f"{sign}{shown}" if re.search("[0#]", first[found.end() :]) else f"{shown} {sign}"
    return shown


def _section(code: str, number: float) -> str:
    """Return the part of a format for this number: the first, or one for negative numbers or zero."""
    sections = [""]
    for piece in _PIECES.findall(code):
        if piece == ";":
            sections.append("")
        else:
            sections[-1] += piece
    at = 1 if number < 0 else 2 if number == 0 else 0
    return sections[at if at < len(sections) and "[>" not in code and "[<" not in code else 0]


def _moment(number: float, code: str, epoch: datetime) -> str:
    seconds = round(number * 86_400)
    if "[" in code:  # a duration
        sign, seconds = "-" * (seconds < 0), abs(seconds)
        if "[s" in code:
            return f"{sign}{seconds}"
        if "[m" in code:
            return f"{sign}{seconds // 60}" + (f":{seconds % 60:02}" if "s" in code else "")
        return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}" + (f":{seconds % 60:02}" if seconds % 60 else "")
    try:
        moment = epoch + timedelta(days=0 if not epoch.year < 1900 or number >= 60 else 1, seconds=seconds)
    except OverflowError:
        return f"{number:.15g}"
    time = f"{moment:%H:%M}" + (f":{moment.second:02}" if moment.second else "")
    has_day, has_time = (
        re.search("[dy]", code) or ("m" in code and not re.search("[hs]", code)),
        re.search("[hs]", code),
    )
    return " ".join([moment.date().isoformat()] * bool(has_day) + [time] * bool(has_time))
