"""SHA-256 of files and values, and the digests that name an encoder."""

import hashlib
from pathlib import Path


def sha256_file(path: Path | str) -> str:
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(*parts: str | bytes | memoryview) -> str:
    """Return the SHA-256 of joined parts as 64 hex digits; texts are UTF-8 with surrogates."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
    return state.hexdigest()


_ENCODER_MARK = "2-"


def encoder_digest(*parts: str | bytes | memoryview) -> str:
    """Return the digest of an encoder, with a mark that tells it from those of version 1.0.0.

    Those cover neither the tokenizer nor the configuration, so that nothing is known by them.
    """
    return _ENCODER_MARK + digest(*parts)


def is_older_digest(found: object, now: str) -> bool:
    """Tell whether a recorded digest is of version 1.0.0, and that of today is not."""
    is_marked = isinstance(found, str) and found.startswith(_ENCODER_MARK)
    return found is not None and now.startswith(_ENCODER_MARK) and not is_marked


OLDER_DIGEST = (
    "is of simcse 1.0.0, whose record of a model leaves out its tokenizer and its configuration"
)
