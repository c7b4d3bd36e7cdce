"""The command line."""

from __future__ import annotations

from pathlib import Path

import options
import pytest


def test_switches_take_the_spellings_in_use() -> None:
    for given in (
        ["--is_finetune=True", "--use_small_config=True"],
        ["--is-finetune", "--use-small-config"],
        ["--is_finetune", "true", "--preset", "small"],
    ):
        parsed = options.parse(["train", *given])
        assert (parsed.is_finetune, parsed.preset, parsed.size) == (True, "small", "small")
    assert options.parse(["train", "--is_finetune=False"]).is_finetune is False


def test_the_preset_fills_in_and_the_command_line_wins() -> None:
    parsed = options.parse(["train", "--preset", "demo", "--use_small_config", "--max-steps", "3", "--output", "here"])
    assert (parsed.preset, parsed.size, parsed.max_steps, parsed.save_every, parsed.data) == ("demo", "tiny", 3, 6, Path("here/data"))
    assert options.parse(["train"]).preset == "gpu16"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["train", "--preset", "gpu16", "--use_small_config"], "contradicts --preset gpu16"),
        (["train", "--save-every", "0"], "--save-every must be at least 1"),
        (["train", "--is_finetune=maybe"], "'maybe' is neither True nor False"),
    ],
)
def test_what_cannot_be_is_refused(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        options.parse(given)
    assert left.value.code == 2
    assert says in capsys.readouterr().err


def test_every_preset_sets_the_same_options() -> None:
    assert len({tuple(sorted(preset)) for preset in options.PRESETS.values()}) == 1
