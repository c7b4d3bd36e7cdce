"""Event files, read back by TensorBoard itself."""

import math

import pytest

import unhang
from unhang.runtime.monitoring.sinks.measures import flat

pytest.importorskip("tensorboard")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_every_number_beside_the_training_s_own(busy, tmp_path):
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from torch.utils.tensorboard import SummaryWriter

    theirs = SummaryWriter(str(tmp_path / "run7"))
    sink = unhang.TensorBoard(tmp_path / "run7")
    for at_s, step in ((0, 100), (10, 150)):
        theirs.add_scalar("loss", 1.0, step)
        sink.write(busy(at_s, step=step))
        # There for whoever looks now, though the training goes on.
        read = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
        assert read.Tensors("run7/unhang", "unhang/restarts")[-1].step == step
    theirs.close()
    sink.close()
    read = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    assert set(read.Runs()) == {"run7", "run7/unhang"}
    assert set(read.Runs()["run7/unhang"]["tensors"]) == set(flat(busy()))
    values = {name: read.Tensors("run7/unhang", name) for name in flat(busy())}
    assert all([one.step for one in found] == [100, 150] for found in values.values())
    assert [one.wall_time - busy().time_s for one in values["unhang/restarts"]] == [0, 10]
    number = {name: found[0].tensor_proto.float_val[0] for name, found in values.items()}
    assert number["unhang/stragglers/world/share"] == pytest.approx(0.8) and number["unhang/restarts"] == 1
    assert math.isnan(number["unhang/calls/barrier/ranks_0_2/latency_p99_s"])
    assert math.isinf(number["unhang/calls/broadcast/ranks_1_3/busbw_p50_gbps"])


def test_a_rank_that_writes_nothing_leaves_no_directory(tmp_path):
    unhang.TensorBoard(tmp_path / "logs").close()
    assert list(tmp_path.iterdir()) == []


def test_event_files_go_to_the_run_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("UNHANG_RUN_DIR", str(tmp_path))
    assert unhang.TensorBoard().log_dir == tmp_path / "tensorboard" / "unhang"
