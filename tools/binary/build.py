"""Build the binary: one file with an interpreter, the wheel and all it needs. See stub.c for what is in the file."""

import argparse
import hashlib
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from fnmatch import fnmatch
from importlib.util import cache_from_source, source_from_cache
from pathlib import Path
from py_compile import PycInvalidationMode

import unpack
import zstandard

HERE = Path(__file__).resolve().parent
EXTRAS = "demo,plot"  # the kernels (numba and LLVM) would add 50 MB
LIMIT = 350_000_000
LEVEL = 12  # 19 takes more than ten times as long
TRAILER = 256
VERSION = f"python{sysconfig.get_python_version()}"
GLIBC = (
    "ld-linux*",
    "libc.so.*",
    "libm.so.*",
    "libdl.so.*",
    "libpthread.so.*",
    "librt.so.*",
    "libutil.so.*",
)
# Of the standard library: what needs a screen, tests, tools, and readline, whose licence does not
# go with ours.
STDLIB_WITHOUT = """
site-packages __pycache__ config-* test tests idlelib tkinter turtledemo ensurepip lib2to3 pydoc_data venv readline.*
_test* _ctypes_test* _xx* xx* _tkinter.* _curses* _dbm.* _gdbm.* nis.* _crypt.* spwd.* ossaudiodev.*
""".split()
# Of the packages: what only compilers and tests read, and what no command imports.
SITE_WITHOUT = """
*.a *.h *.hpp *.cuh *.pyi *.pyx *.pxd */tests/* bin/* setuptools* _distutils_hack/* distutils-precedence.pth
torch/test/* torch/include/* torch/bin/[!t]* torch/bin/test* torch/lib/*test.so torch/lib/libbackend_with_compiler.so
torch/lib/libaoti_custom_ops.so pyarrow/include/* pyarrow/*flight* pyarrow/libarrow*.so.*.*.* fontTools/*.so *avif*
sklearn/* scikit_learn* sentence_transformers*
""".split()
# Symbols that only a debugger reads: 150 MB.
STRIP = ["libpython*", "lib-dynload/*", "torch/lib/libtorch_*.so", "zstandard/*.so"]


def run(*command: object, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, env=env).stdout


def install(root: Path, wheel: Path) -> None:
    """Make the folder that the binary unpacks: bin/python3, lib/, lib/pythonX.Y/ with site-packages."""
    stdlib = root / "lib" / VERSION
    site = stdlib / "site-packages"
    shutil.copytree(
        sysconfig.get_path("stdlib"), stdlib, ignore=shutil.ignore_patterns(*STDLIB_WITHOUT)
    )
    constraints = HERE.parents[1] / "constraints.txt"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-compile",
        "--target",
        site,
        "-c",
        constraints,
    ]
    run(*pip, "torch", "zstandard", f"{wheel}[{EXTRAS}]")
    for path in sorted(
        site.rglob("*"), reverse=True
    ):  # an empty folder would be taken for a package
        if (
            any(fnmatch(str(path.relative_to(site)), pattern) for pattern in SITE_WITHOUT)
            and path.is_file()
        ):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    shutil.copy(HERE / "unpack.py", root)
    add_interpreter(root)
    run(
        "strip",
        *(path for pattern in STRIP for path in root.glob(f"**/{pattern}") if path.is_file()),
    )
    compile_used(root, stdlib)


def compile_used(root: Path, stdlib: Path) -> None:
    """Compile what the usual commands import. All else, 200 MB, Python compiles when it is first used."""
    python = root / "bin/python3"
    with tempfile.TemporaryDirectory() as folder:
        sentences, vectors, trained = (f"{folder}/{name}" for name in ("two.txt", "two.npy", "run"))
        Path(sentences).write_text("A dog runs.\nIt rains.\n")
        for words in (
            ["--help"],
            ["train", "--mode", "unsup", "--max-steps", "2", "-o", trained],
            ["encode", sentences, "-o", vectors, "--model", trained],
            ["eval", "sts", "--model", trained],
        ):
            run(
                python,
                "-m",
                "simcse_cli",
                *words,
                "-q",
                env={"SIMCSE_CACHE": folder, "TMPDIR": folder},
            )
    for path in stdlib.rglob("*.nb[ic]"):  # kernels for this machine
        path.unlink()
    for path in [*stdlib.rglob("*.pyc")]:  # to be believed, whatever the time of the source is
        py_compile.compile(
            source_from_cache(path), invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
        )


def add_interpreter(root: Path) -> None:
    """Add the interpreter, and every shared library that it or a package needs and that is not of glibc.

    The interpreter is linked against all of them: what is loaded already is found by its name,
    whatever paths the one who needs it has.
    """
    libraries = root / "lib"
    objects = [path for path in root.rglob("*.so*") if path.is_file()]
    python = (
        Path(sysconfig.get_config_var("LIBDIR")) / sysconfig.get_config_var("LDLIBRARY")
    ).resolve()
    needed = [*foreign_libraries([*objects, python], root), python]
    (root / "bin").mkdir()
    for each in needed:
        shutil.copy(each, libraries / each.name)
    paths = [
        "-Wl,--no-as-needed,--disable-new-dtags,-rpath,$ORIGIN/../lib",
        f"-I{sysconfig.get_path('include')}",
    ]
    names = [f"-l:{each.name}" for each in needed]
    run(
        "gcc",
        "-O2",
        HERE / "launcher.c",
        "-o",
        root / "bin/python3",
        *paths,
        f"-L{libraries}",
        *names,
    )


def foreign_libraries(objects: Iterable[Path], root: Path) -> list[Path]:
    """Return the libraries outside ``root`` that the loader would take, those of glibc excepted."""
    lines = run("ldd", *objects).splitlines()
    found = {Path(line.split()[2]) for line in lines if " => /" in line}
    outside = [path for path in found if not path.resolve().is_relative_to(root)]
    return sorted(path for path in outside if not any(fnmatch(path.name, each) for each in GLIBC))


def runtime_files(root: Path) -> list[Path]:
    """Return what the interpreter needs to run unpack.py: its libraries and the modules that this imports."""
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); import encodings.utf_8, unpack; "
        "print(*(m.__file__ for m in [*sys.modules.values()] if getattr(m, '__file__', 0)), "
        "sep='\\n')"
    )
    modules = run(root / "bin/python3", "-c", code, env={})
    sources = [Path(line) for line in modules.splitlines()]
    cached = [Path(cache_from_source(path)) for path in sources if path.suffix == ".py"]
    landmark = root / "lib" / VERSION / "lib-dynload"
    files = [
        root / "bin/python3",
        *(root / "lib").glob("*.so*"),
        *sources,
        *filter(Path.exists, cached),
    ]
    return [*dict.fromkeys([*files, next(landmark.iterdir())])]


def write_runtime(root: Path, files: Iterable[Path], target: Path) -> None:
    """Write what the stub unpacks: folders before what is in them, no links, names of at most 255 characters."""
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        names = [path.relative_to(root) for path in files]
        folders = {parent for name in names for parent in name.parents}
        for name in [*sorted(folders)[1:], *names]:
            archive.add(root / name, str(name), recursive=False)


def write_archive(root: Path, without: Iterable[Path], target: Path) -> None:
    """Write all else: folders, then files, those of a kind side by side, which packs a little better."""
    paths = sorted(
        set(root.rglob("*")) - set(without), key=lambda path: (path.is_file(), path.suffix, path)
    )
    settings = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        window_log=unpack.WINDOW.bit_length() - 1,
        enable_ldm=True,
        threads=2,
        write_checksum=True,
    )
    with (
        target.open("wb") as file,
        zstandard.ZstdCompressor(compression_params=settings).stream_writer(
            file, closefd=False
        ) as stream,
        tarfile.open(fileobj=stream, mode="w|") as archive,
    ):
        for path in paths:
            archive.add(path, str(path.relative_to(root)), recursive=False)


def needed_glibc(root: Path) -> int:
    """Return the minor version of the oldest glibc 2 that has all symbols the interpreter and the libraries need."""
    objects = [root / "bin/python3", *(path for path in root.rglob("*.so*") if path.is_file())]
    return max(
        map(int, re.findall(r"Name: GLIBC_2\.(\d+)", run("readelf", "--version-info", *objects)))
    )


def compile_stub(target: Path) -> None:
    """Compile the head of the file."""
    run("gcc", "-O2", "-Wall", "-Werror", "-static", "-s", HERE / "stub.c", "-o", target)


def assemble(
    stub: Path, runtime: Path, archive: Path, version: str, unpacked: int, glibc: int, target: Path
) -> None:
    """Put the parts behind each other, and the line that says where they are."""
    parts = [stub.read_bytes(), runtime.read_bytes(), archive.read_bytes()]
    digest = hashlib.sha256(parts[1] + parts[2]).hexdigest()[:16]
    sizes = [len(part) for part in parts]
    line = (
        f"simcse-binary {' '.join(map(str, sizes))} {unpacked} {zlib.crc32(parts[1]):x} {glibc} "
        f"{version}-{digest} "
    )
    trailer = f"{line}{zlib.crc32(line.encode()):08x}".ljust(TRAILER - 1) + "\n"
    with target.open("wb") as file:
        file.writelines([*parts, trailer.encode()])
    target.chmod(0o755)


def main() -> None:
    """Build the file from a wheel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    work = arguments.target.with_suffix(".build").resolve()
    shutil.rmtree(work, ignore_errors=True)
    root, stub, runtime, archive = (
        work / name for name in ("root", "stub", "runtime.tar", "archive.tar.zst")
    )
    root.mkdir(parents=True)
    install(root, arguments.wheel.resolve())
    files = runtime_files(root)
    write_runtime(root, files, runtime)
    write_archive(root, files, archive)
    compile_stub(stub)
    unpacked = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    version = arguments.wheel.name.split("-")[1]
    assemble(stub, runtime, archive, version, unpacked, needed_glibc(root), arguments.target)
    size = arguments.target.stat().st_size
    if size > LIMIT:
        sys.exit(
            f"{arguments.target} has {size:,} bytes, it may have {LIMIT:,}: is torch its CPU "
            f"build? See {work}"
        )
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
