"""Credentials are taken out of whatever is shown; everything else stays as it was; no text takes long."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chinese import zh
from tests.tables import for_each

import unhang.diagnosis.redact as module
from unhang import encoding
from unhang.diagnosis.redact import HIDDEN, redact, redact_command, redact_data
from unhang.facts import job
from unhang.i18n import msg
from unhang.knowledge import catalogue
from unhang.model import Evidence, Finding, Input, NotExamined, Remedy, Verdict
from unhang.report import markdown

# Put together here, lest a scanner of this repository takes them for leaked ones.
GOOGLE = "AIza" + "SyA1234567890abcdefghijklmnopqrstuv"
SLACK = "xoxb" + "-123456789012-abcdefghijkl"
STRIPE = "sk" + "_live_51Habcdefghijklmnop"
SENDGRID = "SG" + ".abcdefghijklmnopqrstuv.abcdefghijklmnopqrstuvwxyz0123456789"
HF = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwX"
HEX40 = "0123456789abcdef0123456789abcdef01234567"

SECRETS = [
    ("HF_TOKEN=hf_abcdefghijklmnopqrstuv python train.py", "hf_abc"),
    (f"export WANDB_API_KEY='{HEX40}'", "0123456789"),
    (f"wandb login {HEX40}", "0123456789"),
    ("wandb_v1_abcdefghijklmnopqrstuvwxyz", "abcdef"),
    ("AWS_SECRET_ACCESS_KEY: wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY", "wJalr"),
    ("id AKIAIOSFODNN7EXAMPLE used", "AKIA"),
    ("{'password': 'hunter2xyz', 'user': 'bob'}", "hunter2xyz"),
    ('{"api_key": "abc123def"}', "abc123def"),
    ("clientSecret=zzz111", "zzz111"),
    ("accessToken: zzz11122", "zzz111"),
    ("x-auth-token: abcabcabc", "abcabc"),
    ("MYSQL_PWD=hunter2xyz", "hunter2"),
    ("PASSWORD_1=abcd", "abcd"),
    ("password=$ecret1", "ecret1"),
    ("os.environ['HF_TOKEN'] = 'abcabcabc'", "abcabc"),
    ("?access_token=abcdefabcdef&x=1", "abcdef"),
    ("token%3Dabcdefabc", "abcdef"),
    ("cannot reach: pass: Zx9Qk3vTn8", "Zx9Qk3vTn8"),
    ("csrftoken=Zx9Qk3vTn8Lw", "Zx9Qk3vTn8"),
    ("PHPSESSID=Zx9Qk3vTn8Lw", "Zx9Qk3vTn8"),
    ("bindpw: Zx9Qk3vTn8", "Zx9Qk3vTn8"),
    ("DOCKER_AUTH_CONFIG=Zx9Qk3vTn8", "Zx9Qk3vTn8"),
    ("bad credential: Zx9Qk3vTn8", "Zx9Qk3vTn8"),
    ("step 3: ENV TOKEN Zx9Qk3vTn8", "Zx9Qk3vTn8"),
    ("got password\tZx9Qk3vTn8", "Zx9Qk3vTn8"),
    ("spark.hadoop.fs.s3a.secret.key Zx9Qk3vTn8", "Zx9Qk3vTn8"),
    ("Password for user x: Zx9Qk3vTn8", "Zx9Qk3vTn8"),
    ("oauth2:Zx9Qk3vTn8@gitlab.com/x.git", "Zx9Qk3vTn8"),
    ("jdbc:oracle:thin:u/Zx9Qk3vTn8@h:1521", "Zx9Qk3vTn8"),
    ("%22token%22%3A%22Zx9Qk3vTn8Lw%22", "Zx9Qk3vTn8"),
    ("api_token Zx9Qk3vTn8Lw2PbR7", "Zx9Qk3vTn8"),
    ("DB_DSN=u:Zx9Qk3vTn8@tcp(h:3306)/x", "Zx9Qk3vTn8"),
    ("ms-0a1b2c3d-1111-4222-8333-0123456789ab", "0a1b2c3d"),
    ("aws configure set aws_session_token IQoJb3JpZ2luX2VjEJ7xyz", "IQoJb3"),
    ("login refused for lsv2_sk_0123456789abcdef01", "456789"),
    # Command lines, whole and as lists of words; a pod's environment.
    ("train.py --wandb-api-key abc123 --lr 1", "abc123"),
    ("train.py --token=abc123 --lr 1", "abc123"),
    ("train.py --hub_token abc123def --x", "abc123"),
    ("Command '['python', 't.py', '--token', 'abc123', '--lr', '1']' failed", "abc123"),
    ("('WANDB_API_KEY', 'zzz111')", "zzz111"),
    ('"name":"HF_TOKEN","value":"abc def1"', "def1"),
    ("{name:HF_TOKEN value:abcdef123}", "abcdef"),
    # Addresses.
    ("git clone https://user:p4ssw0rd@git.example.org/x.git", "p4ssw0rd"),
    ("redis://:s3cret@10.0.0.1:6379/0", "s3cret"),
    ("postgres://u:p@ss@db/x", "ss@"),
    ("https://tok3nvalue1234567890@host/x", "tok3n"),
    ("https://ghtoken1234567890:x-oauth-basic@git.example.org/a", "ghtoken"),
    ("https://x.example/c?sv=2024&sig=abcdEFGH1234%3D", "abcdEFGH"),
    ("AccountName=a;AccountKey=abcdEFGH1234==;EndpointSuffix=b", "abcdEFGH"),
    ("https://hooks.slack.com/services/T0/B0/abcdefgh", "abcdefgh"),
    # Headers.
    ("Authorization: Bearer abcdefgh.ijklmnop", "abcdefgh"),
    ("proxy-authorization: Basic dXNlcjpwYXNz", "dXNl"),
    ("'Authorization': 'Bearer abc defghi'", "defghi"),
    ("Authorization: AWS4-HMAC-SHA256 Credential=x/y, SignedHeaders=a, Signature=abcdef", "abcdef"),
    ("got Bearer abcdefghijklmnop back", "abcdef"),
    ('curl -H "x-api-key: abcdef0123456789abcdef"', "abcdef"),
    ("curl -u me:abc,def https://h/x", "abc"),
    ("curl --proxy-user=me:abcdef", "abcdef"),
    ("['curl', '-u', 'me:abcdef']", "abcdef"),
    ("Cookie: session=abc; b=def", "def"),
    # What is quoted goes up to the quote that closes it, or to the end where it was cut off.
    ('env={"HF_TOKEN":"my pass phrase, with; spaces"}', "spaces"),
    ('--password "two words"', "words"),
    ('PASSWORD="ab&cd;ef gh"', "gh"),
    ("PASSWORD=ab&cd,ef)gh", "gh"),
    (r"{\"token\": \"my secret phrase\"}", "phrase"),
    (r'{"token": "with \" quote"}', "quote"),
    ('export PASSWORD="it\'s a whole"', "whole"),
    ("docker run -e 'PASSWORD=two words here'", "words"),
    ("password: b'hunter two'", "two"),
    ("login(api_key=SecretStr('abc def'))", "def"),
    ('"password": "unclosed phrase and the rest', "rest"),
    # Bare ones.
    ("openai sk-proj-abcdefghijklmnopqrstuvwx", "sk-proj"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig", "eyJ"),
    ("nvapi-abcdefghijklmnopqrstuvwx", "abcdef"),
    (f"key {GOOGLE}", GOOGLE),
    (f"key {SLACK}", SLACK),
    (f"key {STRIPE}", STRIPE),
    ("password is hunter2", "hunter2"),
    ("DB_PASS=hunter2", "hunter2"),
    ("MYSQL_PASS: 'two words'", "words"),
    ("user=a;pass=hunter2", "hunter2"),
    ("pw: hunter2", "hunter2"),
    ("machine api.wandb.ai login user password zzzz", "zzzz"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF\n-----END PGP PRIVATE KEY BLOCK-----", "lQOYBF"),
    # Coloured, in a text that was quoted, in an address, behind a name.
    (f"\x1b[32m{HF}\x1b[0m", HF),
    (f"\x1b[1;33m{HF}", HF),
    ("HF_TOKEN\x1b[33m=\x1b[0m\x1b[32m'abc def1'\x1b[0m", "def1"),
    ("\x1b[33mpassword\x1b[0m: \x1b[32mhunter2\x1b[0m", "hunter2"),
    ("Namespace(\x1b[33mtoken\x1b[0m=\x1b[32m'abc def1'\x1b[0m)", "def1"),
    (f"b'login\\n{HF}\\n'", HF),
    (f"https://x/?a=%20{HF}", HF),
    (f"token_{HF}", HF),
    (f"b'\\tghp_{'a1' * 18}'", "a1a1"),
    # What programs are given, and what they have in their files.
    (f"WANDB_KEY={HEX40}", "0123456789"),
    (f"wandb: local-{HEX40}", "0123456789"),
    (f"local-{HEX40}", "0123456789"),
    (f"machine api.wandb.ai\n  login user\n  password {HEX40}", "0123456789"),
    ("aws configure set aws_secret_access_key wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY", "wJalr"),
    ("AZURE_STORAGE_KEY=abcd12345==", "abcd12345"),
    ("'KAGGLE_KEY': 'abcdef0123'", "abcdef0123"),
    ('{"username":"me","key":"0123456789abcdef0123456789abcdef"}', "0123456789"),
    ("TENCENTCLOUD_SECRET_ID=xyz111 x", "xyz111"),
    ("ak=abcDEF1234567890 sk=xyzDEF1234567890", "DEF1234567890"),
    ("--sk abcDEF1234567890", "abcDEF"),
    ("docker login -u me -p hunter2 registry", "hunter2"),
    ("docker login -u '$oauthtoken' --password=hunter2 nvcr.io", "hunter2"),
    ("swanlab login -k hunter2", "hunter2"),
    ("sshpass -p hunter2 ssh h", "hunter2"),
    ("mysql -h db -uroot -phunter2", "hunter2"),
    ("ansible_ssh_pass=hunter2", "hunter2"),
    ("get(url, auth=('me', 'hunter2'))", "hunter2"),
    ("HTTPBasicAuth('me', 'hunter2')", "hunter2"),
    ("cookies={'sid': 'abcdef123456'}", "abcdef"),
    ("Bearer: abcdefghijklmnopqrst", "abcdef"),
    ("https_proxy=http://me:pr0xy/pw@proxy:3128", "pr0xy/pw"),
    (f"https://api.telegram.org/bot{'1' * 9}:AAExampleExample/sendMessage", "AAExample"),
    (f"key {SENDGRID}", SENDGRID),
    # A flag of a training framework, csh, a Dockerfile's old form, files of other programs.
    (f"train.py --use_wandb {HEX40}", "0123456789"),
    (f"trainer.wandb_key={HEX40}", "0123456789"),
    (f"'wandb_key': '{HEX40}'", "0123456789"),
    (f"setenv WANDB_API_KEY {HEX40}", "0123456789"),
    ("ENV HUB_TOKEN abcdef123456", "abcdef"),
    ('{"auths": {"nvcr.io": {"auth": "bWU6aHVudGVyMnh5eg=="}}}', "bWU6"),
    ("GH_PAT=abcdef123456abcdef", "abcdef"),
    ("host dapi" + HEX40[:32], "0123456789"),
    ("ossutil64 config -e oss.example.org -k abcdefGH1234", "abcdefGH"),
    # Cut inside a word, of which the name is gone.
    ("…s3cr3tparts3cr3tpart!rest CUDA out of memory", "rest"),
]


@for_each(("text", "secret"), SECRETS)
def test_secrets_go(text, secret):
    assert secret in text and secret not in redact(text) and HIDDEN in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("f(token=abc123,lr=1) failed", f"f(token={HIDDEN},lr=1) failed"),
        ("?token=abc123&step=7", f"?token={HIDDEN}&step=7"),
        ('{"HF_TOKEN": "aaa, bbb", "lr": 1}', f'{{"HF_TOKEN": "{HIDDEN}", "lr": 1}}'),
        ("-e 'PASSWORD=two words' image", f"-e 'PASSWORD={HIDDEN}' image"),
        ("\x1b[33mtoken\x1b[0m=\x1b[32mabcdef1\x1b[0m lr", f"\x1b[33mtoken\x1b[0m=\x1b[32m{HIDDEN}\x1b[0m lr"),
        ("https://u:p4ss@git.example.org/x.git is gone", f"https://u:{HIDDEN}@git.example.org/x.git is gone"),
        (f"WANDB_API_KEY={HEX40}\nWORLD_SIZE=8\nRANK=0\n", f"WANDB_API_KEY={HIDDEN}\nWORLD_SIZE=8\nRANK=0\n"),
        ("…s3cr3tparts3cr3tpart!rest CUDA out of memory", f"…{HIDDEN} CUDA out of memory"),
    ],
)
def test_what_stands_around_them_stays(text, shown):
    assert redact(text) == shown


@for_each(
    "text",
    [
        "RuntimeError: [/g/pair.cc:537] Read error [127.0.0.1]:20200: Connection reset by peer",
        "Sampler(num_tokens=128, tokenizer=T5Tokenizer)",
        "tokens per second: 1234, max_tokens=2048",
        "tokens=128 max_new_tokens=256 max_new_token=256 ms/token: 35.2ms loss per token: 2.3051",
        "--tokenizer=/path/to/tokenizer --task token_classification",
        "--tokenizer /path --max-new-token 2048",
        "token_classification: finetuning",
        "the secret sauce of tokenizers",
        "pad_token='[PAD]' eos_token=\"</s>\" {'bos_token': 'begin_of_text', 'unk_token': 'unknown'}",
        "token: 4711",
        "SyntaxError: unexpected token: identifier",
        "use_auth_token=True, token=None",
        '    token = os.environ["HF_TOKEN"]',
        '    api_key=os.environ.get("OPENAI_API_KEY")',
        "    if token == eos_token:",
        "token: torch.Tensor",
        "token: Optional[str] = None",
        "HF_TOKEN=$HF_TOKEN PASSWORD=${PASSWORD} python x",
        'File "/home/u/token_utils.py", line 3, in keys: for key, token in pairs:',
        'File "/home/u/auth/token.py", line 3',
        '["token", "labels_of_the_batch"]',
        "std::token::Kind",
        "KeyError: 'token'",
        "KeyError: 'input_ids'",
        f"commit {HEX40}",
        f"wandb_commit {HEX40} mywandbs {HEX40}",
        "ENV KEY_SIZE 4096bytes ENV PATH /usr/lib12345 ENV HF_TOKEN $HF_TOKEN1",
        '"auth": "none", USE_PAT=true',
        f"wandb: commit {HEX40}",
        f"/home/u/.cache/hub/models--a--b/snapshots/{HEX40}/model.safetensors",
        "uuid 123e4567-e89b-12d3-a456-426614174000",
        "node7:1:2 [0] NCCL INFO ncclCommInitRank comm 0x55d0c0ffee rank 1 nranks 8 cudaDev 1 busId 1a000 commId 0x3fa9bb4c0c1d2e3f - Init COMPLETE",
        "tensor iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "tcp://10.0.0.1:29500",
        "forward_pass: 12 ms, num_pass=3, FORWARD_PASS=1, the npw: 4",
        "tcp://[::1]:29500",
        "git+ssh://git@git.example.org/org/repo.git https://user@host.example/x",
        'MountVolume.SetUp failed for volume "x" : secret "nccl-conf" not found',
        "munge met an expired credential: the clocks of two hosts disagree",
        "GOOGLE_APPLICATION_CREDENTIALS=/etc/keys/gcp.json",
        "password is required, the token is invalid",
        "Authorization: denied",
        "sig=SIGTERM signature=ncclAllReduce",
        "PWD=/home/u OLDPWD=/data",
        "docker run --user 1000:1000 -u 0:0 image; curl -u me:$PASS; python -u /job/train.py:3; date -u +%H:%M",
        "hf_transfer hf_hub_download sk-learn-intelex-extension",
        "PRIMARY_KEY=tensor_id_12345 PUBLIC_KEY=ssh-rsa12345678 CACHE_KEY: layer0123456 NCCL_KEY=1",
        "store key=worker/0/abcdef0123456789, {'username': 'me', 'key': 'weight'}, ak=1 sk=2, task=abcdefghijkl12345678",
        "docker run -p 8888:8888 img; mkdir -p /data/x1; srun -p gpu; ssh -p 2222 node1; mysql -P 3306; login node -p 1",
        "http://10.0.0.1:8080/a@b tcp://node0:29500/x@y pkg @ git+https://github.com/a/b.git@v1.2",
        "cookies={} num_cookies=3 bearer of bad news, secret_ideas: none",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 GPU-5c2f1a3b-aaaa-bbbb-cccc-0123456789ab",
        "\x1b[32mtokens\x1b[0m=\x1b[36m128\x1b[0m \x1b[33mtoken\x1b[0m=\x1b[36m4711\x1b[0m",
        "wait timeout after 2000ms, keys: /default_pg/0//cpu//0/0",
        "…/train.py:88 in step",
        "… RuntimeError: CUDA error: device-side assert triggered",
    ],
)
def test_everything_else_stays(text):
    assert redact(text) == text


CASES = [
    re.sub(r"⟨([0-9a-f]+)⟩", lambda m: chr(int(m[1], 16)), line.replace("⌁", "")).replace("⏎", "\n").replace("⇥", "\t")
    for line in Path(__file__).with_name("credentials.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def test_no_shape_leaks_and_no_ordinary_line_is_hurt():
    leaks, hurt = [], []
    for case in CASES:
        text = case.replace("«", "").replace("»", "")
        shown = redact(text)
        secrets = re.findall("«([^»]*)»", case)
        if any(word in shown for secret in secrets for word in secret.split()) or redact(shown) != shown or shown.count("\n") != text.count("\n"):
            leaks.append((case, shown))
        if not secrets and shown != text:
            hurt.append((case, shown))
    assert (len(leaks), leaks, len(hurt), hurt) == (0, [], 0, [])


PIECES = [
    *(text for text, _ in SECRETS),
    HIDDEN,
    "token",
    "password",
    "=",
    ": ",
    "'",
    '"',
    "\\",
    '\\"',
    ",",
    "&",
    "(",
    ")",
    " ",
    "--",
    "://",
    "@",
    "…",
    "abc123",
    "a" * 30,
    "\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_redacting_again_changes_nothing(text):
    once = redact(text)
    assert redact(once) == once


LENGTH = 50_000


@for_each(
    "unit",
    [
        *("a", "a.", "--a-a-a", "--_token", "://", "://a:", "://a@:", "a@", "=", "'", '"', "\\", "_", "-", "$", "…a", "a;b&"),
        *("token=", "token='", 'token=\\"', "password=[", "'token=a", '"password=a ', 'b"token=', "token=b(", "token=1 ", "secret: None "),
        *(
            "TOKEN', ",
            "TOKEN value: ",
            "TOKEN,        ",
            "access_",
            "x-api-key: $A",
            "--token ",
            "bearer a",
            "authorization: digest ",
            "cookie: ",
            "sig=1",
        ),
        *("eyJ-", "eyJaaaaaaaaaa.", "eyJaaaaaaaaaa.aaaaaaaaaa.", "-----BEGIN ", "wandb ", "sk-", "login a password ", "password is a"),
        *(
            "-u ",
            "-u a:",
            "-u 1:1",
            "docker login ",
            "docker login -p",
            "mysql ",
            "login a\n",
            "A_",
            "AB_KEY",
            "cookies={",
            "auth=('",
            "hf_",
            "\x1b[1m",
        ),
        *("'username':'a',", "--sk ", "sk=", "SG.", "SG.aaaaaaaaaaaaaaaa.", "://a:/", "local-", "token\x1b[1m", "token=\x1b[1m"),
        *(
            "KEY=",
            "?key=",
            "key=key=key=",
            "api_key: >\n ",
            "password: |\n\n",
            "password:\n  ",
            "password=['",
            "token  ",
            "<password>",
            "://a/hooks/",
            "[1m",
        ),
    ],
)
def test_hostile_repetitions_take_no_time(unit, cpu_seconds):
    # What is quadratic takes several times as long.
    cpu_seconds(3)
    redact(unit * (LENGTH // len(unit)))
    redact("password" + unit * (LENGTH // len(unit)) + "\n")


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        (["t.py", "--token", "abc123", "--lr", "1"], {2}),
        (["t.py", "--password", "two words", "abc"], {2}),
        (["wandb", "login", HEX40], {2}),
        (["docker", "login", "-u", "me", "-p", "hunter2", "registry"], {5}),
        (["curl", "-H", "Authorization:", "Bearer", "abcdefgh", "x"], {4}),
        (["t.py", "--max-tokens", "4096", "--eos-token", "</s>", "--tokenizer", "gpt2", "--api-key", "--verbose"], set()),
        (["t.py", "--password", "[redacted]", "x"], set()),
    ],
)
def test_a_command_line_is_read_as_a_whole(words, hidden):
    assert redact_command(words) == tuple(HIDDEN if i in hidden else word for i, word in enumerate(words))
    assert redact_command(redact_command(words)) == redact_command(words)


@pytest.mark.parametrize("flag", ["-u", "--user", "-U", "--proxy-user"])
def test_of_a_user_with_a_password_the_user_stays(flag):
    assert redact_command(["curl", "-s", flag, "me:secret:pass", "https://h/x"]) == ("curl", "-s", flag, f"me:{HIDDEN}", "https://h/x")
    assert redact_command(["curl", flag, "me:two words", "x"]) == ("curl", flag, HIDDEN, "x")
    assert redact_command(["curl", flag, f"me:two1 {flag} me:abc1"]) == ("curl", flag, HIDDEN)
    assert redact_command(["curl", f"{flag}=me:abc"]) == ("curl", f"{flag}=me:{HIDDEN}")
    assert redact_command(["bash", "-c", f"curl {flag} 'me:abc' x"]) == ("bash", "-c", f"curl {flag} 'me:{HIDDEN}' x")


def test_what_is_around_a_secret_in_a_word_stays():
    assert redact_command(["-e", "HF_TOKEN=abc123456", "http://u:p@h/x"]) == ("-e", f"HF_TOKEN={HIDDEN}", f"http://u:{HIDDEN}@h/x")


SECRET = "hf_" + "plantedplantedplanted"
PLANTED = Finding(
    cause=SECRET,
    standing="likely",
    says=msg("{said} of {said}", said=SECRET),
    ranks=(1,),
    hosts=(SECRET, SECRET),
    where=SECRET,
    evidence=(Evidence(source=SECRET, text=SECRET, line=1),),
    remedies=(Remedy(id=SECRET, says=SECRET, env={SECRET: SECRET, "DB_PASSWORD": "two words"}, command=SECRET, verify=SECRET),),
)
VERDICT = Verdict(
    schema=SECRET,
    primary=PLANTED,
    contributing=(PLANTED,),
    symptoms=(PLANTED,),
    not_examined=(NotExamined(what=SECRET, why=SECRET),),
    inputs=(Input(source=SECRET, kind="log", bytes=1),),
)


def texts(value, path="verdict"):
    """Every text in a verdict, and where it is."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, tuple):
        for i, one in enumerate(value):
            yield from texts(one, f"{path}[{i}]")
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from texts(k, f"{path} key")
            yield from texts(v, f"{path}[{k}]")
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            yield from texts(getattr(value, f.name), f"{path}.{f.name}")


# Fields of a few fixed words.
FIXED = ("standing", "trial", "kind")


def test_no_text_of_a_verdict_is_left_out():
    assert all(SECRET in text or path.endswith((*FIXED, "PASSWORD]", "key")) for path, text in texts(VERDICT))
    clean = redact_data(VERDICT)
    assert [path for path, text in texts(clean) if SECRET in text or "two words" in text] == []
    assert redact_data(clean) == clean


def test_settings_that_are_credentials_by_their_name_are_hidden():
    pairs = (job.Setting(name="API_KEY", value="plain", place="p"), job.Setting(name="NCCL_DEBUG", value="INFO", place="p"))
    assert [s.value for s in redact_data(pairs)] == [HIDDEN, "INFO"]
    # A text in place of a number would be of another shape.
    assert redact_data({"PASSWORD": "two words", "SECRET": 7, "API_KEY": ("a",)}) == {"PASSWORD": HIDDEN, "SECRET": 7, "API_KEY": (HIDDEN,)}
    pods = {"env": [{"name": "DB_PW", "value": "plain"}, ["HF_TOKEN", "plaintext"]], "argv": ["t.py", "--password", "plain", "--lr", "1"]}
    hidden = {"env": [{"name": "DB_PW", "value": HIDDEN}, ["HF_TOKEN", HIDDEN]], "argv": ["t.py", "--password", HIDDEN, "--lr", "1"]}
    assert redact_data(pods) == hidden


def test_no_output_has_a_secret():
    clean = redact_data(VERDICT)
    for text in (encoding.encode(clean).decode(), markdown.render(clean), markdown.render(clean, lang="zh")):
        assert SECRET not in text and "planted" not in text and "two words" not in text and HIDDEN in text.replace("\\", "")


def test_what_acts_on_a_terminal_goes():
    hostile = "\x1b]0;t\x07a\x9b31mb\u202ec\x7f\td\ne"
    clean = redact_data(Verdict(primary=Finding(cause="unknown", standing="possible", says=hostile, hosts=(hostile,))))
    assert clean.primary is not None
    assert clean.primary.says == clean.primary.hosts[0] == "]0;ta31mbc\td\ne"
    # Nor does it keep a secret from being seen.
    hidden = redact_data(Verdict(primary=None, inputs=(Input(source="hf_ab\x00cdefghijklmnop\u202eqrstuv", kind="log", bytes=1),)))
    assert hidden.inputs[0].source == HIDDEN


def test_what_we_say_ourselves_is_no_secret():
    for cause in catalogue.load().values():
        for text in (cause.title, zh(cause.title), cause.what, cause.why, *cause.explain.values(), *(t for r in cause.remedies for _, t in texts(r))):
            assert redact(text) == text


@pytest.mark.parametrize(
    "text", ["pa\u017fsword=hunter2hunter", "api_\u212aey: hunter2hunter", "log\u0131n me pas\u017fword hunter2hunter", "S\u0130G=hunter2hunter12"]
)
def test_letters_that_are_others_where_case_does_not_count(text):
    assert "hunter2" not in redact(text)


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_no_pattern_that_matches_is_left_out(text):
    once = redact(text)
    with mock.patch.object(module, "_lines_with", lambda small, words: {(0, len(small))}):
        assert redact(text) == once
