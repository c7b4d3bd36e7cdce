"""Lines that report trouble without naming it: asked only where nothing else was recognised, so that no visible failure passes for a healthy log.

CRASHES end a process: what it prints itself (C++, Python's fault handler, UCX, Open MPI, glibc), or a shell prints of it. ALARMS may have been passed
over: those that training steps follow, or a sign that all went well, do not count, nor does what is `harmless`.
"""

from __future__ import annotations

import re

from unhang.i18n import msg
from unhang.logs.harmless import NOT_INSTEAD, RETRIED
from unhang.logs.signature import Signature
from unhang.logs.slow_work import FINISHED

_KEEP = 16
# Libraries that catch signals and print backtraces stand above the one that crashed.
_HANDLERS = r"(?:libucs|libc|libpthread|libopen-(?:pal|rte)|libasan|libabsl\w*|_raylet)[.-]"


def crashed_in(library: str) -> str:
    """A pattern: a signal, and below it a native backtrace whose innermost frame that is not a handler's lies in a library."""
    return (
        r"^[^\n]{0,200}?(?:[Ss]ignal|SIG[A-Z]{3,4}|[Ss]egmentation fault)[^\n]*\n"
        rf"(?:(?![^\n]*\.so)[^\n]*\n|[^\n]*/?{_HANDLERS}[^\n]*\n){{0,7}}[^\n]*?(?P<library>{library}\.so[.\w]*)[^\n]*"
    )


def _alarm(
    needle: str,
    pattern: str = "",
    *,
    near: str = "",
    unless: str = "",
    says: str = "",
    then: str = "",
    remedy: str = "supervise",
    newest: bool = True,
) -> Signature:
    return Signature(
        needle=needle,
        pattern=pattern,
        near=near,
        unless=unless,
        then=then,
        role="alarm",
        says=says,
        remedies=(remedy,),
        keep=_KEEP,
        newest=newest,
    )


def _crash(needle: str, pattern: str = "", **more: str) -> Signature:
    """The first one counts as much as the last: whether it came before the end of the training."""
    return _alarm(needle, pattern, remedy="native-stack", newest=False, **more)


# Where a message begins.
_START = r"(?:^|(?<=[\]:|>)-] ))"
# What c10d warns of while it goes on is mostly advice.
_BAD = r"(?:[Ff]ailed|[Tt]imed? ?out|[Aa]bort|[Tt]erminat|[Cc]rash|[Bb]roken|reset by|refused|unreachable|[Ee]xception|[Cc]orrupt)"
_TORCH = r"(?:\d{3,4} [\d:.]+)?(?: +\d+)? [\w./+-]{1,300}:\d+\]"
_IN_LIBRARY = {"near": crashed_in(r"lib[\w+-]+"), "says": msg("the process crashed inside {library}")}

# "Segmentation fault" as glibc and bash say it in other languages: on a line of its own, or behind the process.
_SEGFAULTS = (
    "Speicherzugriffsfehler", "Adressierungsfehler", "Erreur de segmentation", "Violación de segmento", "Fallo de segmentación",
    "Errore di segmentazione", "Falha de segmentação", "Falta de segmentação", "段错误", "程式記憶體區段錯誤", "セグメンテーションフォルト",
    "セグメンテーション違反です", "세그멘테이션 오류", "세그먼테이션 오류", "Ошибка сегментирования", "Ошибка сегментации", "Помилка адресування",
    "Naruszenie ochrony pamięci", "Segmentatiefout", "Segmenteringsfel", "Segmentfejl", "Minnesegmentsfeil", "Muistialueen ylitys",
    "Violació de segment", "Fallo de segmento", "Lỗi phân đoạn", "Parçalama arızası", "Bölünme hatası", "Neoprávněný přístup do paměti",
    "Chyba segmentace", "Chyba segmentácie", "Szegmentálási hiba", "Szegmenshiba", "Σφάλμα κατάτμησης", "Kerusakan segmentasi",
    "Kesalahan segmentasi", "Segmentacijska greška", "Napaka segmentacije", "Segmentavimo klaida", "Segmentacijos klaida", "Eroare de segmentare",
    "Неуспех сегментације", "Грешка в разделянето", "Нарушение на разделянето", "Збой сэгмэнтацыі", "Adres-eraro", "Adreseraro", "Fabht deighilte",
)  # fmt: skip
TRACEBACK_CUT = _alarm(
    'File "',
    r'(?<!\S)File "(?P<file>[^"\n]{1,400})", line (?P<at>\d{1,9}), in (?P<name>\S{1,100})',
    then=r"[^\w\n]*(?P<code>.{0,200})",
    says=msg("a traceback is cut off before its exception; the last frame shown is {file}:{at} in {name}: {code}"),
    unless=rf"\b{RETRIED}\b",
    remedy="whole-log",
)
# A store that goes is one where the job was through.
WARNINGS = tuple(_alarm(n, rf"(?<![^\s:\]])\[W{_TORCH}(?=.*{_BAD})") for n in (".cpp:", ".hpp:"))
_HOW = r"(?P<what>[A-Z][\w ]{2,40}?)"
CRASHES = (
    *(_crash(n, **_IN_LIBRARY) for n in ("Caught signal ", "*** Process received signal ***", "*** SIG", "Segmentation fault")),
    # Ctrl-C and SIGTERM come from others.
    _crash("Caught signal ", rf"Caught signal (?!(?:2|15)\b)\d+(?: \({_HOW}[:)])?"),
    _crash("*** Process received signal ***"),
    _crash("Signal: ", rf"\] Signal: {_HOW} \(\d+\)"),
    _crash("*** SIG", r"\*\*\* SIG[A-Z]+ "),
    _crash("Segmentation fault"),
    *(_crash(words, rf"(?:[:：] *\d{{1,9}} +|^(?={words} *(?:$|[(（])))(?P<what>{words})") for words in _SEGFAULTS),
    _crash("core dumped", rf"(?:{_HOW} +\()?core dumped"),
    _crash("Fatal Python error", r"Fatal Python error(?:: (?P<what>\S.{0,100}))?"),
    _crash("Bus error"),
    _crash("Floating point exception"),
    _crash("Illegal instruction"),
    _crash("FATAL ERROR"),
    _crash("what():  ", r"what\(\):\s+(?P<what>\S.{0,300})", says=msg("C++ exception: {what}")),
    _crash("terminate called "),
    _crash("pure virtual method called"),
    _crash("==== backtrace"),
    _crash("Check failed: "),
    _crash(" panicked at "),
    _crash("*** Check failure stack trace"),
    *(
        _crash(n, rf"(?P<what>{re.escape(n)}[\w ]{{0,60}})")
        for n in (
            "double free or corruption",
            "corrupted size vs. prev_size",
            "free(): invalid ",
            "malloc(): ",
            "realloc(): invalid ",
            "munmap_chunk(): invalid ",
        )
    ),
    _crash("*** stack smashing detected"),
    _crash("*** buffer overflow detected"),
    _crash("Assertion `", r"Assertion `.{1,400}' failed"),
    _crash("Extension modules: ", r"^Extension modules: .+ \(total: \d+\)"),
)
ALARMS = (
    _alarm("CCL WARN ", r"(?P<library>[A-Z]{1,6}CL) WARN (?P<said>\S.{0,300})", says="{library}: {said}", remedy="say-more"),
    _alarm("CCL_ERROR", remedy="say-more"),
    _alarm("CCL_WARN", rf"CCL_WARN\|(?=.*{_BAD})", remedy="say-more"),
    # Return codes on their way up; 7 is "in progress", and the files left out also fail when communicators of a healthy training end.
    _alarm(
        ".cc:",
        r"NCCL INFO (?P<said>(?!misc/(?:ipc)?socket|proxy|bootstrap|ras/|os/)\S{1,200}:\d+ -> [1-6])(?: \[Async thread\])?$",
        says="NCCL: {said}",
    ),
    _alarm("Last error:", near=r"Last error:\s*(?P<said>\S.{0,300})", says="NCCL: {said}", remedy="say-more"),
    *(_alarm(n, rf"(?<![^\s:\]])\[[EFC]{_TORCH}") for n in (".cpp:", ".hpp:")),
    *WARNINGS,
    _alarm(".cc:", r"(?<![\w.])[EF]\d{4}(?:\d{4})? [\d:.]+ +\d+ \S{1,300}:\d+\] "),
    _alarm("ERROR", r"(?<![\w=/.'\"-])ERROR(?=[\s\]|:)-])"),
    _alarm("CRITICAL", r"(?<![\w=/.'\"-])CRITICAL(?=[\s\]|:)-])"),
    _alarm("FATAL", r"(?<![\w=/.'\"-])FATAL(?=[\s\]|:)-])"),
    *(
        _alarm(
            needle,
            rf"{_START}(?:fatal |internal )?[Ee]rror(?: response from \w+)?: (?!-?\d)\S",
        )
        for needle in ("Error: ", "Error response from ", "error: ")
    ),
    # CANN, the software under HCCL.
    _alarm("[PID: ", r"\bE[A-Z]\d{4}: \[PID: \d+\]"),
    # NVSHMEM, libfabric, user buffers: no level, no prefix.
    _alarm("non-zero status: "),
    _alarm("level=", r"\blevel=(?:error|fatal)\b"),
    _alarm("ack-off ", r"[Bb]ack-off (?:restarting failed|pulling image)"),
    *(_alarm(n) for n in ("ErrImagePull", "ImagePullBackOff", "FailedScheduling", "FailedMount", "BackoffLimitExceeded", "Preempted by ")),
    _alarm("Terminated", r"^Terminated$"),
    _alarm("Hangup", r"^Hangup$"),
    _alarm("No module named ", r"^(?:\S{1,200}: )?No module named "),
    _alarm("<warn> err", r"^libfabric:.*<warn> err"),
    _alarm(" has different values for "),
    _alarm("CUDNN_STATUS_", r"CUDNN_STATUS_(?!SUCCESS)[A-Z_]+"),
    _alarm('"level":', r'"level": ?"(?:error|fatal)"'),
    _alarm(" failed", r"[^\s0] failed[.!]?\s*$"),
    _alarm("Failed", rf"{_START}Failed(?: to |, |: ){NOT_INSTEAD}"),
    _alarm("timed out", rf"[a-z] timed out\b{NOT_INSTEAD}"),
    _alarm("Caught signal ", r"Caught signal (?:2|15)\b"),
    _alarm("times out", r"\b[Gg]etting \w+ times out\b"),
    _alarm("frame #", rf"{_START}frame #[0-3]: ", unless=r"^\[W", remedy="whole-log"),
    TRACEBACK_CUT,
)
# A job that prints one of these came through whatever it had reported before.
WENT_WELL = (
    *FINISHED,
    *(
        Signature(needle=n, role="context", keep=2, newest=True)
        for n in ("Application startup complete", "Out of bounds values : 0 OK", "ompleted successfully")
    ),
    # Probes of a server's health are answered while its engine is gone.
    Signature(
        needle=" 200 OK",
        pattern=r"(?<!/health)(?<!/metrics)(?<!/ping)(?<!/models) HTTP/\d(?:\.\d)?\\?\"? 200 OK",
        role="context",
        keep=2,
        newest=True,
    ),
)
# What Python's fault handler prints of the thread that crashed, innermost first.
FATAL = Signature(
    needle="Current thread 0x",
    near=r'^Current thread 0x.*\n(?P<stack>(?: *File "[^"\n]+", line \d{1,9} in .+\n?)+)',
    role="context",
)
OF_ONE_PROCESS = frozenset(s for s in WENT_WELL if s.needle == "ompleted successfully")
SIGNATURES = (*CRASHES, *ALARMS, *WENT_WELL)
# What is an alarm though its record has the level of a warning, or of less.
OF_ANY_LEVEL = frozenset((*CRASHES, *ALARMS[:4], *WARNINGS, TRACEBACK_CUT))
