"""The messages for refused uploads, by key."""

SENTENCES = {
    "upload_broken": "The upload was not understood.",
    "upload_too_many": "At most {most} files can be attached at once.",
    "upload_too_large": "At most {most:g} MB can be attached at once.",
    "upload_file_too_large": "{name} is larger than {most:.0f} MB, which is the most.",
    "upload_quota": (
        "You have attached files that are not sent yet, and {most:g} MB of these is the most. "
        "Send them first, or try again in an hour."
    ),
    "upload_quota_guests": (
        "Visitors without cookies may attach {most:g} MB together, and have done so. "
        "Allow cookies for this page, or try again in an hour."
    ),
    "upload_count": (
        "You have attached {most} files that are not sent yet, and more are not possible. "
        "Send them first, or try again in an hour."
    ),
    "upload_count_guests": (
        "Visitors without cookies may attach {most} files together, and have done so. "
        "Allow cookies for this page, or try again in an hour."
    ),
    "upload_full": "There is no room for more files at the moment. Try again in an hour.",
}
