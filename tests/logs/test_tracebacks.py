"""Tracebacks wherever and however they stand."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console
from rich.logging import RichHandler
from tests.tables import for_each

from unhang.logs import Needles, blocks, read

# The package has a function of the same name.
TRACE = (
    'Traceback (most recent call last):\n  File "/p/train.py", line 12, in main\n    work()\n    ~~~~^^\n  File "/p/data.py", line 3, in work\n    '
    'raise ValueError("x")\nValueError: x\n'
)


def tracebacks(tmp_path, text, **options):
    path = tmp_path / "log"
    path.write_bytes(text.encode())
    return read(path, Needles([]), **options).tracebacks


def test_a_traceback(tmp_path):
    (t,) = tracebacks(tmp_path, f"before\n{TRACE}after\n", rank=1)
    assert (t.type, t.text, t.line, t.end, t.rank) == ("ValueError", "x", 2, 8, 1)
    assert [(f.file, f.line, f.name, f.code) for f in t.frames] == [
        ("/p/train.py", 12, "main", "work()"),
        ("/p/data.py", 3, "work", 'raise ValueError("x")'),
    ]


def test_a_traceback_behind_a_progress_bar(tmp_path):
    assert len(tracebacks(tmp_path, "\r50%|##  |" + TRACE)) == 1


def test_of_a_chain_the_last_exception_counts(tmp_path):
    chain = TRACE + "\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE.replace("ValueError: x", "KeyError: 'y'")
    (t,) = tracebacks(tmp_path, chain)
    assert t.says == "KeyError: 'y'"


CAUGHT = "2026-11-21 10:27:14,128 ERROR train: sample 3 is skipped\n"


def test_what_a_logger_printed_is_logged_with_all_that_follows_from_it(tmp_path):
    (t,) = tracebacks(tmp_path, CAUGHT + TRACE)
    assert t.logged
    (t,) = tracebacks(tmp_path, CAUGHT + TRACE + "\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE)
    assert t.line > 2 and t.logged
    (t,) = tracebacks(tmp_path, CAUGHT + f'concurrent.futures.process._RemoteTraceback: \n"""\n{TRACE}"""\n')
    assert t.logged


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_a_line_that_tells_of_no_error_is_no_record_of_one(tmp_path, level):
    (t,) = tracebacks(tmp_path, f"2026-11-21 10:27:14,128 {level} train: step 2 loss 0.8\n" + TRACE)
    assert not t.logged
    (t,) = tracebacks(tmp_path, CAUGHT.replace("ERROR", "WARNING") + TRACE)
    assert t.logged


@for_each(
    ("behind", "steps"),
    [
        ("epoch 1: 8 batches\n", ("epoch 1",)),
        ("2026-11-21 10:27:14,437 INFO train: step 2 loss -0.2315\n", ("step 2",)),
        ("Epoch [1/3], Step [20/90], loss 0.3\nEpoch [1/3], Step [21/90], loss 0.3\n", ("Epoch [1 Step [20", "Epoch [1 Step [21")),
        (" 43%|####3     | 430/1000 [10:02<13:11,  1.39s/it]\r 44%|####4     | 440/1000 [10:03<13:09,  1.39s/it]\n", ("430/1000 [", "440/1000 [")),
        # Two ranks in one step.
        ("step 2 loss 0.3\nstep 2 loss 0.4\nloss 0.5\n", ("step 2",)),
        ("the next step fails as well\n", ()),
        ("slurmstepd: error: *** STEP 4711.0 ON node1 CANCELLED AT 2026-11-03T10:42:12 ***\nsrun: Job step aborted\n", ()),
        ("other\n" * 40 + "epoch 1: 8 batches\n", ()),
        ("", ()),
    ],
)
def test_steps_behind_a_traceback(tmp_path, behind, steps):
    (t,) = tracebacks(tmp_path, CAUGHT + TRACE + behind)
    assert t.steps == steps


@pytest.mark.parametrize("tracker", ["wandb:", "\x1b[34m\x1b[1mwandb\x1b[0m:", "COMET INFO:", "swanlab:", "[neptune] [info   ]"])
def test_the_summary_of_a_tracker_tells_of_no_steps(tmp_path, tracker):
    lines = ("Run summary:", " epoch 3", "    step 40", "  loss 0.8", "    train/loss 0.7", "  loss █▄▁", " trainer/global_step 40")
    (t,) = tracebacks(tmp_path, CAUGHT + TRACE + "".join(f"{tracker} {line}\n" for line in lines))
    assert t.steps == ()


def test_two_that_only_follow_each_other_are_two(tmp_path):
    assert len(tracebacks(tmp_path, TRACE + TRACE)) == 2


def test_interleaved_ranks_are_put_apart(tmp_path):
    a = [f"[rank0]: {x}" for x in TRACE.splitlines()]
    b = [f"[rank1]: {x}" for x in TRACE.replace("ValueError: x", "KeyError: 1").splitlines()]
    found = tracebacks(tmp_path, "\n".join(x for pair in zip(a, b, strict=True) for x in pair) + "\n")
    assert {(t.rank, t.type, len(t.frames)) for t in found} == {(0, "ValueError", 2), (1, "KeyError", 2)}


def test_a_spawned_process_is_named_by_its_parent(tmp_path):
    assert tracebacks(tmp_path, "\n-- Process 3 terminated with the following error:\n" + TRACE)[0].rank == 3


def test_a_cut_traceback_is_none_whatever_its_last_line_of_code_raises(tmp_path):
    cut = TRACE[:-14]
    assert tracebacks(tmp_path, cut) == ()
    assert tracebacks(tmp_path, f"{cut}after\n") == ()
    assert tracebacks(tmp_path, "\n".join(cut.splitlines()[:-1])) == ()


def test_line_numbers_of_late_tracebacks(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    (t,) = tracebacks(tmp_path, "filler filler filler\n" * 50 + TRACE)
    assert t.line == 51


def test_a_line_number_that_no_file_has_is_none(tmp_path):
    (t,) = tracebacks(tmp_path, TRACE.replace("line 3,", f"line {'3' * 5000},").replace("line 12,", f"line {'1' * 5000},"))
    assert t.frames == ()


def test_other_stacks_are_none(tmp_path):
    assert tracebacks(tmp_path, TRACE.replace("Traceback", "Stack")) == ()


@pytest.fixture
def job(tmp_path):
    """What a training raises, in a file whose path is long."""
    path = tmp_path / "site" / "-".join(["words"] * 12) / "train.py"
    path.parent.mkdir(parents=True)
    path.write_text("def work(size):\n    found = {'a': size}\n    return found['b']\n\n\ndef main():\n    work(3)\n\n\nmain()\n")

    def raise_it():
        exec(compile(path.read_text(), str(path), "exec"), {})

    raise_it.path = str(path)
    return raise_it


def box(job, *, encoding="utf-8", show_locals=False, **options):
    """As rich draws it."""
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding, errors="replace"), **options)
    try:
        job()
    except KeyError:
        console.print_exception(show_locals=show_locals)
    console.file.flush()
    return raw.getvalue().decode(encoding)


def of_the_job(t, job):
    assert t.says == "KeyError: 'b'"
    assert [(f.file, f.line, f.name) for f in t.frames][-3:] == [(job.path, 10, "<module>"), (job.path, 7, "main"), (job.path, 3, "work")]
    return t.frames[-1].code == "return found['b']"


@pytest.mark.parametrize("width", [44, 80, 100, 101, 120, 300])
@pytest.mark.parametrize("options", [{}, {"show_locals": True}, {"force_terminal": True}, {"encoding": "ascii"}], ids=str)
def test_the_box_that_rich_draws(tmp_path, job, width, options):
    text = box(job, width=width, **options)
    (t,) = tracebacks(tmp_path, f"before\n{text}after\n")
    assert of_the_job(t, job) and (t.line, t.logged) == (2, False)
    assert t.end == 2 + text.count("\n") - 1


def test_boxes_behind_prefixes_are_put_apart(tmp_path, job):
    lines = box(job, width=80).splitlines()
    text = "".join(f"[rank{n}]: {line}\n" for line in lines for n in (0, 1))
    found = tracebacks(tmp_path, text)
    assert [t.rank for t in found] == [0, 1] and all(of_the_job(t, job) for t in found)
    (t,) = tracebacks(tmp_path, "".join(f"main - {line}\n" for line in lines))
    assert of_the_job(t, job)


def test_a_box_behind_a_progress_bar(tmp_path, job):
    (t,) = tracebacks(tmp_path, "50%|##  | 1/2 " + box(job, width=80))
    assert of_the_job(t, job)


def test_a_box_among_the_records_of_a_log_was_caught(tmp_path, job):
    out = io.StringIO()
    record = logging.LogRecord("job", logging.ERROR, "train.py", 1, "it failed", (), None)
    try:
        job()
    except KeyError as e:
        record.exc_info = (type(e), e, e.__traceback__)
    RichHandler(console=Console(file=out, width=120), rich_tracebacks=True).emit(record)
    (t,) = tracebacks(tmp_path, out.getvalue())
    assert of_the_job(t, job) and t.logged


def test_of_a_chain_of_boxes_the_last_exception_counts(tmp_path, job):
    first = box(job, width=80)
    chain = f"{first}\nDuring handling of the above exception, another exception occurred:\n\n{first.replace('KeyError:', 'OSError:')}"
    (t,) = tracebacks(tmp_path, chain)
    assert t.says == "OSError: 'b'"


def test_a_syntax_error_has_a_second_box(tmp_path):
    (t,) = tracebacks(
        tmp_path,
        "╭─ Traceback (most recent call last) ─╮\n│ /p/train.py:3 in <module>           │\n│                                     │\n"
        "│ ❱ 3 import other                    │\n╰─────────────────────────────────────╯\n╭─────────────────────────────────────╮\n"
        "│  /p/other.py:3                      │\n│ x = (1,                             │\n│     ▲                               │\n"
        "╰─────────────────────────────────────╯\nSyntaxError: '(' was never closed\n",
    )
    assert t.type == "SyntaxError" and [(f.line, f.code) for f in t.frames] == [(3, "import other")]


def test_a_place_with_spaces(tmp_path):
    text = (
        "╭─ Traceback (most recent call last) ─╮\n│ /tmp/ipykernel_7/1.py:3 in <cell: 3>  │\n╰─────────────────────────────────────╯\nValueError: x\n"
    )
    (t,) = tracebacks(tmp_path, text)
    assert (t.frames[0].line, t.frames[0].name) == (3, "<cell: 3>")


def test_a_cut_box_is_none(tmp_path, job):
    text = box(job, width=80)
    (alone,) = tracebacks(tmp_path, text[: text.index("╰")] + "KeyError: 'b'\n")
    assert alone.frames == ()
    assert tracebacks(tmp_path, text[: text.index("KeyError")]) == ()


BODY = TRACE.partition("\n")[2]


@for_each("before", ["", "before\n", "step 3 loss 2.1\nand\n"])
@for_each("cut", range(1, 5))
def test_a_traceback_whose_header_is_missing(tmp_path, cut, before):
    (t,) = tracebacks(tmp_path, before + "\n".join(TRACE.splitlines()[cut:]) + "\n")
    assert (t.says, t.end) == ("ValueError: x", 7 - cut + before.count("\n"))
    assert (t.frames[-1].line, t.frames[-1].code, t.logged) == (3, 'raise ValueError("x")', False)


def test_one_that_is_cut_within_a_line_and_after_prefixes(tmp_path):
    lines = TRACE.splitlines()[2:]
    text = "\n".join(["nk1]:     work()", *(f"[rank{n}]: {line}" for line in lines for n in (0, 1))]) + "\n"
    assert [(t.says, t.rank, t.frames[-1].line) for t in tracebacks(tmp_path, text)] == [("ValueError: x", 0, 3), ("ValueError: x", 1, 3)]


@for_each(
    ("text", "type", "said", "rank"),
    [
        ("ValueError: x", "ValueError", "x", None),
        ("Traceback (most recent call last):\nValueError: x", "ValueError", "x", None),
        ("   ^^^^^^^^^\nValueError: x", "ValueError", "x", None),
        (BODY.replace("ValueError: x", "starts\nValueError: x"), "ValueError", "x", None),
        ("[rank3]: AssertionError", "AssertionError", "", 3),
        ("torch._dynamo.exc.Unsupported: break", "torch._dynamo.exc.Unsupported", "break", None),
        ("2: queue.errors.Late: x", "queue.errors.Late", "x", None),
        ("ray.exceptions.RayTaskError(KeyError): ray::f() (pid=7)", "KeyError", "ray::f() (pid=7)", None),
        ("2026-01-08 11:02:13,441 - hub - CRITICAL - Uncaught HfHubHTTPError: 429", "HfHubHTTPError", "429", None),
        ("ERROR    | __main__:main:88 - RuntimeError: x", "RuntimeError", "x", None),
        ("Unhandled exception: OSError: x", "OSError", "x", None),
        ("[rank0]: RuntimeError: in Net:\n[rank0]: \tsize mismatch\n[rank0]: step 1", "RuntimeError", "in Net:\n\tsize mismatch", 0),
    ],
)
def test_an_exception_line_alone(tmp_path, text, type, said, rank):
    (t,) = tracebacks(tmp_path, f"{text}\n")
    assert (t.type, t.text, t.rank, t.frames, t.logged) == (type, said, rank, (), True)


@for_each(
    "text",
    [
        BODY.replace("ValueError: x", "Epoch: 1"),
        BODY.replace("ValueError: x", ""),
        "",
        "Error: x",
        "x.py:3: RuntimeWarning: x",
        "the loader caught ValueError: x",
        "WARNING 11-08 11:02:13 [x.py:3] RuntimeError: x",
        "2026-01-08 11:02:13 INFO RuntimeError: x",
        "E       RuntimeError: x",
    ],
    ids=["a printed stack", "cut at both ends", "empty", "no class", "a warning", "in a sentence", "a warning's level", "INFO", "pytest"],
)
def test_what_is_no_exception_line(tmp_path, text):
    assert tracebacks(tmp_path, f"{text}\n") == ()


def test_what_announces_the_traceback_of_another_process_is_none(tmp_path):
    (t,) = tracebacks(tmp_path, f"ray.exceptions.RayTaskError(ValueError): ray::f() (pid=7)\n{BODY}")
    assert (t.says, len(t.frames)) == ("ValueError: x", 2)


def test_an_exception_that_is_tried_again_ends_nothing(tmp_path):
    (t,) = tracebacks(tmp_path, f"(raylet) Task f failed. There are 2 retries remaining.\nray::f() (pid=7)\n{BODY}")
    assert t.ignored


def test_one_with_its_header_is_read_once(tmp_path):
    (t,) = tracebacks(tmp_path, TRACE.replace("ValueError: x", "torch._dynamo.exc.BreakError: x"))
    assert (t.line, t.end) == (1, 7)


def test_a_log_that_begins_within_a_traceback(tmp_path):
    cut = TRACE.partition("\n")[2]
    first, second = tracebacks(tmp_path, f"\n{cut}after\n{TRACE}", rank=3)
    assert (first.says, first.line, first.end, first.rank) == ("ValueError: x", 2, 7, 3)
    assert (second.line, second.end) == (9, 15)


FLAT = "\n".join(line.strip() for line in TRACE.splitlines()) + "\n"


def test_a_traceback_that_lost_its_blanks(tmp_path):
    """As a chat, a form or a log shipper that trims lines leaves it."""
    (whole,) = tracebacks(tmp_path, TRACE)
    (t,) = tracebacks(tmp_path, f"before\n{FLAT}after\n")
    assert (t.says, t.line, t.end) == ("ValueError: x", 2, 8)
    assert t.frames == whole.frames
    (t,) = tracebacks(tmp_path, "\r50%|##  |" + FLAT)
    assert t.says == "ValueError: x"


def test_a_module_that_a_web_page_swallowed(tmp_path):
    (t,) = tracebacks(tmp_path, FLAT.replace(", in main", ", in"))
    assert t.frames[0].name == "<module>"


def test_a_line_of_code_without_blanks_is_no_exception(tmp_path):
    (t,) = tracebacks(tmp_path, FLAT.replace("work()\n~~~~^^", "Loader: Any = work"))
    assert (t.says, t.frames[0].code) == ("ValueError: x", "Loader: Any = work")


def test_frames_without_code_and_blanks(tmp_path):
    (t,) = tracebacks(tmp_path, 'Traceback (most recent call last):\nFile "<frozen runpy>", line 88, in _run_code\nModuleNotFoundError: x\n')
    assert (t.says, [f.code for f in t.frames]) == ("ModuleNotFoundError: x", [""])


def test_a_printed_stack_without_blanks_is_none(tmp_path):
    assert tracebacks(tmp_path, FLAT.replace("ValueError: x\n", "after\n")) == ()


def test_one_that_lost_its_blanks_and_its_header(tmp_path):
    (whole,) = tracebacks(tmp_path, TRACE)
    (t,) = tracebacks(tmp_path, f"before\n{FLAT.partition(chr(10))[2]}after\n")
    assert [(f.line, f.name) for f in t.frames] == [(f.line, f.name) for f in whole.frames]
