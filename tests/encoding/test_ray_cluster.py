"""Ray as its users know it: a class for ``map_batches``, and machines that differ in size or are lost."""

import threading

import numpy as np
import pyarrow as pa
import pytest

from helpers import SENTENCES, wait_until
from simcse_cli import BatchEncoder, load
from simcse_cli.encoding.ray_engine import share_cores


@pytest.mark.parametrize(
    ("cores", "workers", "expected"),
    [
        ([1, 3], None, (4, 1)),
        ([0, 8, 8], None, (2, 8)),  # a head that takes no work
        ([4, 8], 4, (4, 2)),
        ([4, 8], 3, (3, 4)),
        ([2], 3, (3, 1)),
        ([2, 8], 2, (2, 4)),
        ([6], 2, (2, 3)),
        ([0], None, (1, 1)),
    ],
)
def test_workers_fit_the_machines(cores, workers, expected):
    n_workers, share = share_cores(cores, workers)
    assert (n_workers, share) == expected
    assert sum(n_cores // share for n_cores in cores) >= n_workers or share == 1


@pytest.fixture
def cluster(monkeypatch):
    """Yield three machines of one core on this one, which a driver can connect to, and the last of them."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    nodes = [started.add_node(num_cpus=1) for _ in range(2)]
    monkeypatch.setenv("RAY_ADDRESS", started.address)
    yield started, nodes[-1]
    started.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_a_lost_machine_loses_nothing(cluster, invoke, tiny_model_dir, tmp_path):
    machines, last = cluster
    source = tmp_path / "input.txt"
    source.write_text(
        "".join(f"{SENTENCES[n % 24][:20]} {n}\n" for n in range(34_000))
    )  # five windows

    def lose_a_machine() -> None:
        wait_until(lambda: list(tmp_path.glob(".v.shard-*.lock")))
        machines.remove_node(last, allow_graceful=False)

    loss = threading.Thread(target=lose_a_machine)
    loss.start()
    command = ("encode", source, "-m", tiny_model_dir, "--pooler", "avg", "--device", "cpu")
    outcome = invoke(*command, "-o", tmp_path / "v.npy", "--engine", "ray")
    loss.join()
    assert outcome.exit_code == 0, outcome.stderr
    assert len(machines.list_all_nodes()) == 2
    assert invoke(*command, "-o", tmp_path / "one.npy").exit_code == 0
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_a_pipeline_from_parquet_to_parquet(tiny_model_dir, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = {"pooler": "avg", "device": "cpu"}
    (tmp_path / "in").mkdir()
    rows = pa.table({"id": range(24), "text": SENTENCES[:24]})
    parquet.write_table(rows, tmp_path / "in" / "rows.parquet")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        ray.data.read_parquet(str(tmp_path / "in")).map_batches(
            BatchEncoder,
            fn_constructor_args=(str(tiny_model_dir),),
            fn_constructor_kwargs=settings,
            concurrency=1,  # the other core reads and writes
        ).write_parquet(str(tmp_path / "out"))
    finally:
        ray.shutdown()
    table = parquet.read_table(tmp_path / "out").sort_by("id")
    assert table["text"].to_pylist() == list(SENTENCES[:24])
    found = np.stack([np.array(row) for row in table["vector"].to_pylist()])
    np.testing.assert_allclose(
        found, load(tiny_model_dir, **settings).encode(SENTENCES[:24]), atol=1e-5
    )
