"""What programs print that looks like trouble and is none: the one table for all that look for trouble."""

from __future__ import annotations

# Logged at the level of errors by programs that go on: TensorFlow registers twice, the linker's preloads, sockets that close at teardown.
HARMLESS = (
    r"[Uu]nable to register cu\w+ |computation placer already registered|from LD_PRELOAD cannot be preloaded|[Aa]ccept failed|XDG_RUNTIME_DIR"
    r"|destroy_process_group|[Cc]onnection closed by (?:local|remote)|\b0 errors?\b|errors? ?[:=] ?0\b|pip's dependency resolver"
    r"|\b[Aa]s expected\b|import failed$|which can lead to "
)
# What is tried again has ended nothing.
RETRIED = r"(?:will be retried|retrying|retries? (?:remaining|left))"
# What a program does instead: in a warning that tells of it, and in any line.
DOES_INSTEAD = rf"(?:{RETRIED}|trying|falling back|skipping)"
INSTEAD = rf"(?:{DOES_INSTEAD}|retry|again|skip(?:ped)?|continu(?:es?|ing)|ignor(?:ed|ing)|instead)"
NOT_INSTEAD = rf"(?!.{{0,300}}\b(?i:{INSTEAD})\b)"
