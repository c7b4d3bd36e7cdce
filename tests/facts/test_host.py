import pytest

from unhang.facts.host import Host


def test_run():
    ran = Host().run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=10)
    assert (ran.exitcode, ran.out, ran.err) == (3, "out\n", "err\n")


def test_missing_command_and_slow_command():
    with pytest.raises(FileNotFoundError):
        Host().run(["no-such-command-here"], timeout_s=1)
    with pytest.raises(TimeoutError):
        Host().run(["sleep", "60"], timeout_s=0.1)


def test_a_machine_that_is_a_directory_runs_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        Host(tmp_path).run(["true"], timeout_s=1)
