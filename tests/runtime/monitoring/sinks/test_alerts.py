"""Alerts by a real server and a real command: who is told what, how often, and what is never told."""

import json
import logging
import sys
import time

import pytest
from tests.runtime.collectives.world import world_of

import unhang
from unhang.runtime.monitoring.counters import OfFailures, Silent


def failures(count, **more):
    return [OfFailures(**{"group": "world", "collective": "all_reduce", "cause": "timeout", "count": count, "says": "rank 3 did not come", **more})]


def test_a_failure_reaches_the_channel_in_plain_words(server, snapshot):
    alerts = unhang.Alerts(f"{server.url}/hook", name="llama")
    alerts.write(snapshot())
    alerts.write(snapshot(10, step=1200, failures=failures(1, says="rank 3 stands in <module> & waits")))
    server.wait_for(1)
    alerts.close()
    (message,) = server.messages
    # As Slack wants it: <!channel> would ring for everybody.
    assert message["text"].startswith("llama on ") and message["text"].endswith(
        " at step 1200: all_reduce of world has failed (timeout): rank 3 stands in &lt;module&gt; &amp; waits"
    )
    assert message["says"] == "all_reduce of world has failed (timeout): rank 3 stands in <module> & waits"
    assert (message["kind"], message["step"], message["left_out"], message["version"]) == ("failure", 1200, 0, 1)
    assert message["fields"] == {
        "group": "world",
        "collective": "all_reduce",
        "cause": "timeout",
        "count": 1,
        "error": "rank 3 stands in <module> & waits",
    }
    assert message["time"] == "2027-01-15T08:00:10+00:00" and "第 1200 步" in message["text_zh"]


def test_one_message_of_a_kind_and_what_was_left_out_is_counted_in_the_next(server, snapshot):
    alerts = unhang.Alerts(server.url, every_s=600)
    alerts.write(snapshot())
    for i in range(1, 5):
        alerts.write(snapshot(10 * i, failures=failures(i)))
    # Another subject does not wait for the first; where nothing new happens and at the end, nothing is told.
    both = [*failures(4), *failures(1, cause="mismatch")]
    for at in (50, 620):
        alerts.write(snapshot(at, failures=both))
    alerts.write(snapshot(630, failures=[*failures(5), *failures(2, cause="mismatch")]))
    server.wait_for(3)
    alerts.close()
    told = [(one["fields"]["cause"], one["fields"]["count"], one["left_out"]) for one in server.messages]
    assert told == [("timeout", 1, 0), ("mismatch", 1, 3), ("timeout", 5, 1)]
    assert server.messages[1]["text"].endswith("(and 3 more since the last message)")


def test_each_rank_that_falls_silent_is_named_at_once_and_again_only_later(server, snapshot):
    alerts = unhang.Alerts(server.url, every_s=600, on=["silent"])
    for i, ranks in enumerate([(), (3,), (3, 5, 6), (5, 6), (3, 5, 6)]):
        alerts.write(snapshot(10 * i, step=i, world_size=8, silent=[Silent(rank=rank, for_s=31.0) for rank in ranks]))
    server.wait_for(2)
    alerts.close()
    assert [(one["fields"]["ranks"], one["step"]) for one in server.messages] == [([3], 1), ([5, 6], 2)]


def test_a_failure_has_its_own_time_and_step_and_not_those_of_the_snapshot(server, snapshot):
    alerts = unhang.Alerts(server.url, name="llama")
    alerts.write(snapshot(0, step=0))
    at = snapshot(2).time_s
    alerts.write(
        snapshot(
            90, step=90, failures=failures(1, time_s=at, step=2), evaluations=1, evaluation_failures=1, evaluation_time_s=at + 1, evaluation_step=3
        )
    )
    alerts.write(snapshot(100, step=100, failures=[*failures(1), *failures(1, cause="error")]))
    server.wait_for(3)
    alerts.close()
    assert [(one["step"], one["time"][-14:-6]) for one in server.messages] == [(2, "08:00:02"), (3, "08:00:03"), (100, "08:01:40")]
    assert " at step 2: all_reduce" in server.messages[0]["text"]


def test_a_thousand_groups_that_fail_are_one_page(server, snapshot):
    alerts = unhang.Alerts(server.url)
    alerts.write(snapshot(failures=[one for i in range(100) for one in failures(1, group=f"ranks {i},{i + 1}")]))
    server.wait_for(5)
    alerts.close()
    assert [one["left_out"] for one in server.messages] == [95, 0, 0, 0, 0]


def test_only_the_kinds_that_were_asked_for(server, busy):
    alerts = unhang.Alerts(server.url, on=["restart", "silent"])
    alerts.write(busy())
    alerts.close()
    assert sorted(one["kind"] for one in server.messages) == ["restart", "silent"]


def test_a_webhook_that_fails_is_no_reason_for_silence(server, snapshot, tmp_path, caplog):
    """The command tells, the log tells, the URL does not; and the sink goes on."""
    server.answers = [404]
    script = tmp_path / "notify.py"
    script.write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).open('a').write(sys.stdin.read())")
    got = tmp_path / "got"
    alerts = unhang.Alerts(f"{server.url}/SECRET", command=[sys.executable, str(script), str(got)], command_timeout_s=60)
    with caplog.at_level(logging.DEBUG):
        alerts.write(snapshot(failures=failures(1)))
        until = time.monotonic() + 20
        while not (got.exists() and got.read_text().endswith("\n")) and time.monotonic() < until:
            time.sleep(0.01)
        alerts.close()
    assert json.loads(got.read_text())["kind"] == "failure"
    assert "not delivered by the webhook (it answered 404 Not Found): all_reduce of world has failed" in caplog.text
    # The host alone may be the secret.
    assert server.url.rpartition("/")[2] not in caplog.text + repr(alerts)
    assert "SECRET" not in caplog.text + repr(alerts) and "notify.py" not in repr(alerts)


def test_a_program_that_is_not_there_is_told_of_before_anything_happens(snapshot, caplog):
    alerts = unhang.Alerts(command="notify-the-night-shift --channel 7")
    alerts.write(snapshot())
    alerts.close()
    assert "there is no such program" in caplog.text


def test_credentials_of_an_error_stay_here(server, snapshot):
    alerts = unhang.Alerts(server.url)
    says = "ConnectionError: https://me:hunter2@db.example/x password=hunter2"
    alerts.write(snapshot(evaluations=1, evaluation_failures=1, evaluation_says=says, silent=[Silent(rank=1, for_s=9.0)]))
    server.wait_for(2)
    alerts.close()
    assert b"ConnectionError" in b"".join(server.bodies) and b"hunter2" not in b"".join(server.bodies)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "a webhook, a command or both"),
        ({"webhook": "hooks.example/SECRET"}, "http or https URL"),
        ({"command": "'"}, "list of words"),
        ({"command": "true", "on": ["failures"]}, "failure, evaluation_failure, restart, straggler, silent, heard_again"),
        ({"command": "true", "on": "restart"}, "on is a list"),
        ({"command": "true", "every_s": -1}, "every_s"),
        ({"command": "true", "straggler_share": 50}, "straggler_share"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says) as caught:
        unhang.Alerts(**wrong)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"TORCHELASTIC_RUN_ID": "59b0d20f-46a4-4e56-9d6e-0ad6ea5bbe5a"}, "train.py"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "train.py"),
        ({"TORCHELASTIC_RUN_ID": "llama"}, "llama"),
        ({"TORCHELASTIC_RUN_ID": "59b0d20f-46a4-4e56-9d6e-0ad6ea5bbe5a", "SLURM_JOB_NAME": "night"}, "night"),
        ({"TORCHELASTIC_RUN_ID": "llama", "UNHANG_RUN_DIR": "/runs/2026-01-07"}, "2026-01-07"),
    ],
)
def test_a_training_is_called_by_a_name_that_somebody_gave_it(server, snapshot, monkeypatch, env, name):
    for variable in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_NAME", "UNHANG_RUN_DIR"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "argv", ["/home/me/train.py"])
    alerts = unhang.Alerts(server.url)
    alerts.write(snapshot(failures=failures(1)))
    server.wait_for(1)
    alerts.close()
    assert server.messages[0]["name"] == name and server.messages[0]["text"].startswith(f"{name} on ")


def fails_together(rank, url, path):
    import torch

    monitor = unhang.Monitor([unhang.Alerts(url), unhang.JSONL(path)], every_s=60)
    monitor.step = 40 + rank
    unhang.barrier()
    with pytest.raises(unhang.CollectiveTimeout):
        if rank == 1:
            time.sleep(5)
        unhang.all_reduce(torch.ones(8), deadline=1)
    monitor.step = 50
    monitor.close()


def test_a_timeout_of_real_ranks_is_told_with_who_did_not_come(server, tmp_path):
    path = tmp_path / "monitor.jsonl"
    with world_of(2, tmp_path / "ranks") as world:
        world(fails_together, server.url, path)
    by_cause = {one["fields"]["cause"]: one for one in server.messages}
    message = by_cause["timeout"]
    assert (message["kind"], message["step"], message["fields"]["group"]) == ("failure", 40, "world")
    assert "rank 1" in message["fields"]["error"]
    told = json.loads(path.read_text().splitlines()[-1])
    assert told["step"] == 50 and "rank 1" in {one["cause"]: one["says"] for one in told["failures"]}["timeout"]
