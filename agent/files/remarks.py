"""Texts about files: reasons for a refusal, the changes made to a file, and notes about its content. A converted file.

The sandboxed decoder can report only these sentences: see `agent.files.sandbox`.
"""

from dataclasses import dataclass

from agent.errors import InputError
from agent.i18n.text import N_, LocalizedText, Value, listed

SENTENCES = {
    # Reasons for a refusal. Each continues a sentence that begins with the file's name.
    "no_readable_picture": N_("can't be opened as an image. Supported: PNG, JPEG, WebP, GIF, HEIC and AVIF"),
    "broken_picture": N_("is a {kind} that is broken or cut off"),
    "many_scans": N_("is a JPEG of more than {most} scans, which no camera makes"),
    "many_pixels": N_("has {count:.0f} megapixels; {most} is the most for {kind}"),
    "many_progressive_pixels": N_("has {count:.0f} megapixels; {most} is the most for {kind} (progressive)"),
    "too_thin": N_("is {width} by {height} pixels; it must not be more than {most} times as long as wide"),
    "picture_bytes": N_("does not fit into {most:.1f} MB, which is the most this model takes"),
    "no_readable_sound": N_("can't be opened as audio. Supported: WAV, MP3, Ogg, FLAC, WebM, M4A, AAC and AIFF"),
    "broken_sound": N_("is a sound ({kind}) that is broken or cut off"),
    "no_sound": N_("has no sound in it"),
    "long_minutes": N_("is longer than {most:.0f} min, which is the most that is taken"),
    "long_seconds": N_("is longer than {most:.0f} s, which is the most that is taken"),
    "sound_bytes": N_("has {size:.1f} MB as WAV; {most:.1f} MB is the most"),
    "odd_sound": N_("has {channels} channels of {rate} samples a second"),
    "video": N_("is a video. Attach only its audio"),
    "no_video": N_("can't be opened as a video. Supported: MP4 and WebM"),
    "video_kind": N_("is a video of a kind that this model does not take. It takes {kinds}"),
    "video_bytes": N_("has {size:.1f} MB; {most:.0f} MB is the most for a video"),
    "no_decoder": N_(
        'cannot be read without more packages: make extras, or pip install ".[media]" (in the folder of Switchboard)'
    ),
    "unknown_codec": N_("has audio in a format that is not supported, {codec}"),
    "locked_document": N_("is protected by a password. Attach a copy without it"),
    "broken_document": N_("is damaged or cut off: it can't be read as {kind}"),
    "wrong_document": N_("is no {kind} file, although its name says so"),
    "unread_by_us": N_("can't be read here as {kind}. Save it again with another program, or as PDF"),
    "scanned_document": N_("shows only pictures, such as scans, and has no text"),
    "empty_document": N_("has no text"),
    "no_page": N_("has no page {number:,}; it has {count:,}"),
    "many_pages": N_("has {count:,} pages; {most:,} is the most that is read"),
    "long_document": N_("has more than {most:,} characters of text, which is the most that is read"),
    "unpacked_bytes": N_("unpacks to {size:.0f} MB; {most:.0f} MB is the most that is read"),
    "entities": N_("defines entities of its own, which a document of this kind never needs"),
    "old_document": N_("has a format of Office before 2007. Save it as DOCX, PPTX or XLSX"),
    "other_document": N_("has a format that is not read here. Save it as PDF, DOCX, PPTX, XLSX or EML"),
    "slow_document": N_("takes too much time or memory to be read"),
    "no_reader": N_('cannot be read without more packages: pip install ".[documents]" (in the folder of Switchboard)'),
    # Changes made to the file.
    "became": N_("converted to {into}"),
    "scaled": N_("{before} to {after} px"),
    "first_picture": N_("its first picture"),
    "on_white": N_("on white"),
    "without_metadata": N_("without its metadata"),
    "without_tags": N_("without its tags"),
    "resampled": N_("to {rate} kHz, mono"),
    # Notes about the content.
    "silent": N_("It is silent."),
    "clipped": N_("It is clipped: it was recorded too loud."),
    # Content of a message that the model does not accept.
    "wrong_picture": N_("The picture ({kind}) in the message {reason}."),
    "wrong_sound": N_("The sound ({kind}) in the message {reason}."),
    "wrong_video": N_("The video ({kind}) in the message {reason}."),
    "so_many_pictures": N_("{model} does not take so many pictures in one message."),
    "so_many_sounds": N_("{model} does not take so many sounds in one message."),
    "so_many_videos": N_("{model} does not take so many videos in one message."),
    "unread_kind": N_("{model} cannot read a file of the kind {kind}."),
    "unread_document": N_("{model} cannot read a file of the kind {kind}: it {reason}."),
}


def sentence(key: str, **values: Value) -> LocalizedText:
    """Return the sentence with this key."""
    return LocalizedText(SENTENCES[key], values)


def refused(key: str, **values: Value) -> InputError:
    """Return the error for a refused file. Its text continues a sentence that begins with the file's name."""
    return InputError(sentence(key, **values))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedMedia:
    """A file converted for a model. `done` lists the changes and is empty if the bytes are unchanged.

    `note` tells people about the content, for example that audio is silent. `seconds` is the length of audio, 0 for an
    image.
    """

    data: bytes
    media_type: str
    done: tuple[LocalizedText, ...] = ()
    note: LocalizedText | None = None
    seconds: float = 0.0

    @property
    def said(self) -> str:
        """The changes in English: "converted to JPEG, 4032 to 1568 px"."""
        return listed(self.done) if self.done else ""
