"""Writes the numbers of Office documents as programs show them: dates, times, percents, units, numbers of lists."""

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
    return _with_unit(shown, number, first)


def _with_unit(shown: str, number: float, code: str) -> str:
    """Return a number with the words that its format has before and after it: "40 days", "1.5M"."""
    pieces = [piece for piece in _PIECES.findall(re.sub(r"\[[^\]]{0,255}\]|_.|\*.", "", code)) if piece]
    digits = [at for at, piece in enumerate(pieces) if piece in "0#?"]
    if not digits or any(len(piece) > 1 for piece in pieces[digits[0] : digits[-1]]):
        return shown  # a mask, such as that of a telephone number
    words = [
        "".join(_WORDS.sub(r"\1\2", one) for one in some if len(one) > 1 or one == " ")
        for some in (pieces[: digits[0]], pieces[digits[-1] :])
    ]
    rest = pieces[digits[-1] + 1 :]
    scale = next((at for at, piece in enumerate(rest) if piece != ","), len(rest))
    if scale and any(words):
        shown = f"{number / 1_000**scale:.15g}"
    return f"{words[0]}{shown}{words[1]}".strip()


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


def counted(number: int, form: str) -> str:
    """Return a number in one of Word's forms: "3", "c" or "iii"."""
    if form.endswith("Letter") and number > 0:
        letters = chr(97 + (number - 1) % 26) * min((number - 1) // 26 + 1, 20)
        return letters.upper() if form.startswith("upper") else letters
    if form.endswith("Roman") and 0 < number < 4_000:
        roman = ""
        for value, sign in zip((1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1), _ROMAN, strict=True):
            roman += sign * (number // value)
            number %= value
        return roman if form.startswith("upper") else roman.lower()
    if form in _ALPHABETS and 0 < number <= len(_ALPHABETS[form]):
        return _ALPHABETS[form][number - 1]
    if form == "ordinal":
        return f"{number}{'th' if number % 100 // 10 == 1 else _ORDINALS.get(number % 10, 'th')}"
    return _FORMS.get(form, "{}").format(number)


_ORDINALS = {1: "st", 2: "nd", 3: "rd"}
_FORMS = {"decimalZero": "{:02}", "numberInDash": "- {} -", "hex": "{:X}"}
_ALPHABETS = {
    **dict.fromkeys(("decimalEnclosedCircle", "decimalEnclosedCircleChinese"), "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"),
    **dict.fromkeys(
        ("chineseCounting", "chineseCountingThousand", "japaneseCounting", "taiwaneseCounting"),
        (*"一二三四五六七八九十", *(f"十{one}" for one in "一二三四五六七八九"), "二十"),
    ),
    **{"russianLower": "абвгдежзиклмнопрстуфхцчшщыэюя", "russianUpper": "АБВГДЕЖЗИКЛМНОПРСТУФХЦЧШЩЫЭЮЯ"},
    **{"hebrew1": "אבגדהוזחטי", "ganada": "가나다라마바사아자차카타파하", "aiueoFullWidth": "アイウエオカキクケコ"},
    "iroha": "イロハニホヘトチリヌルヲ",
}
"""The first numbers in the forms of other scripts."""
_ROMAN = ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I")
