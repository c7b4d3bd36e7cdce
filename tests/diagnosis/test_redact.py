"""Credentials are taken out; everything else stays as it was."""

from __future__ import annotations

import pytest

from unhang.diagnosis.redact import redact


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuv python train.py", "hf_abc"),
        ("export WANDB_API_KEY='0123456789abcdef0123456789abcdef01234567'", "0123456789"),
        ("wandb login 0123456789abcdef0123456789abcdef01234567", "0123456789"),
        ("AWS_SECRET_ACCESS_KEY: wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY", "wJalr"),
        ("id AKIAIOSFODNN7EXAMPLE used", "AKIA"),
        ("git clone https://user:p4ssw0rd@git.example.org/x.git", "p4ssw0rd"),
        ("redis://:s3cret@10.0.0.1:6379/0", "s3cret"),
        ("{'password': 'hunter2xyz', 'user': 'bob'}", "hunter2xyz"),
        ('{"api_key": "abc123def"}', "abc123def"),
        ("train.py --wandb-api-key abc123 --lr 1", "abc123"),
        ("train.py --token=abc123 --lr 1", "abc123"),
        ("Authorization: Bearer abcdefgh.ijklmnop", "abcdefgh"),
        ("openai sk-proj-abcdefghijklmnopqrstuvwx", "sk-proj"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig", "eyJ"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ],
)
def test_secrets_go(text, secret):
    assert secret in text and secret not in redact(text) and "[redacted]" in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [/g/pair.cc:537] Read error [127.0.0.1]:20200: Connection reset by peer",
        "Sampler(num_tokens=128, tokenizer=T5Tokenizer)",
        "tokens per second: 1234, max_tokens=2048",
        'File "/home/u/token_utils.py", line 3, in keys: for key, token in pairs:',
        "KeyError: 'input_ids'",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "tcp://10.0.0.1:29500",
        "wait timeout after 2000ms, keys: /default_pg/0//cpu//0/0",
    ],
)
def test_everything_else_stays(text):
    assert redact(text) == text
