"""Texts about files: reasons for a refusal, the changes made to a file, and notes about its content."""

from functools import partial

from agent.errors import InputError, localized_error
from agent.i18n import LocalizedText
from agent.i18n import in_english as in_english

SENTENCES = {
    # Reasons for a refusal. Each continues a sentence that begins with the file's name.
    "no_readable_picture": "is not a picture that can be read; PNG, JPEG, WebP, GIF, HEIC and AVIF are",
    "broken_picture": "is a {kind} that is broken or cut off",
    "many_scans": "is a JPEG of more than {most} scans, which no camera makes",
    "many_pixels": "has {count:.0f} megapixels; {most} is the most for {kind}",
    "many_progressive_pixels": "has {count:.0f} megapixels; {most} is the most for {kind} (progressive)",
    "too_thin": "is {width} by {height} pixels; it must not be more than {most} times as long as wide",
    "picture_bytes": "does not fit into {most:.1f} MB, which is the most this model takes",
    "no_readable_sound": "is not a sound that can be read; WAV, MP3, Ogg, FLAC, WebM, M4A, AAC and AIFF are",
    "broken_sound": "is a sound ({kind}) that is broken or cut off",
    "no_sound": "has no sound in it",
    "long_minutes": "is longer than {most:.0f} min, which is the most that is taken",
    "long_seconds": "is longer than {most:.0f} s, which is the most that is taken",
    "sound_bytes": "has {size:.1f} MB as WAV; {most:.1f} MB is the most",
    "odd_sound": "has {channels} channels of {rate} samples a second",
    "video": "is a video; its sound alone would be taken",
    "unknown_codec": "has sound of a kind that is not taken, {codec}",
    # Changes made to the file.
    "became": "{kind} to {into}",
    "scaled": "{before} to {after} px",
    "first_picture": "its first picture",
    "on_white": "on white",
    "without_metadata": "without its metadata",
    "without_tags": "without its tags",
    "resampled": "to {rate} kHz, mono",
    # Notes about the content.
    "silent": "It is silent.",
    "clipped": "It is clipped: it was recorded too loud.",
    # Content of a message that the model does not accept.
    "wrong_picture": "The picture ({kind}) in the message {said}.",
    "wrong_sound": "The sound ({kind}) in the message {said}.",
    "so_many_pictures": "{model} does not take so many pictures in one message.",
    "so_many_sounds": "{model} does not take so many sounds in one message.",
    "unread_kind": "{model} cannot read a file of the kind {kind}.",
}


def english(*sayings: LocalizedText) -> str:
    """Return the texts in English, joined with commas."""
    return ", ".join(in_english(SENTENCES, one) for one in sayings)


refused = partial(localized_error, InputError, SENTENCES)
"""Create the error for a refused file. Its text continues a sentence that begins with the file's name."""
