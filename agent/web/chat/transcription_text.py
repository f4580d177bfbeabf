"""Texts for people about files whose text is extracted on this server, and about media that a model cannot take."""

from agent.i18n import N_, LocalizedText, _
from agent.media.mime import ConvertedMedia
from agent.media.transcribe import TRANSCRIPTION_MODELS, Kind, Transcriber

CANNOT_TAKE = {
    "image": N_(
        '{model} cannot see pictures. Remove "{name}", choose a model that can, or turn on '
        '"Extract text from images and audio" in the settings.'
    ),
    "audio": N_(
        '{model} cannot hear sound. Remove "{name}", choose a model that can, or turn on '
        '"Extract text from images and audio" in the settings.'
    ),
}


async def transcription_text(kind: Kind, converted: ConvertedMedia, transcriber: Transcriber) -> LocalizedText:
    """Return the message for an image or audio file that is to be transcribed."""
    reader, missing = TRANSCRIPTION_MODELS[kind], await transcriber.to_fetch(kind)
    by = {"reader": reader.label, "licence": reader.licence}
    if kind == "image":
        text = _("the text in it is extracted on this server by {reader} ({licence}) and sent instead", **by)
    else:
        text = _(
            "the speech in it ({seconds:.0f} s) is transcribed on this server by {reader} ({licence}) and sent instead",
            seconds=converted.seconds,
            **by,
        )
    return _("{done}; one-time {size:.0f} MB download", done=text, size=missing / 1e6) if missing else text


async def scan_text(pages: int, transcriber: Transcriber) -> LocalizedText:
    """Return for people how a scanned PDF is handled. Raises `InputError` if no text can be extracted now."""
    missing, reader = await transcriber.to_fetch("image"), TRANSCRIPTION_MODELS["image"]
    text = _(
        "the text of its scanned pages ({count}) is extracted on this server by {reader} ({licence}) and sent instead",
        count=pages,
        reader=reader.label,
        licence=reader.licence,
    )
    return _("{done}; one-time {size:.0f} MB download", done=text, size=missing / 1e6) if missing else text
