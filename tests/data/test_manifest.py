import hashlib
import json

from simcse_cli.data.manifest import build_manifest, describe_file, manifest_path
from simcse_cli.files import write_json


def test_describe_file_gives_size_and_digest(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc")
    assert describe_file(path) == {
        "path": str(path),
        "bytes": 3,
        "sha256": hashlib.sha256(b"abc").hexdigest(),
    }


def test_describe_file_of_stdin_and_hub_has_no_digest():
    for name in ("-", "hf://a/b"):
        assert describe_file(name) == {"path": name, "bytes": None, "sha256": None}


def test_manifest_is_the_same_wherever_the_output_lies(tmp_path):
    written = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        output = folder / "out.txt"
        output.write_text("a\n")
        manifest = build_manifest(
            "sentences", inputs=["-"], folder=folder, outputs=[(output, 1)], settings={}, seed=1, counts={}
        )
        write_json(manifest_path(output), manifest)
        written.append(manifest_path(output))
    assert written[0].name == "out.txt.manifest.json"
    assert written[0].read_bytes() == written[1].read_bytes()
    assert json.loads(written[0].read_text())["outputs"][0]["path"] == "out.txt"
