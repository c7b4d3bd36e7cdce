"""Names, values and lines that would steer a terminal, or hide what they say: no command prints a character of them as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata

import pytest
from tests.cli.test_doctor_fix import UNSHARE, own_shm

from unhang import encoding

UNHANG = (sys.executable, "-m", "unhang")
# OSC 52, a colour of eight bits, an order, zero widths, a tag, a filler, a link and markup of rich's.
HOSTILE = "e\x1b]52;c;eA==\x07\x9b31m\u202e\u200b\u2060\ufeff\u00ad\U000e0041\u3164[link=x]y[bold]"
_TRACEBACK = ("Traceback (most recent call last):", f'  File "/w/{HOSTILE}.py", line 3, in {HOSTILE}', f"    {HOSTILE}", f"ValueError: {HOSTILE}")
LINES = "".join(f"[rank0]: {line}\n" for line in _TRACEBACK)


def forbidden(text: str) -> set[str]:
    hidden = {c for c in text if "\U000e0000" <= c <= "\U000e0fff" or c in "\u115f\u1160\u3164\uffa0\u034f"}
    return hidden | {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t"}


def unhang(*argv: str, cwd, before: tuple[str, ...] = (), **environ: str) -> str:
    """What it printed. Of a finding or a refusal of ours, never of a failure."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("UNHANG_")} | {"LC_ALL": "C.UTF-8", "HOME": str(cwd), **environ}
    done = subprocess.run([*before, *UNHANG, *argv], capture_output=True, cwd=cwd, env=env, stdin=subprocess.DEVNULL, timeout=120, check=False)
    assert done.returncode in (0, 1, 2), done.stderr
    return (done.stdout + done.stderr).decode()


@pytest.fixture
def place(tmp_path):
    (tmp_path / f"{HOSTILE}.log").write_text(LINES)
    (tmp_path / f"{HOSTILE}.sh").write_text(
        f"#!/bin/bash\n#SBATCH --job-name={HOSTILE}\nexport NCCL_{HOSTILE}=1 NCCL_DEBUG='{HOSTILE}'\nsrun python {HOSTILE}\n"
    )
    (tmp_path / f"{HOSTILE}.json").write_text("{" + HOSTILE)
    run = tmp_path / f"run{HOSTILE}"
    (run / "logs" / "attempt-0").mkdir(parents=True)
    (run / "logs" / "attempt-0" / "rank0.err").write_text(LINES)
    (run / "run.json").write_text('{"schema": "unhang/run/1"}')
    (run / "events.jsonl").write_text('{"s": 1, "event": "Finished", "exitcode": 1, "attempts": 1, "incidents": 0, "elapsed_s": 1}\n')
    return tmp_path


COMMANDS = {
    "why": ("why", f"{HOSTILE}.log"),
    "why --json": ("why", "--json", f"{HOSTILE}.log"),
    "why --markdown": ("why", "--markdown", f"{HOSTILE}.log"),
    "why --all": ("why", "--all", "."),
    "why of a run": ("why", f"run{HOSTILE}"),
    "why of nothing": ("why", f"{HOSTILE}x"),
    "top": ("top", "--once", f"run{HOSTILE}"),
    "top --json": ("top", "--json", f"run{HOSTILE}"),
    "digest": ("why", "--digest", "there", "."),
    "run": ("run", "--dry-run", "--run-dir", f"{HOSTILE}/r", "--", HOSTILE),
    "run --json": ("run", "--dry-run", "--json", "--run-dir", f"{HOSTILE}/r", "--", "true", HOSTILE),
    "set": ("run", "--dry-run", "--set", f"{HOSTILE}=1", "true"),
    "vars": ("vars",),
    "vars --json": ("vars", "--json"),
    "vars of a script": ("vars", f"{HOSTILE}.sh"),
    "a variable": ("vars", f"NCCL_{HOSTILE}"),
    "doctor": ("doctor",),
    "doctor --json": ("doctor", "--json"),
    "doctor --diff": ("doctor", "--diff", f"{HOSTILE}.json", f"{HOSTILE}.json"),
    "pack": ("pack", "save", HOSTILE, f"{HOSTILE}.tar.zst"),
    "pack verify": ("pack", "verify", f"{HOSTILE}.json"),
    "plan": ("plan", f"{HOSTILE}.json"),
    "bench": ("bench", "--resume", f"run{HOSTILE}"),
    "export --check": ("export", "--check", f"{HOSTILE}.sh"),
    "explain": ("explain", HOSTILE),
    "presets": ("presets", HOSTILE),
    "an option": ("why", f"--{HOSTILE}"),
    "a verb": (HOSTILE,),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_acts_on_the_terminal(place, name):
    encoding = {"PYTHONIOENCODING": "ascii"} if name == "an option" else {}
    said = unhang(*COMMANDS[name], cwd=place, NCCL_SOCKET_IFNAME=HOSTILE, NCCL_DEBUG_FILE=HOSTILE, MASTER_ADDR=HOSTILE, HOSTNAME=HOSTILE, **encoding)
    assert said and not forbidden(said), sorted(map(ascii, forbidden(said)))


def test_settings_of_a_project(place):
    (place / "unhang.toml").write_text('[run]\npreset = "e\\u001b]52;c;eA==\\u0007\\u009b31m\\u200b"\n')
    (place / "unhang.toml").chmod(0o600)
    said = unhang("run", "--dry-run", "true", cwd=place)
    assert "52;c" in said and not forbidden(said)


@own_shm
@pytest.mark.parametrize("options", [(), ("--fix",), ("--fix", "--yes"), ("--fix", "--json"), ("--json",)])
def test_names_in_dev_shm(tmp_path, options):
    make = "import os, sys; p = '/dev/shm/nccl-' + sys.argv[1][:60].replace('/', '_'); open(p, 'wb').truncate(1 << 20); os.utime(p, (1, 1))"
    inside = 'mount -t tmpfs -o size=4g tmpfs /dev/shm && "$0" -c "$1" "$2" && shift 2 && exec "$@"'
    before = (*UNSHARE, "sh", "-c", inside, sys.executable, make, HOSTILE)
    said = unhang("doctor", "--only", "shm", *options, cwd=tmp_path, before=before)
    assert ("52;c" in said or not options) and not forbidden(said), sorted(map(ascii, forbidden(said)))


def test_what_a_training_writes_is_passed_on_as_it_is(tmp_path):
    (tmp_path / "train.py").write_text(f"import sys; sys.stdout.buffer.write({HOSTILE.encode()!r} + b'\\xff\\n')")
    command = [*UNHANG, "run", "--", sys.executable, "train.py"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=120, check=False)
    assert done.stdout == HOSTILE.encode() + b"\xff\n"


def test_json_means_what_it_meant():
    encoded = encoding.encode({HOSTILE: [HOSTILE, "中文 👩\u200d💻 \x7f"]})
    assert not forbidden(encoded.decode()) and json.loads(encoded) == {HOSTILE: [HOSTILE, "中文 👩\u200d💻 \x7f"]}
