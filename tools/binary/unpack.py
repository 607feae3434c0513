"""Unpack the archive of the binary beside its interpreter; stub.c runs this once.

The exit code is ``ERRNO`` plus an errno, so that stub.c can tell it from those of a loader or an
interpreter.
"""

import errno
import mmap
import os
import sys
import tarfile

import zstandard

BLOCK = 1 << 20
WINDOW = 1 << 27
ERRNO = 127


def unpack(file: int, offset: int, size: int, folder: str) -> None:
    """Write the files of the tar.zst that is ``size`` bytes of an open file from ``offset`` on."""
    with (
        mmap.mmap(file, 0, access=mmap.ACCESS_READ) as image,
        memoryview(image)[offset : offset + size] as packed,
        zstandard.ZstdDecompressor(max_window_size=WINDOW).stream_reader(packed) as stream,
        tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK) as archive,
    ):
        for member in archive:
            path = f"{folder}/{member.name}"
            if member.isdir():
                os.makedirs(path, 0o700, exist_ok=True)  # noqa: PTH103 - pathlib takes longer to import
                continue
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode)
            with open(file, "wb") as out:  # noqa: PTH123
                source = archive.extractfile(member)
                while source and (block := source.read(BLOCK)):
                    out.write(block)
        while stream.read(BLOCK):  # the checksum is at the end
            pass


if __name__ == "__main__":
    try:
        unpack(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    except OSError as error:
        sys.exit(ERRNO + (error.errno or errno.EIO))
    except (zstandard.ZstdError, tarfile.TarError):
        sys.exit(ERRNO + errno.EBADMSG)
