"""SHA-256 digests of files, of values and of encoders."""

import hashlib
from pathlib import Path


def sha256_file(path: Path | str) -> str:
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(*parts: str | bytes | memoryview) -> str:
    """Return the SHA-256 of the joined parts as 64 hex digits; texts are encoded as UTF-8."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
    return state.hexdigest()


_ENCODER_MARK = "2-"


def encoder_digest(*parts: str | bytes | memoryview) -> str:
    """Return the digest of an encoder, with a mark that digests of simcse 1.0.0 do not have.

    Digests without the mark leave out the tokenizer and the configuration, so they do not identify
    an encoder.
    """
    return _ENCODER_MARK + digest(*parts)


def is_older_digest(recorded: object, current: str) -> bool:
    """Tell whether a recorded digest was made by simcse 1.0.0, and the current one was not."""
    is_marked = isinstance(recorded, str) and recorded.startswith(_ENCODER_MARK)
    return recorded is not None and current.startswith(_ENCODER_MARK) and not is_marked


OLDER_DIGEST = (
    "is of simcse 1.0.0, whose record of a model leaves out its tokenizer and its configuration"
)
