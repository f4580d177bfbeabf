"""A text is read in its encoding, which the page names, or refused with how to save it."""

# ruff: noqa: RUF001

import codecs
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import InputError
from agent.files import encodings
from agent.files.encodings import codec_of, decode_text
from agent.files.parts import part_from_path, text_file_of
from agent.models.catalog import ModelSpec
from agent.web.chat.attachments import plan_attachments

SMALL = ModelSpec(id="vllm:small", name="small", label="Small", provider="vllm", context_tokens=8_192)
GERMAN = "Name;Straße;Betrag\nMüller;Gartenweg 3;812,50\nWeiß – Söhne;Höhe 4;10,00\n"
READ = {
    "UTF-8": ("utf-8", GERMAN, ""),
    "UTF-8 with a mark": ("utf-8-sig", GERMAN, ""),
    "Excel's Unicode text": ("utf-16", GERMAN, "UTF-16"),
    "UTF-16, big end first": ("utf-16-be", "\ufeff" + GERMAN, "UTF-16"),
    "UTF-32": ("utf-32", GERMAN, "UTF-32"),
    "UTF-16 without a mark": ("utf-16-le", GERMAN, "UTF-16-LE"),
    "UTF-16 without a mark, big end first": ("utf-16-be", GERMAN, "UTF-16-BE"),
    "Japanese mail": ("iso2022_jp", "名前,金額\n田中太郎,812\n", "ISO-2022-JP"),
    "German": ("cp1252", GERMAN, "windows-1252"),
    "one word": ("cp1252", "café", "windows-1252"),
    "signs": ("cp1252", "5 m² für 20 €, „gut“ – so war’s: 2 × ½, 3 °C\n", "windows-1252"),
    "French": ("cp1252", "nom;prénom\nLefèvre;François\nDupont;Hélène\n", "windows-1252"),
    "Spanish": ("cp1252", "año;descripción\n2026;Señor Muñoz pagó el alquiler\n", "windows-1252"),
    "Danish": ("cp1252", "navn;beløb\nSøren Kjærgård;812\nÅse;3\n", "windows-1252"),
    "Polish": ("cp1250", "miasto;kwota\nŁódź;812\nKraków;10\nŚwiętokrzyskie;5\n", "windows-1250"),
    "Czech": ("cp1250", "jméno;město\nNovák Jiří;Plzeň\nDvořák Tomáš;Budějovice\n", "windows-1250"),
    "Hungarian": ("cp1250", "név;összeg\nSzűcs Győző;812\nÁrvíztűrő tükörfúrógép\n", "windows-1250"),
    "Turkish": ("cp1254", "isim;şehir\nAyşe Yılmaz;İstanbul\nGüneş Öztürk;Eskişehir\n", "windows-1254"),
    "Portuguese": ("cp1252", "descrição;preço\nManutenção do salão;812\n", "windows-1252"),
    "Russian": ("cp1251", "Имя;Сумма\nИван Петров;812\nЖилец дома;10\n", "windows-1251"),
    "Russian, Unix": ("koi8_r", "Имя;Сумма\nИван Петров;812\nЖилец дома;10\n", "koi8-r"),
    "Arabic": ("cp1256", "الاسم;المبلغ\nمحمد علي;812\n", "windows-1256"),
    "Thai": ("cp874", "ชื่อ,จำนวน\nสมชาย,812\nกรุงเทพมหานคร,900\n", "windows-874"),
    "Japanese": ("cp932", "名前,金額\n田中太郎,812\n東京都港区の家賃は八百円です,900\n", "Shift-JIS"),
    "Chinese": ("gb18030", "姓名,金额\n张三,812\n北京市海淀区,900\n", "gb18030"),
    "Taiwan": ("big5", "姓名,金額\n陳大文,812\n台北市大安區的租金是每月八百元,900\n", "big5"),
    "Korean": ("cp949", "이름,금액\n김철수,812\n서울특별시 강남구의 월세는,900\n", "cp949"),
    "Mac": ("mac_roman", "nom,prénom,adresse\nDupont,Hélène,3 rue de l'Église\n", "mac-roman"),
    "Greek": ("cp1253", "Η τιμή είναι 812 ευρώ", "windows-1253"),
    "Polish, Unix": ("iso8859_2", "Łódź i Kraków", "iso8859-2"),
    "Russian, DOS": ("cp866", "Привет, мир! Как дела?", "cp866"),
    "Russian, old": ("iso8859_5", "Привет, мир! Как дела?", "iso8859-5"),
    "late in a line": ("cp1251", "plain words " * 4000 + "Привет, как дела? Сегодня хорошо. " * 9, "windows-1251"),
    "Japanese, Unix": ("euc_jp", "日本語のテキスト", "euc-jp"),
    "two marks": ("utf-8-sig", "\ufeffRent", ""),
    "two marks, wide": ("utf-16", "\ufeffRent", "UTF-16"),
    "wide Cyrillic without a mark": ("utf-16-le", "Привет", "UTF-16-LE"),
    "wide Chinese without a mark": ("utf-16-be", "你好世界", "UTF-16-BE"),
    "colors of a terminal": ("utf-8", "\x1b[31mred\x1b[0m and a bell \x07 here", ""),
    "one letter": ("cp1252", "A list of things: über", "windows-1252"),
    "one sign": ("cp1252", "The rent is 812 € a month", "windows-1252"),
    "declared in a style sheet": ("iso8859_15", '@charset "iso-8859-15";\na:before{content:"€"}', "iso8859-15"),
    "declared in LaTeX": ("koi8_r", "\\usepackage[koi8-r]{inputenc}\nДа", "koi8-r"),
    "declared in XML": ("iso8859_7", '<?xml version="1.0" encoding="ISO-8859-7"?>\n<a>Ποσό</a>', "iso8859-7"),
    "declared in HTML": ("cp1254", '<meta charset="windows-1254"><p>Güneş Işık', "windows-1254"),
}


@pytest.mark.parametrize(("codec", "text", "label"), READ.values(), ids=list(READ))
def test_text_is_read_in_its_encoding(codec: str, text: str, label: str) -> None:
    assert decode_text(text.encode(codec)) == (text.lstrip("\ufeff"), label)


UTF8 = GERMAN.encode()
DAMAGED = {
    "a bad byte": (UTF8.replace(b";812", b"\xff;812"), GERMAN.replace(";812", "\ufffd;812")),
    "a Latin byte": (UTF8 + b"M\xfcller\n", GERMAN + "M\ufffdller\n"),
    "half a character": (UTF8.replace("ß".encode(), b"\xc3", 1), GERMAN.replace("ß", "\ufffd", 1)),
    "cut in a character": ("Größe 5 €".encode()[:-1], "Größe 5 \ufffd"),
    "cut, no other foreign character": ("a,b\n5 €".encode()[:-1], "a,b\n5 \ufffd"),
    "with a mark": (codecs.BOM_UTF8 + UTF8 + b"\xff", GERMAN + "\ufffd"),
    "declared": (b'<?xml version="1.0" encoding="UTF-8"?>\n<a>M\xfcller</a>',
                 '<?xml version="1.0" encoding="UTF-8"?>\n<a>M\ufffdller</a>'),
    "one among many": (b"a\x80b and more text of people", "a\ufffdb and more text of people"),
    "a lone letter that nobody writes": (b"plain \xff text", "plain \ufffd text"),
    "a byte of no letter": (b"plain te\x81xt", "plain te\ufffdxt"),
    "Japanese": ("名前,金額\n田中太郎".encode()[:-2], "名前,金額\n田中太\ufffd"),
    "UTF-16, cut": (GERMAN.encode("utf-16")[:-1], GERMAN[:-1] + "\ufffd"),
    "UTF-16, half a pair": (GERMAN.encode("utf-16") + b"\x3d\xd8", GERMAN + "\ufffd"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_characters_are_marked(name: str) -> None:
    data, text = DAMAGED[name]
    assert decode_text(data) == (text, "UTF-16" if name.startswith("UTF-16") else "")


@pytest.mark.parametrize(
    "data",
    [
        b"\x7fELF\2\1\1\0\0",
        b"MZ\x90\3\xff\xff",
        codecs.BOM_UTF16_LE + b"a",
        *("שלום עולם".encode("cp1255"), "Größe".encode("cp850"), "테스트".encode("cp949"), "Łódź".encode("cp852")),
    ],
    ids=["program", "another program", "half a letter", *(f"not sure {number}" for number in range(4))],
)
def test_other_bytes_are_no_text(data: bytes) -> None:
    assert decode_text(data) is None


def test_random_bytes_are_no_text() -> None:
    assert not any(decode_text(os.urandom(600)) for _time in range(50))


@pytest.mark.parametrize("name", ["zlib", "idna", "punycode", "unicode_escape", "undefined", "x" * 5_000, ""])
def test_only_plain_encodings_are_taken_from_a_file(name: str) -> None:
    assert codec_of(name) == ""


CASES = {
    "latin1.csv": (GERMAN.encode("cp1252"), "as it is", "will be sent as text; read as windows-1252"),
    "utf16.csv": (GERMAN.encode("utf-16"), "as it is", "will be sent as text; read as UTF-16"),
    "notes": (GERMAN.encode("cp1252"), "as it is", "will be sent as text; read as windows-1252"),
    "long.csv": (GERMAN.encode("cp1252") * 900, "converted", "; read as windows-1252"),
    "damaged.csv": (UTF8 + b"\xff", "as it is", "; read as UTF-8, with 1 character that can't be read"),
    "cut.txt": (UTF8 * 2_000 + b"\xe2\x82", "converted", "; read as UTF-8, with 1 character that can't be read"),
    "hebrew.csv": (
        "שלום עולם".encode("cp1255"),
        "refused",
        "hebrew.csv is not a text in an encoding that is known for sure. Save it as UTF-8, in Excel as “CSV UTF-8”.",
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_page_names_the_encoding(tmp_path: Path, name: str) -> None:
    data, outcome, said = CASES[name]
    (tmp_path / name).write_bytes(data)
    [plan] = await plan_attachments([tmp_path / name], SMALL, max_bytes=10**7)
    assert plan.outcome == outcome
    assert plan.text.endswith(said)


def test_file_in_a_prompt_is_read_in_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "latin1.csv").write_bytes(GERMAN.encode("cp1252"))
    assert text_file_of(part_from_path(tmp_path / "latin1.csv")) == ("latin1.csv", GERMAN)
    (tmp_path / "hebrew.csv").write_bytes("שלום עולם".encode("cp1255"))
    with pytest.raises(InputError, match="save a text as UTF-8"):
        part_from_path(tmp_path / "hebrew.csv")


HOSTILE = {
    "an index of a film": b"00dc\x10\0\0\0\xff\xff\xff\x7f\xff\xff\xff\x7f",
    "controls": b"\x01",
    "letters and controls": b"\x01a",
    "wide letters and controls": "中\x01".encode("utf-16-le"),
    "wide Greek": "αβγ".encode("utf-16-le"),
    "foreign lines": b"\xe4\n",
    "short foreign lines": b"a\xe4b\n",
    "damaged Greek": "aβ".encode() * 99 + b"\xff",
    "Japanese": "日本語あ".encode("cp932"),
}


@pytest.mark.parametrize("one", HOSTILE.values(), ids=HOSTILE)
def test_decoding_takes_memory_for_few_copies(one: bytes) -> None:
    data = one * (200_000 // len(one))
    decode_text(data[:100])  # imports what it needs
    tracemalloc.start()
    try:
        decode_text(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(data), f"{len(data):,} bytes took {peak:,}"


@given(text=st.text(), encoding=st.sampled_from(["utf-8", "utf-16-le", "utf-16", "cp1252", "cp932"]), more=st.binary())
def test_pieces_do_not_change_what_is_decoded(text: str, encoding: str, more: bytes) -> None:
    data = text.encode(encoding, "ignore") + more
    whole = decode_text(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encodings, "_PIECE", 2)
        assert decode_text(data) == whole
