"""What is plainly no log, by name and first bytes: skipped in directories and archives, and counted, never listed one by one.

NULs and a little binary junk say nothing: logs hold both. An ending says less than magic bytes, and stands here only where there are none, or where
the file is readable text all the same: the sources of a program hold the very messages that are searched for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from unhang.model import NotExamined
from unhang.patterns import lazily

SOURCE_CODE: Final = "source code"
OWN_RECORD: Final = "a record that unhang wrote"
# Directories that hold no logs, and very many files.
NO_LOG_DIRECTORIES = {".git": "history of git", "__pycache__": "Python bytecode", "node_modules": SOURCE_CODE}

_OWN = lazily(r"(?:^|/)(?:(?:run|host|now|incident|verdict|bundle)\.json|events\.jsonl|verdict\.md|incidents/\d+/.*)$", re.DOTALL)
_PACKED = lazily(r"\.(?:gz|xz|lzma|bz2|zst)$")
_MODEL_SETTINGS = lazily(r"(?:(?:\w+_)?config|tokenizer|special_tokens_map|added_tokens|vocab|.+\.(?:safetensors|bin)\.index)\.json")
_SHARED_OBJECT = lazily(r"\.so(?:\.\d+)*$")
_ENDINGS = {
    ending: kind
    for kind, endings in {
        "a model checkpoint": "pt pth ckpt bin distcp safetensors gguf onnx h5 hdf5 pkl pickle",
        "a data file": "parquet arrow feather npy npz tfrecord mmap lmdb mdb db sqlite sqlite3",
        "an image, audio or video file": "png jpg jpeg gif webp svg mp4 mp3 wav flac",
        "a document": "pdf docx xlsx pptx",
        "Python bytecode": "pyc pyo",
        "a software package": "whl egg jar deb rpm",
        SOURCE_CODE: "py pyi pyx ipynb c cc cpp cu cuh h hpp rs go js ts css",
    }.items()
    for ending in endings.split()
}
FLIGHT: Final = "a flight-recorder dump"
# A pickle of plain values whose first names are those of a dump, or JSON with them; torch 2.2 wrote a list of entries. And our digest of dumps.
_DIGEST = ".unhang-digest"
_FLIGHT = lazily(
    rb"\x80[\2-\5](?:\x95.{8})?[\]}(].{0,490}?(?:pg_config|pg_status|comm_lib_version|nccl_comm_state|record_id|profiling_name)"
    rb"|(?:\xef\xbb\xbf)?\s{0,64}[{\[].{0,480}?\"(?:pg_config|pg_status|comm_lib_version|nccl_comm_state|collective_seq_id|profiling_name)\"\s{0,8}:"
    rb"|UNHANG-DIGEST[\x01-\xff]\n",
    re.DOTALL,
)
_MAGIC = (
    (lazily(rb"\x7fELF|!<arch>\n"), "a program or library"),
    (lazily(rb"GGUF[\1-\x0f]\0\0\0|.{5}\0\0\0\{\"|\x80[\2-\5](?:\x8a\x0a|\x95|\}|\]|c[a-z_.]+\n)|\x89HDF\r\n", re.DOTALL), "a model checkpoint"),
    (lazily(rb"PAR1\x15|ARROW1\0\0|\x93NUMPY|SQLite format 3\0"), "a data file"),
    (lazily(rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|RIFF.{4}(?:WEBP|WAVE|AVI )", re.DOTALL), "an image, audio or video file"),
    (lazily(rb"%PDF-\d"), "a document"),
    # The first entry of what torch.save and numpy.savez write, and of a wheel or jar.
    (lazily(rb"PK\x03\x04.{26}[^/\0]{1,200}/(?:data\.pkl|\.format_version|byteorder|version)", re.DOTALL), "a model checkpoint"),
    (lazily(rb"PK\x03\x04.{26}[^/\0]{1,200}\.npy", re.DOTALL), "a data file"),
    (lazily(rb"PK\x03\x04.{26}META-INF/", re.DOTALL), "a software package"),
)
# No text has these, in any encoding but UTF-16; of packed or random bytes they are a tenth.
_NO_TEXT = bytes(set(range(32)) - set(b"\0\a\b\t\n\v\f\r\x1b"))
_ENOUGH_BYTES = 64


def is_binary(head: bytes) -> bool:
    """Whether what begins so, and is neither packed nor UTF-16, can be no text."""
    return len(head) >= _ENOUGH_BYTES and 20 * (len(head) - len(head.translate(None, _NO_TEXT))) > len(head)


def no_log(name: str, head: bytes = b"") -> str | None:
    """What it plainly is instead of a log: by its name (a path with "/"), and by its first bytes where they are given."""
    if _OWN.search(name):
        return OWN_RECORD
    # One that was cut before its first bytes is no log either.
    if _FLIGHT.match(head) or name.endswith(_DIGEST):
        return FLIGHT
    last = _PACKED.sub("", name.rpartition("/")[2])
    if "tfevents" in last:
        return "TensorBoard events"
    if _MODEL_SETTINGS.fullmatch(last):
        return "settings of a model"
    if kind := _ENDINGS.get(last.rpartition(".")[2].lower() if "." in last[1:] else ""):
        return kind
    if _SHARED_OBJECT.search(last):
        return "a program or library"
    return next((kind for magic, kind in _MAGIC if magic.match(head)), None)


class Misses:
    """What was not examined in one place: one entry for each reason, with a count and an example. Bounded, whatever the place holds."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._by_why: dict[str, tuple[int, str]] = {}
        self._unread: set[str] = set()

    def add(self, what: str, why: str, *, unread: bool = False) -> None:
        before, example = self._by_why.get(why, (0, what))
        if not before or example != what:
            self._by_why[why] = before + 1, example
        if unread:
            self._unread.add(why)

    def report(self, missed: Callable[[NotExamined], None]) -> None:
        for why, (count, example) in self._by_why.items():
            what = example if count == 1 else f"{count:,} in {self.where}, such as {example}"
            missed(NotExamined(what=what, why=why, unread=why in self._unread))
        self._by_why.clear()

    def __bool__(self) -> bool:
        return bool(self._by_why)

    def __str__(self) -> str:
        return "; ".join(f"{f'{count:,} such as ' if count > 1 else ''}{example}: {why}" for why, (count, example) in self._by_why.items())
