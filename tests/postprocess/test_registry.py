import numpy as np
import pytest

from simcse_cli import __version__
from simcse_cli.errors import CheckpointError, ConfigError, DataError, OutputError
from simcse_cli.postprocess import registry
from simcse_cli.postprocess.registry import FitRecord, FittedPostProcessor
from simcse_cli.settings.choices import Postprocess

RECORD = FitRecord(encoder="tiny", encoder_digest="abc", source="nli", n_vectors=40)


def fitted(name: Postprocess, dim: int = 16, **settings: object) -> FittedPostProcessor:
    vectors = np.random.default_rng(0).standard_normal((40, dim)).astype(np.float32)
    return FittedPostProcessor(registry.create(name, **settings).fit(vectors), RECORD)


def test_registry_holds_every_name():
    assert set(registry.POSTPROCESSORS) == set(Postprocess)


@pytest.mark.parametrize("name", list(Postprocess))
def test_saved_post_processor_gives_the_same_vectors(name, tmp_path):
    original = fitted(name)
    registry.save(original, tmp_path / "p.safetensors")
    loaded = registry.load(tmp_path / "p.safetensors")
    vectors = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    np.testing.assert_array_equal(loaded.apply(vectors), original.apply(vectors))
    assert loaded.record == RECORD
    assert loaded.describe() == original.describe()


def test_apply_can_scale_to_length_one():
    vectors = np.random.default_rng(1).standard_normal((5, 16)).astype(np.float32)
    processor = fitted(Postprocess.WHITENING)
    scaled = processor.apply(vectors, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, rtol=1e-6)
    assert scaled.dtype == np.float32
    plain = processor.apply(vectors)
    np.testing.assert_allclose(
        scaled * np.linalg.norm(plain, axis=1, keepdims=True), plain, rtol=1e-5
    )


def test_apply_scales_vectors_of_any_length_but_zero_and_only_when_asked():
    processor = fitted(Postprocess.WHITENING)
    mean = processor.processor.state()["mean"]
    near = (mean + 1e-3 * np.random.default_rng(1).standard_normal((5, 16))).astype(np.float64)
    np.testing.assert_array_equal(processor.apply(near), processor.processor.transform(near))
    assert np.linalg.norm(processor.apply(near), axis=1).max() < 1
    np.testing.assert_allclose(np.linalg.norm(processor.apply(near, normalize=True), axis=1), 1)
    np.testing.assert_array_equal(processor.apply(mean[None], normalize=True), np.zeros((1, 16)))


def test_description_names_the_map_its_settings_its_fit_and_the_version():
    assert fitted(Postprocess.WHITENING, k=3).describe() == {
        "name": "whitening",
        "settings": {"k": 3, "eigenvalue_floor": 1e-10},
        "fit": {"encoder": "tiny", "encoder_digest": "abc", "source": "nli", "n_vectors": 40},
        "version": __version__,
    }


def test_load_refuses_one_value_that_is_not_finite(tmp_path):
    broken = fitted(Postprocess.WHITENING)
    broken.processor.state()["mean"][3] = np.nan
    registry.save(broken, tmp_path / "p.safetensors")
    with pytest.raises(CheckpointError, match="mean is not finite"):
        registry.load(tmp_path / "p.safetensors")


@pytest.mark.parametrize("name", list(Postprocess))
def test_load_refuses_zeros_in_place_of_the_content(name, tmp_path):
    path = tmp_path / "p.safetensors"
    registry.save(fitted(name), path)
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    path.write_bytes(content[:start] + bytes(len(content) - start))
    with pytest.raises(CheckpointError, match=r"p\.safetensors cannot be read"):
        registry.load(path)


def test_digest_tells_maps_apart():
    digests = {fitted(name).digest for name in Postprocess} | {
        fitted(Postprocess.WHITENING, k=3).digest
    }
    assert len(digests) == 5
    assert fitted(Postprocess.FLOW).digest == fitted(Postprocess.FLOW).digest


def test_create_passes_settings_on():
    assert registry.create(Postprocess.WHITENING, k=3).settings()["k"] == 3


@pytest.mark.parametrize("settings", [{"k": 0}, {"depth": 3}])
def test_create_refuses_impossible_settings(settings):
    with pytest.raises(ConfigError, match="post-processing whitening"):
        registry.create(Postprocess.WHITENING, **settings)


def test_save_does_not_overwrite_without_force(tmp_path):
    path = tmp_path / "p.safetensors"
    registry.save(fitted(Postprocess.WHITENING), path)
    with pytest.raises(OutputError, match="exists already"):
        registry.save(fitted(Postprocess.WHITENING), path)
    registry.save(fitted(Postprocess.SIF), path, force=True)
    assert registry.load(path).processor.name is Postprocess.SIF


def test_load_names_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.safetensors does not exist"):
        registry.load(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("content", [b"not safetensors", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_load_refuses_another_file(content, tmp_path):
    path = tmp_path / "p.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="need a saved post-processor") as caught:
        registry.load(path)
    assert "--save-postprocess" in (caught.value.hint or "")


def test_load_refuses_a_truncated_file(tmp_path):
    path = tmp_path / "p.safetensors"
    registry.save(fitted(Postprocess.FLOW), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="need a saved post-processor"):
        registry.load(path)


@pytest.mark.parametrize(
    ("dim", "digest", "message"),
    [(8, "abc", "gives 8 dimensions, need 16"), (16, "abd", "other weights")],
)
def test_check_encoder_refuses_another_encoder(dim, digest, message):
    with pytest.raises(CheckpointError, match=message):
        registry.check_encoder(
            fitted(Postprocess.WHITENING), dim=dim, digest=digest, place="w.safetensors"
        )


def test_check_encoder_accepts_the_encoder_it_was_fitted_on():
    registry.check_encoder(
        fitted(Postprocess.WHITENING), dim=16, digest="abc", place="w.safetensors"
    )
