"""Credentials, taken out of everything that a verdict shows.

Launch scripts carry tokens in command lines and environments, tracebacks and logs repeat them, and verdicts are pasted into bug reports.
Logs are written by anybody: every pattern here takes time that grows with the length of the text and no faster. Repetitions are bounded, or what
they run over is consumed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from unhang.patterns import lazily
from unhang.printable import removed

T = TypeVar("T")

HIDDEN = "[redacted]"

# `DB_PASS=` and `pw:`; a training has forward passes.
_PASSWORD = (
    r"pass(?:word|wd|phrase)|(?<=[_;])pwd|(?<=;)pass(?==)|(?-i:(?<=[A-Z]_)(?<!FORWARD_)(?<!BACKWARD_)PASS)(?=['\"]?\s?[=:])"
    r"|(?:(?<=ssh_)|(?<=become_))pass(?=['\"]?\s?[=:])|(?<![A-Za-z0-9_.-])pw(?=['\"]?\s?[=:])"
)
_KEY = (
    r"(?:api|access|account|private|signing|encryption|subscription)[-_ ]?key(?:[-_]?id)?|shared[-_]?access[-_]?(?:key|signature)"
    r"|secret(?:[-_]?access)?(?:[-_]?(?:key|id(?![A-Za-z])))?"
    # Prose has a colon behind credentials, and files of them have a path.
    r"|credentials?(?=['\"\\=]|[ \t]=)(?!=['\"]?[/~.])"
)
# Tokens are also what a language model reads.
_TOKEN = r"(?<![A-Za-z0-9])token|(?<=[\d\[]m)token|(?<=auth)token|(?<=access)token|(?<=refresh)token|(?<=session)token|(?-i:(?<=[a-z])Token)"
# rich and loguru colour names and values.
_COLOUR = r"(?:\x1b\[[\d;]{0,16}m)?"
# One of these is in every name that the patterns below look for.
_WORDS = ("pass", "pw", "key", "secret", "signature", "credential", "token", "authorization")
# What `re` takes for a letter of ASCII besides that letter where case does not count.
_SMALL = str.maketrans({"\u0130": "i", "\u0131": "i", "\u017f": "s", "\u212a": "k"})
_QUOTE = r"\\{0,4}['\"]"
# What stands in front of these words is not matched: it stays in any case.
_NAMED = lazily(
    rf"(?:(?P<password>{_PASSWORD})|(?P<key>{_KEY})|(?P<token>{_TOKEN})|(?P<auth>authorization))"
    rf"(?:_?\d{{1,2}})?(?P<closed>{_QUOTE})?\]?{_COLOUR}[ \t]{{0,8}}(?:={{1,3}}>?|:=|:(?!:)|%3D){_COLOUR}[ \t]{{0,8}}{_COLOUR}",
    re.IGNORECASE,
)
# A command line, as one text or as a list of words.
_FLAG = lazily(
    rf"(?<![\w-])--?[\w.-]{{0,40}}?(?:(?P<password>{_PASSWORD})|(?P<key>{_KEY})|(?P<token>{_TOKEN})|(?P<auth>authorization))"
    rf"(?:(?P<closed>{_QUOTE}),[ \t]{{0,8}}(?=[bu]?['\"\\])|[ \t]{{1,8}}(?!-))",
    re.IGNORECASE,
)
# A pod's environment, or a list of pairs.
_PAIR = lazily(
    r"(?<![A-Z0-9])(?:(?P<password>PASSWORD|PASSWD|PASSPHRASE)|(?P<key>(?:API|ACCESS|PRIVATE)_?KEY(?:_ID)?|SECRET(?:_ACCESS)?(?:_KEY)?)|(?P<token>TOKEN)"
    rf"|(?P<auth>AUTHORIZATION))(?P<closed>{_QUOTE})?(?:,?\s{{0,8}}(?:{_QUOTE})?value(?:{_QUOTE})?\s{{0,4}}[:=][ \t]{{0,8}}"
    r"|(?<=['\"]),[ \t]{0,8}(?=['\"\\]))"
)
_ORDINARY_TOKEN = lazily(
    r"(?:\b|_|-)(?:eos|bos|pad|unk|sep|cls|mask|image|video|audio|vision|speech|special|start|begin|end|stop|next|new|first|last|previous|per|num|max|min"
    r"|total|think|thinking|unexpected|unknown|invalid|unrecognized|illegal|bad|missing|boi|eoi|eot|eom|eod|eop|fim|prefix|suffix|middle)[-_ ]?$",
    re.IGNORECASE,
)
_END = r"(?=[\s,;&)\]}'\"\\\x1b]|$)"
# Code in a traceback, settings that are off, variables that a shell would have filled in.
_NO_SECRET = lazily(
    rf"{re.escape(HIDDEN)}|(?:None|True|False|null|str|bytes|required|optional|missing){_END}|\*{{3,64}}{_END}|Optional\[|(?:self|args|cfg|config|opts?|torch)\."
    rf"|os\.(?:environ|getenv)|\$\{{\w{{1,64}}\}}{_END}|(?-i:\$[A-Z_][A-Z0-9_]{{1,64}}){_END}",
    re.IGNORECASE,
)
_COUNT = lazily(rf"[-+]?\d{{1,9}}(?:\.\d{{0,9}})?(?:e[-+]?\d{{1,3}})?(?:ns|us|ms|s|k|m|b|kb|mb|gb|%)?{_END}", re.IGNORECASE)
_BEGINS_CODE = lazily(r"[\[{(<]")
# `SecretStr('`, `b"`.
_OPENING = lazily(r"(?:[A-Za-z_][\w.]{0,40}\()?[bBuUrRfF]{0,2}(?P<escape>\\{0,4})(?P<quote>['\"])")
_TO_QUOTE = {q: lazily(rf"[^\\\n{q}]*(?:\\.[^\\\n{q}]*)*") for q in "'\""}
_TO_ESCAPED_QUOTE = lazily(r"[^\\\n]*(?:\\(?!\\{0,3}['\"])[^\\\n]*)*")
# Behind a comma or an ampersand the next setting may begin; else it belongs to the value.
_BARE = lazily(r"(?:[^\s'\",;&)\]}\\\x1b]|\\(?!['\"])|[,;&)\]}](?=[A-Za-z0-9])(?!\w{1,40}[ \t]?[=:]))+")
_SCHEME = lazily(r"(?:bearer|basic|token|negotiate|api-?key)[ \t]{1,8}", re.IGNORECASE)
_LONG_SCHEME = lazily(r"(?:aws4-\S{1,30}|digest|oauth|signature)[ \t][^'\n]*", re.IGNORECASE)
_MIN_TOKEN_CHARS = 6
_MIN_AUTHORIZATION_CHARS = 8
_MAX_NAME_CHARS = 64
# The longest word of an ordinary token, with what stands on either side of it.
_MAX_ORDINARY_CHARS = 16
_MAX_QUOTED_CHARS = 400
# `--header Authorization: Bearer abc`, `login NAME password abc`, `docker login -u NAME -p abc`.
_NAMING_WORDS = 6

# A password may have a slash in it; what follows a port is a path.
_URL = lazily(r"://(?P<user>[^\s:/@'\"<>]{0,256})(?P<colon>:?)(?P<password>(?<=:)(?!\d{1,5}[/,])(?:[^\s/'\"<>]|/(?!/)){1,512})?@")
_TOKEN_AS_USER = lazily(r"(?=[^\d]{0,256}\d).{12,}|.{20,}")
# Also behind a colour, a line's end that is written as two characters, and what an address has instead of a sign.
_START = r"(?:(?<![A-Za-z0-9])|(?<=[\d\[]m)|(?<=\\[nrt])|(?<=%[0-9A-Fa-f][0-9A-Fa-f]))"
_KEPT = r"\g<keep>" + HIDDEN
# One of the needles stands, in lower case, in whatever the pattern matches: most texts have none, and are searched no further.
_BARE_CREDENTIALS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (("bearer",), lazily(r"(?P<keep>\bbearer[ \t:=]{1,8})[\w.~+/=-]{16,}", re.IGNORECASE), _KEPT),
    (("pass",), lazily(r"(?P<keep>\bpass(?:word|phrase)[ \t]{1,4}(?:is|was)[ \t]{1,4})(?=\S{0,64}\d)[^\s,;]+", re.IGNORECASE), _KEPT),
    (("login",), lazily(r"(?P<keep>\blogin\s{1,8}\S{1,64}\s{1,8}password\s{1,8})\S+", re.IGNORECASE), _KEPT),
    # As curl takes them. Containers take numbers of users and groups in the same way.
    (
        ("-u",),
        lazily(
            r"(?P<keep>(?<![\w-])(?:-[uU]|--(?:proxy-)?user)(?:['\"],)?[ \t=]{1,4}['\"]?"
            r"(?!\d{1,9}:\d{1,9}(?:\s|['\"]|$))[\w.@\\-]{1,64}:)(?!\$)[^\s'\"]+"
        ),
        _KEPT,
    ),
    # As csh and a Dockerfile's old form set them.
    (
        ("env",),
        lazily(
            r"(?P<keep>(?<![\w-])(?:setenv|ENV)[ \t]{1,4}[A-Z0-9_]{0,48}(?:TOKEN|SECRET|PASSWORD|PASSWD|_KEY|_PAT)[ \t]{1,4}['\"]?)"
            r"(?!\$)(?=[A-Za-z+/_-]{0,64}\d)[^\s'\"]{8,}"
        ),
        _KEPT,
    ),
    (
        ("_pat",),
        lazily(r"(?P<keep>(?<![A-Za-z0-9])[A-Z][A-Z0-9]{0,30}_PAT['\"]?[ \t]?[=:][ \t]?['\"]?)(?=[A-Za-z_-]{0,64}\d)[A-Za-z0-9_-]{16,}"),
        _KEPT,
    ),
    # Docker's config.json.
    (("auth",), lazily(rf"(?P<keep>{_QUOTE}auth{_QUOTE}[ \t]?:[ \t]?{_QUOTE})[A-Za-z0-9+/]{{12,}}={{0,2}}"), _KEPT),
    (
        ("login", "sshpass", "mysql", "ossutil"),
        lazily(
            r"(?P<keep>(?<![\w-])(?:(?:docker|podman|helm|oc|swanlab)[ \t]{1,4}(?:registry[ \t]{1,4})?login\b[^\n]{0,80}?[ \t]-[pk][ \t=]{1,4}"
            r"|sshpass[ \t]{1,4}-p[ \t]{0,4}|mysql(?:dump|admin)?\b[^\n]{0,80}?[ \t]-p"
            r"|ossutil\w{0,8}[ \t]{1,4}config\b[^\n]{0,160}?[ \t]-k[ \t]{1,4}))(?!\$)[^\s;]+"
        ),
        _KEPT,
    ),
    (
        ("secret_access_key", "access_key_secret"),
        lazily(r"(?P<keep>(?:secret_access_key|access_key_secret)[ \t]{1,4})(?=[A-Za-z/+]{0,64}\d)[A-Za-z0-9/+=]{16,}", re.IGNORECASE),
        _KEPT,
    ),
    # `KAGGLE_KEY=`, `AZURE_STORAGE_KEY=`, and kaggle.json.
    (
        ("_key",),
        lazily(
            r"(?P<keep>(?<![A-Za-z0-9])[A-Z][A-Z0-9]{1,30}(?:_[A-Z0-9]{1,30}){0,4}(?<!PUBLIC)(?<!PRIMARY)(?<!CACHE)(?<!SORT)_KEY"
            r"['\"]?[ \t]?[=:][ \t]?['\"]?)(?=[A-Za-z+/_-]{0,64}\d)[A-Za-z0-9+/=_-]{8,}"
        ),
        _KEPT,
    ),
    (
        ("username",),
        lazily(
            rf"(?P<keep>{_QUOTE}username{_QUOTE}:[ \t]?{_QUOTE}[^'\"\n\\]{{1,64}}{_QUOTE},[ \t]?{_QUOTE}key{_QUOTE}:[ \t]?{_QUOTE})[0-9a-f]{{32}}"
        ),
        _KEPT,
    ),
    # What clouds in China call the two halves of a key.
    (
        tuple(f"{half}{sign}" for half in ("ak", "sk") for sign in ("=", ":", "'", '"', " ", "\t")),
        lazily(
            r"(?P<keep>(?<![A-Za-z0-9.])(?:[as]k['\"]?[ \t]?[=:][ \t]?['\"]?|--[as]k[ \t=]))(?=[A-Za-z+/]{0,64}\d)[A-Za-z0-9+/=]{16,}",
            re.IGNORECASE,
        ),
        _KEPT,
    ),
    (
        ("auth=", "auth("),
        lazily(r"(?P<keep>(?:\bauth=|(?:Basic|Digest)Auth)\([bu]?['\"][^'\"\n]{0,64}['\"],[ \t]{0,4}[bu]?['\"])[^'\"\n]+"),
        _KEPT,
    ),
    (
        ("sig",),
        lazily(r"(?P<keep>(?<![A-Za-z0-9])sig(?:nature)?(?:=|%3D))(?=[A-Za-z_%+/-]{0,64}\d)[A-Za-z0-9_%+/=-]{12,}", re.IGNORECASE),
        _KEPT,
    ),
    (("cookie",), lazily(r"(?P<keep>\b(?:set-)?cookie['\"]?:[ \t]{0,8}['\"]?)(?=\w{1,64}=)[^'\"\n]+", re.IGNORECASE), _KEPT),
    (("cookies",), lazily(r"(?P<keep>\bcookies['\"]?[ \t]?[:=][ \t]?\{)[^}\n]+", re.IGNORECASE), _KEPT),
    # Whoever has the address of a chat's webhook, or of a bot, can write into the chat.
    (
        ("hook",),
        lazily(
            r"(?P<keep>hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/|/open-apis/bot/v2/hook/|/cgi-bin/webhook/send\?key=)"
            r"[\w/-]{8,}"
        ),
        _KEPT,
    ),
    (("telegram",), lazily(r"(?P<keep>api\.telegram\.org/bot)\d{1,16}:[\w-]{8,}"), _KEPT),
    (("hf_", "api_org_", "gsk_", "r8_", "npm_"), lazily(_START + r"(?:hf_|api_org_|gsk_|r8_|npm_)[A-Za-z0-9]{16,}"), HIDDEN),
    (("sk-",), lazily(_START + r"sk-(?!learn)[A-Za-z0-9_-]{16,}"), HIDDEN),
    (("k_live", "k_test", "whsec_"), lazily(_START + r"(?:[srp]k_(?:live|test)_|whsec_)[A-Za-z0-9]{10,}"), HIDDEN),
    (("akia", "asia", "ltai", "akid"), lazily(_START + r"(?:(?:AKIA|ASIA)[A-Z0-9]{16}\b|(?:LTAI|AKID)[A-Za-z0-9]{12,40}\b)"), HIDDEN),
    (
        ("aiza", "ya29.", "gocspx-", "sg."),
        lazily(_START + r"(?:AIza[A-Za-z0-9_-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|SG\.[\w-]{16,32}\.[\w-]{16,})"),
        HIDDEN,
    ),
    (("xox", "xapp-"), lazily(_START + r"(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}"), HIDDEN),
    (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        lazily(_START + r"(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
        HIDDEN,
    ),
    (
        ("glpat", "nvapi", "dckr_pat", "pypi", "hvs", "dop_v1"),
        lazily(_START + r"(?:glpat|nvapi|dckr_pat|pypi|hvs|dop_v1)[-_.][A-Za-z0-9_-]{16,}"),
        HIDDEN,
    ),
    (("dapi",), lazily(_START + r"dapi[0-9a-f]{32}(?:-\d)?\b"), HIDDEN),
    # Begun only where such a word begins, else every `-eyJ` in a long one would be tried to its end.
    (("eyj",), lazily(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?"), HIDDEN),
    # Weights & Biases keys are bare: 40 hexadecimal digits behind a word that names them. Git commits look alike and stay.
    (
        ("wandb",),
        lazily(r"(?P<keep>(?<![A-Za-z0-9])wandb(?![A-Za-z0-9])(?:(?!commit|sha|rev)[^\n]){0,40}?[\s=:'\"])(?:local-)?[0-9a-f]{40}\b", re.IGNORECASE),
        _KEPT,
    ),
    (("wandb_v1_", "local-"), lazily(_START + r"(?:wandb_v1_\w{20,}|local-[0-9a-f]{40}\b)"), HIDDEN),
    (
        ("private key",),
        lazily(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)", re.DOTALL),
        HIDDEN,
    ),
)
# What is glued to a credential may show as one only when that is gone.
_MAX_PASSES = 5
# What is left of a word that was cut may be the rest of anything.
_CUT_WORD = lazily(r"…[A-Za-z0-9_+/=.%~:@-]{20,}\S*")


def redact(text: str) -> str:
    """The text without credentials; everything around them stays, so that a line can still be found in its log.

    A text that begins with `…` directly before a long word was cut inside that word, which is hidden. Redacting again changes nothing.
    """
    if text.startswith("…") and (found := _CUT_WORD.match(text)):
        text = f"…{HIDDEN}{text[found.end() :]}"
    for _ in range(_MAX_PASSES):
        before, text = text, _pass(text)
        if text == before:
            break
    return text


def redact_command(words: Sequence[str]) -> tuple[str, ...]:
    """A command line without credentials, word for word; a word is read behind those before it, which may name it (`--token`, `wandb login`)."""
    shown = []
    for i, word in enumerate(words):
        clean = redact(word)
        named = redact(" ".join([*words[max(0, i - _NAMING_WORDS) : i], word]))
        if not named.endswith(clean):
            # Of `me:secret` only what is behind the colon goes; of several words all.
            end = named.rpartition(" ")[2]
            clean = end if " " not in word and end.endswith(HIDDEN) else HIDDEN
        shown.append(clean)
    return tuple(shown)


def redact_data(data: T) -> T:
    """Data (a verdict, an examination, a record) with every text in it redacted, and without characters that act on a terminal."""
    clean: T = _redacted(data)
    return clean


def _pass(text: str) -> str:
    small = (text if text.isascii() else text.translate(_SMALL)).lower()
    if "://" in text:
        text = _URL.sub(_url, text)
    if any(word in small for word in _WORDS):
        for names in (_FLAG, _PAIR, _NAMED):
            text = _named(text, names)
    for needles, pattern, replacement in _BARE_CREDENTIALS:
        if any(needle in small for needle in needles):
            text = pattern.sub(replacement, text)
    return text


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(removed(value))
    if isinstance(value, tuple):
        return tuple(map(_redacted, value))
    if isinstance(value, list):
        return list(map(_redacted, value))
    if isinstance(value, dict):
        return {_redacted(k): _of_setting(k, v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        texts = {f.name: _redacted(getattr(value, f.name)) for f in fields(value)}
        if "name" in texts and "value" in texts:
            texts["value"] = _of_setting(texts["name"], texts["value"])
        return replace(value, **texts)
    return value


def _of_setting(name: str, value: Any) -> Any:
    return HIDDEN if value and isinstance(value, str) and _is_secret(name) else _redacted(value)


def _is_secret(name: str) -> bool:
    """Whether a setting of this name holds a credential."""
    found = _NAMED.search(f"{name}=")
    return found is not None and not _is_ordinary(f"{name}=", found)


def _url(found: re.Match[str]) -> str:
    user, password = found["user"], found["password"]
    if _TOKEN_AS_USER.fullmatch(user):
        user = HIDDEN
    return f"://{user}{found['colon']}{HIDDEN if password else ''}@"


def _named(text: str, names: re.Pattern[str]) -> str:
    """Hide what stands behind names. What was hidden is not read again, and whatever is read and stays is short."""
    kept, done, at = [], 0, 0
    while found := names.search(text, at):
        at = found.end()
        start, end = _value(text, found)
        if start < end:
            kept += [text[done:start], HIDDEN]
            done = at = end
    return "".join([*kept, text[done:]])


def _value(text: str, name: re.Match[str]) -> tuple[int, int]:
    """Where the credential behind a name stands; nothing where there is none."""
    at = name.end()
    opening = _OPENING.match(text, at)
    first = at if opening is None else opening.end()
    if _is_ordinary(text, name) or _NO_SECRET.match(text, first) or _NO_SECRET.match(text, at):
        return at, at
    if name["token"] and (_COUNT.match(text, first) or _BEGINS_CODE.match(text, first)):
        return at, at
    if opening is not None:
        end = (_TO_ESCAPED_QUOTE if opening["escape"] else _TO_QUOTE[opening["quote"]]).match(text, first)
    else:
        if "==" in name[0] or (not name["password"] and _BEGINS_CODE.match(text, at)):
            return at, at
        if name["auth"]:
            if whole := _LONG_SCHEME.match(text, at):
                return whole.span()
            if scheme := _SCHEME.match(text, at):
                first = scheme.end()
                if text.startswith(HIDDEN, first):
                    return at, at
        if (last := _end_of_quoted_setting(text, name)) is not None:
            return first, last
        end = _BARE.match(text, first)
    if end is None:
        return at, at
    least = _MIN_TOKEN_CHARS if name["token"] else _MIN_AUTHORIZATION_CHARS if name["auth"] else 1
    return (end.start(), end.end()) if end.end() - end.start() >= least else (at, at)


def _is_ordinary(text: str, name: re.Match[str]) -> bool:
    return bool(name["token"]) and _ORDINARY_TOKEN.search(text[max(0, name.start("token") - _MAX_ORDINARY_CHARS) : name.start("token")]) is not None


def _end_of_quoted_setting(text: str, name: re.Match[str]) -> int | None:
    """Where `'NAME=some words'` ends, quoted as a whole."""
    if name["closed"]:
        return None
    before = text[max(0, name.start() - _MAX_NAME_CHARS) : name.start()]
    quote = before.rstrip("-_.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")[-1:]
    if quote not in ("'", '"'):
        return None
    end = text.find(quote, name.end(), name.end() + _MAX_QUOTED_CHARS)
    return end if end > name.end() and "\n" not in text[name.end() : end] else None
