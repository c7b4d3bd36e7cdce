"""What the rows say, in which order they come, and that none of them is held in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import data as rows_data
import prepare
import pyarrow as pa
import pytest
import questions
from tests.chinese import zh

from unhang.knowledge import catalogue

pytestmark = pytest.mark.torch


def is_chinese(text: str) -> bool:
    return any("\u4e00" <= letter <= "\u9fff" for letter in text)


def test_rows_come_from_the_catalogue_in_both_languages(data: Path) -> None:
    train = rows_data.ArrowRows(data / "train.arrow")
    assert len(train) == 400
    seen = [train.text(i) for i in range(len(train))]
    causes = catalogue.load()
    assert {(row["language"], row["cause"]) for row in seen} == {(language, cause) for language in ("en", "zh") for cause in causes}
    for row in seen:
        cause = causes[row["cause"]]
        if row["language"] == "zh":
            assert is_chinese(row["question"])
            assert row["answer"] in cause.explain["zh"]
        else:
            assert not is_chinese(row["question"] + row["answer"])
            assert row["answer"] in (cause.what, cause.why, cause.explain["en"], " ".join(r.says for r in cause.remedies))
        assert row["cause"] in row["question"] or cause.title in row["question"] or zh(cause.title) in row["question"]


def test_the_tokenizer_gives_the_text_back(data: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    train = rows_data.ArrowRows(data / "train.arrow")
    for i in range(40):
        ids, text = train[i], train.text(i)
        assert ids["input_ids"][-1] == ids["labels"][-1] == prepare.EOS
        assert tokenizer.decode(ids["input_ids"].tolist()) == text["question"]
        assert tokenizer.decode(ids["labels"].tolist()) == text["answer"]
    assert tokenizer.decode(tokenizer.encode("Ωμέγα 龘").ids) == "Ωμέγα 龘"


def test_rows_are_varied_and_the_same_every_time() -> None:
    base = questions.subjects()
    first = list(questions.rows(3000, seed=1, base=base))
    assert first == list(questions.rows(3000, seed=1, base=base))
    assert first != list(questions.rows(3000, seed=2, base=base))
    assert len({row.question for row in first}) > 2000


def test_evaluation_rows_are_not_those_of_the_training(data: Path) -> None:
    evaluation = rows_data.ArrowRows(data / "eval.arrow")
    assert len(evaluation) == 24
    made = list(questions.rows(424, seed=0, base=questions.subjects()))
    assert [evaluation.text(i)["question"] for i in range(24)] == [row.question for row in made[400:]]


def test_the_same_preparation_gives_the_same_files(data: Path, tmp_path: Path) -> None:
    prepare.prepare(tmp_path / "again", rows=400, eval_rows=24, vocab=1024, seed=0)
    for name in ("train.arrow", "eval.arrow", "tokenizer.json", "meta.json"):
        assert (tmp_path / "again" / name).read_bytes() == (data / name).read_bytes(), name


def test_a_slower_preparation_takes_what_is_there(data: Path) -> None:
    before = sorted(path.name for path in data.parent.iterdir())
    assert prepare.prepare(data, rows=2, eval_rows=2, vocab=512, seed=5) == prepare.read_meta(data)
    assert prepare.read_meta(data)["rows"] == 400
    assert sorted(path.name for path in data.parent.iterdir()) == before


def test_a_preparation_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "row", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare.prepare(tmp_path / "data", rows=2, eval_rows=2, vocab=512, seed=0)
    assert list(tmp_path.iterdir()) == []


def test_waiting_for_data_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"was not prepared within 0 s; usual cause: local rank 0 failed"):
        prepare.wait(tmp_path / "data", seconds=0)


def test_an_epoch_has_every_row_once() -> None:
    order = rows_data.Order(1000, seed=3, block=64)
    epochs = [[order.row(epoch, place) for place in range(1000)] for epoch in (0, 1, 0)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(1000))
    assert epochs[0] != epochs[1]
    assert epochs[0] == epochs[2]
    assert sum(abs(row - place) > 64 for place, row in enumerate(epochs[0])) > 500


def test_ranks_share_an_epoch_and_any_position_can_be_resumed() -> None:
    def batches(rank: int, start: int) -> list[list[int]]:
        return list(rows_data.Batches(rows_data.Order(50, seed=0, block=16), batch_size=4, rank=rank, world_size=3, start=start, stop=9))

    one_epoch = [row for rank in range(3) for batch in batches(rank, 0)[:4] for row in batch]
    assert len(one_epoch) == len(set(one_epoch)) == 48
    for rank in range(3):
        assert batches(rank, 6) == batches(rank, 0)[6:]


def test_too_few_rows_for_one_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="5 rows are fewer than one batch of 4 on each of 2 ranks"):
        rows_data.Batches(rows_data.Order(5, seed=0), batch_size=4, rank=0, world_size=2, start=0, stop=1)


def test_long_rows_are_cut_and_still_end(data: Path) -> None:
    train = rows_data.ArrowRows(data / "train.arrow")
    batch = rows_data.Collate(source_tokens=8, target_tokens=6)([train[i] for i in range(8)])
    assert batch["input_ids"].shape == (8, 8)
    assert batch["labels"].shape == (8, 6)
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        assert [i for i in ids if i != prepare.PAD][-1] == prepare.EOS
        assert [i for i in labels if i != rows_data.IGNORED][-1] == prepare.EOS
    assert batch["attention_mask"].tolist() == (batch["input_ids"] != prepare.PAD).long().tolist()


# Reads every row of one epoch and prints what the process then holds for itself, beside the size of the file.
READ_ALL = """
import json, re, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from data import ArrowRows, Batches, Order
def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
before = anonymous()
rows = ArrowRows(Path(sys.argv[2]))
order = Order(len(rows), seed=0)
for batch in Batches(order, batch_size=8, rank=0, world_size=1, start=0, stop=len(rows) // 8):
    tokens = [rows[i]["input_ids"].sum() for i in batch]
print(json.dumps({"grown": anonymous() - before, "file": Path(sys.argv[2]).stat().st_size}))
"""


@pytest.mark.integration
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def measure(batches: int) -> dict[str, int]:
        ids = pa.array([list(range(100))] * prepare.ROWS_IN_A_BATCH, type=pa.list_(pa.int32()))
        batch = pa.record_batch([ids, ids], names=["input_ids", "labels"])
        with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            for _ in range(batches):
                writer.write_batch(batch)
        command = [sys.executable, "-c", READ_ALL, str(Path(rows_data.__file__).parent), str(tmp_path / "rows.arrow")]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout)

    few, many = measure(1), measure(196)
    assert many["file"] > 150 << 20
    assert many["grown"] - few["grown"] < 8 << 20
