"""Decodes text files: UTF-8, UTF-16 or UTF-32 with a byte order mark, a declared encoding, or one that is sure."""

# ruff: noqa: RUF001, the signs of other languages are meant

import codecs
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice, pairwise
from typing import overload
from unicodedata import category, name

SAMPLE = 32_000
"""Bytes from which an encoding is found, of the lines that are not ASCII."""
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_WINDOWS = tuple(f"cp125{number}" for number in range(8))
_EAST_ASIAN = ("cp932", "euc_jp", "gb18030", "big5", "cp949")
_DOS = ("cp850", "cp852", "cp866")
_CANDIDATES = (*_WINDOWS, *_EAST_ASIAN, *_DOS, "cp874", "koi8_r", "mac_roman", "iso8859_2", "iso8859_5", "iso8859_15")
"""The encodings that programs of today and yesterday write. Of more candidates, more read the same bytes."""
_DECLARED = re.compile(
    rb"""(?:(?:charset|encoding|coding)\s*[=:]\s*["']?|@charset\s+["']|\\usepackage\[)([A-Za-z][\w.:-]*)"""
)
_SUPERSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
"""Encodings that stand for larger ones, as in browsers."""
_ALIASES = {
    **{"iso-8859-8-i": "cp1255", "iso-8859-8-e": "cp1255", "x-sjis": "cp932", "x-gbk": "gb18030", "ansi": "cp1252"},
    **{"ansinew": "cp1252", "applemac": "mac_roman"},
}
_PIECE = 65_536
"""Bytes or characters of which one call takes care. No call holds the interpreter for longer than a few ms."""
_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n\v\f\r\x1b"})
_ASCII = bytes(range(128))
_USUAL = set("€£§°·•…–—‘’‚“”„«»‹›¡¿²³½×±©®™\u00a0、。・（）「」：，；！？％￥")
"""Characters beside letters that are common in texts."""
_EAST = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK", "FULLWIDTH": "CJK"}
"""The scripts of a Japanese text, which count as one."""
_FOREIGN_BYTE = re.compile(rb"[\x80-\xff]")
_ODD_PLACES = re.compile(
    r"(?<=[^\W\d_])[€£§°²³½×±©®™«»“”„‚‹›•](?=[^\W\d_])|[\uff61-\uff9f]"
    r"|(?<=[A-Za-z])[\u0370-\u052f\u0590-\u06ff](?=[A-Za-z])|(?<=[\u0400-\u052f])[A-Za-z](?=[^\w]|$)"
    r"|\b[ъьЪЬ]|ς(?=\w)|σ\b|[ךםןףץ](?=\w)"
)
"""A sign in the middle of a word, Katakana of half width, words of two alphabets, and letters at a wrong end."""
_KANA = re.compile(r"[\u3041-\u30ff]")
_MOST_ODD = 0.35
"""The part of the foreign characters that can be odd in an encoding that is sure."""
_FEW = 2
"""Foreign bytes that are too few to find an encoding. They are a mark or a letter of windows-1252, or damage."""
_OF_FEW = re.compile(r"[“”„‘’–—…•€£§°²³½¼¾¹×±©®™«»¿¡\xa0µ·]|[ÄÖÜäöüßéèêëàâáãåçîïíìôóòõúûùñøæœØÆŒÅÉÈÀÁÇÑÓÚÍÊÎÔ]")
_ALPHABETS = tuple(
    map(
        set,
        (
            *("äöüßéèàç", "éèêëàâçîïôûùüœæÿ", "áéíóúüñ", "áàâãçéêíóôõú", "àèéìíòóùú", "äöåéüæøàèê", "ëïéèüóê"),
            *("áéíóúýþæöð", "ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "ăâîșțşţ", "čćđšž"),
            *("çğıi̇öşüâîû", "āčēģīķļņšūž", "ąčęėįšųūž", "äõöüšž"),
        ),
    )
)
"""The letters beside a-z of the languages with Latin letters, of which a text needs those of one."""
_CYRILLIC = tuple(
    {*"абвгдежзийклмнопрстуфхцчшщьюя"} - {*without} | {*more}
    for without, more in (("", "ёъыэ"), ("", "єіїґ"), ("ищ", "ёіўыэ"), ("йщьюя", "ђјљњћџ"), ("йщьюя", "ѓѕјљњќџ"))
)
"""The letters of Russian and Bulgarian, Ukrainian, Belarusian, Serbian and Macedonian."""


def decode_text(data: bytes) -> tuple[str, str] | None:
    """Return the text and its encoding, such as "windows-1252", or None if it is no text or its encoding is not sure.

    The encoding is "" for UTF-8, which needs no mention. Characters of UTF-8 or UTF-16 that are damaged or cut off
    become U+FFFD.
    """
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            label = "" if encoding == "utf-8-sig" else encoding.upper()
            found = _decoded(data, encoding, label) or _damaged(data, encoding, label, least=4)
            return found and (found[0].lstrip("\ufeff"), label)  # some programs write two marks
    if b"\x1b$" in data and (found := _decoded(data, "iso2022_jp", "ISO-2022-JP")):
        return found
    data = data.removesuffix(b"\x1a")  # the end of a file of DOS
    controls = len(data) - _count_without(data, _CONTROLS)
    if found := _wide(data) or (_wide_foreign(data) if 16 * controls >= len(data) and controls else None):
        return found
    if found := _decoded(data, "utf-8", ""):
        return found
    if controls:
        return None
    declared = _DECLARED.search(data[:1_000])
    named = codec_of(declared[1].decode()) if declared else ""
    if found := _damaged(data, "utf-8", "", least=0 if named == "utf-8" else 1):
        return found
    found = _decoded(data, named, label_of(named)) if named else None
    if found is None and (sure := _sure_encoding(data)):
        found = _decoded(data, sure, label_of(sure))
    return found or _damaged(data, "utf-8", "", least=0, most=0.005)


def _damaged(data: bytes, encoding: str, label: str, *, least: float, most: float = 0.5) -> tuple[str, str] | None:
    """Return a text with U+FFFD for what is no character in it; None if that is too much for damage.

    Damage needs `least` foreign characters that are whole for each one that is not, and is one or this part of all.
    The beginning of a character at the end, of two bytes or more, shows the encoding too.
    """
    text = _decode(data, encoding, "replace")
    bad = text.count("\ufffd")
    ascii_ = sum(len(piece.encode("ascii", "ignore")) for piece in _pieces(text)) if encoding.startswith("utf-8") else 0
    whole = len(text) - bad - ascii_
    is_cut = bad == 1 and text.endswith("\ufffd") and data[-2:-1] > b"\x7f"
    is_text = (is_cut or whole >= least * bad) and bad <= max(1, most * len(text)) and "\0" not in text
    if not _are_all(text, lambda char: category(char) not in ("Cn", "Co")):  # another encoding, by chance
        return None
    return (text, label) if is_text and (len(text) > bad + 1 or whole) else None


def _wide(data: bytes) -> tuple[str, str] | None:
    """Return a text in UTF-16 without a mark: every second byte of its ASCII letters and line ends is null."""
    halves = [sum(piece[start::2].count(0) for piece in _pieces(data)) for start in (0, 1)]
    if not data or len(data) % 2 or 5 * max(halves) < len(data) or 20 * min(halves) > len(data):
        return None
    encoding = "utf-16-be" if halves[0] > halves[1] else "utf-16-le"
    found = _decoded(data, encoding, encoding.upper())
    return found if found and _are_all(found[0], _is_of_texts) else None


def _wide_foreign(data: bytes) -> tuple[str, str] | None:
    """Return a text of letters that are not ASCII in UTF-16 without a mark. In other texts its bytes are controls."""
    for encoding in ("utf-16-le", "utf-16-be") if len(data) % 2 == 0 else ():
        found = _decoded(data, encoding, encoding.upper())
        if found is None or not _are_all(found[0], _is_of_texts):
            continue
        letters = {char for piece in _pieces(found[0]) for char in {*piece} if char.isalpha()}
        scripts = {_script(char) for char in letters if not char.isascii()}
        count = sum(sum(map(str.isalpha, piece)) for piece in _pieces(found[0]))
        if len(scripts) == 1 and 2 * count > len(found[0]) and _are_common(letters, scripts):
            return found
    return None


def _are_common(letters: set[str], scripts: set[str]) -> bool:
    """Return True if Chinese characters are all in one of the old, small sets. Random ones are not."""
    if scripts != {"CJK"}:
        return scripts <= {"CYRILLIC", "GREEK", "HEBREW", "ARABIC", "THAI", "HANGUL", "DEVANAGARI", "ARMENIAN"}
    text = "".join(letters)
    for small in ("gb2312", "big5", "shift_jis", "euc_kr"):
        with suppress(ValueError):
            text.encode(small)
            return True
    return False


def _script(char: str) -> str:
    word = name(char, "").split(" ")[0]
    return _EAST.get(word, word)


def codec_of(charset: str) -> str:
    """Return Python's name of a declared encoding, or "" if it is unknown or no plain one."""
    charset = re.sub(r"^(?:cp|ibm|dos|x-cp|win)[-_]?(\d{3,4})$", r"cp\1", charset.strip().lower())
    try:
        found = codecs.lookup(_ALIASES.get(charset, charset)).name
    except (LookupError, ValueError):
        return ""
    found = _SUPERSETS.get(found, found)
    is_plain = found.replace("-", "_") in _CANDIDATES or found.startswith(("iso8859", "utf-", "koi8", "mac"))
    return found if is_plain or found in ("big5hkscs", "euc_kr", "iso2022_jp", "johab", "hz", "cp1140") else ""


def label_of(encoding: str) -> str:
    """Return the name that people know for an encoding of Python."""
    return re.sub(r"^cp(125\d|874)$", r"windows-\1", encoding.replace("_", "-")).replace("cp932", "Shift-JIS")


def _decoded(data: bytes, encoding: str, label: str) -> tuple[str, str] | None:
    try:
        text = _decode(data, encoding, "strict")
    except ValueError:
        return None
    return None if "\0" in text else (text, label)


def _decode(data: bytes, encoding: str, errors: str) -> str:
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    return "".join(map(decoder.decode, _pieces(data))) + decoder.decode(b"", final=True)


@overload
def _pieces(whole: bytes) -> Iterator[bytes]: ...
@overload
def _pieces(whole: str) -> Iterator[str]: ...
def _pieces(whole: bytes | str) -> Iterator[bytes | str]:
    return (whole[start : start + _PIECE] for start in range(0, len(whole), _PIECE))


def _count_without(data: bytes, left_out: bytes) -> int:
    return sum(len(piece.translate(None, left_out)) for piece in _pieces(data))


def _are_all(text: str, is_good: Callable[[str], bool]) -> bool:
    """Return True if each character is good. Stop at the first piece that has another one."""
    return all(is_good(char) for piece in _pieces(text) for char in {*piece})


def _is_of_texts(char: str) -> bool:
    return char.isspace() or category(char) not in ("Cc", "Cn", "Co")


def _is_usual(data: bytes, at: int) -> bool:
    """Return True if the foreign byte at this place is a letter or mark of windows-1252, and not in a word that it is
    odd in."""
    near = data[max(0, at - 1) : at + 2].decode("cp1252", "replace")
    char = data[at : at + 1].decode("cp1252", "replace")
    return (char == "\ufffd" or bool(_OF_FEW.fullmatch(char))) and not _ODD_PLACES.search(near)


def _foreign_lines(data: bytes) -> Iterator[bytes]:
    """Yield the lines that are not ASCII, each cut to `SAMPLE` bytes around its first such byte."""
    end = 0
    while (at := next(_foreign_bytes(data, end), None)) is not None:
        start, end = data.rfind(b"\n", end, at) + 1 or end, data.find(b"\n", at) + 1 or len(data)
        start = max(start, at - SAMPLE // 2)
        yield data[start : min(end, start + SAMPLE)]


def _foreign_bytes(data: bytes, start: int = 0) -> Iterator[int]:
    """Yield the places of the bytes that are not ASCII, from `start` on."""
    return (
        match.start()
        for piece in range(start, len(data), _PIECE)
        for match in _FOREIGN_BYTE.finditer(data, piece, piece + _PIECE)
    )


def _sure_encoding(data: bytes) -> str:
    """Return the encoding that alone makes a sensible text of these bytes, or ""."""
    import charset_normalizer

    if _count_without(data, _ASCII) <= _FEW:
        return "cp1252" if all(_is_usual(data, at) for at in _foreign_bytes(data)) else ""
    sample = b"".join(islice(_foreign_lines(data), 500))[:SAMPLE]
    matches = charset_normalizer.from_bytes(sample, cp_isolation=list(_CANDIDATES))
    scores = [(match.chaos + _oddities_in(match.encoding, str(match)), -match.coherence, match) for match in matches]
    close = [one for one in scores if one[0] <= min(min(score for score, _c, _m in scores) + 0.02, _MOST_ODD)]
    first = [match for _s, coherence, match in close if coherence <= min(one[1] for one in close) + 0.02]
    western = next((match for match in first if "cp1252" in match.could_be_from_charset), None)
    turkish = any("cp1254" in match.could_be_from_charset and match is not western for match in first)
    if western is not None and not turkish:
        return "cp1252"
    return first[0].encoding if len(first) == 1 else ""


def _oddities_in(encoding: str, text: str) -> float:
    """Return how odd a text is in an encoding: Chinese and Korean programs write no Japanese syllables."""
    is_foreign = encoding in ("gb18030", "big5", "cp949") and _KANA.search(text)
    return oddities(text) + (len(_KANA.findall(text)) / len(text) if is_foreign else 0.0)


def oddities(text: str) -> float:
    """Return how odd the foreign characters are: rare ones, capitals after small letters, marks in words, mixtures."""
    foreign = [char for char in text if not char.isascii()]
    odd = sum(1 for char in foreign if not (char.isalpha() or category(char)[0] == "M" or char in _USUAL))
    odd += len(_ODD_PLACES.findall(text)) + sum(
        1 for left, right in pairwise(text) if left.islower() and right.isupper()
    )
    scripts = {script for char in {*foreign} if char.isalpha() and (script := _script(char))}
    latin = [char for char in foreign if name(char, "").startswith("LATIN")]
    odd += min(sum(1 for char in latin if char.lower() not in letters) for letters in _ALPHABETS)
    cyrillic = [char.lower() for char in foreign if name(char, "").startswith("CYRILLIC")]
    odd += min(sum(1 for char in cyrillic if char not in letters) for letters in _CYRILLIC)
    return (odd + max(0, len(scripts) - 1)) / max(1, len(foreign))
