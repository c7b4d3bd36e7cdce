"""Shell: launchers inside of one another, ranks and ports that differ; each beside what is right."""

from __future__ import annotations

import itertools
import time

import pytest
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.remedies.lint import check
from unhang.remedies.lint.starts import read

BASH, SLURM = "#!/bin/bash\n", "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
TWO = "torchrun --nnodes=2 --node-rank=$NODE_RANK --master-addr=a --master-port=29500 train.py\n"


@for_each(
    "command",
    [
        "torchrun --nproc-per-node 8 torchrun train.py",
        "python -m torch.distributed.launch --nproc_per_node=8 accelerate launch train.py",
        "python3 -m torch.distributed.run --standalone deepspeed train.py",
        "torchrun --nproc-per-node=8 --no-python deepspeed train.py",
        "deepspeed --num_gpus=8 torchrun train.py",
        "accelerate launch --num_processes 8 \\\n  -m torch.distributed.run train.py",
        "torchrun --nproc-per-node=8 $(which accelerate) launch train.py",
        "/opt/conda/bin/torchrun --nproc-per-node=8 /opt/conda/bin/deepspeed train.py",
        "FORCE_TORCHRUN=1 torchrun --nproc-per-node=8 llamafactory-cli train a.yaml",
        "srun --label torchrun --nproc-per-node=8 accelerate launch train.py",
        'bash -c "torchrun --nproc-per-node=8 accelerate launch train.py"',
        'LAUNCHER="torchrun --nproc-per-node=8"\n$LAUNCHER accelerate launch train.py',
        'CMD=(accelerate launch train.py)\ntorchrun --nproc-per-node=8 "${CMD[@]}"',
    ],
)
@for_each("head", [BASH, SLURM.replace("nodes=2", "nodes=1")])
def test_launchers_inside_of_one_another(head, command):
    (problem,) = [p for p in check("file", head + command + "\n")[1] if "inside of another" in p.says]
    # By a variable it is told where that is used.
    assert problem.line == head.count("\n") + 1 + command.startswith(("LAUNCHER", "CMD"))


@for_each(
    "command",
    [
        "torchrun a.py; accelerate launch b.py",
        "torchrun train.py --strategy deepspeed --lr 1",
        "torchrun --role deepspeed train.py",
        "torchrun train.py deepspeed",
        "accelerate launch --use_deepspeed train.py --deepspeed ds.json",
        "pip install torchrun deepspeed",
        'echo "torchrun accelerate launch"',
        "cd /data/deepspeed && torchrun train.py",
        "torchrun -m train.torchrun",
    ],
)
def test_one_launcher_is_one(command):
    assert check("file", BASH + command + "\ntorchrun train.py\n")[1] == ()


def test_starts_are_found_in_words():
    found = read('A=1 nohup unhang run --set x=y torchrun --standalone "a b.py"\nls deepspeed\n').starts
    assert [one.names for one in found] == [("torchrun",)]


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nnodes=2 --node_rank=$RANK --master-addr=a --master-port=29500 train.py",
        'torchrun --nnodes=2 --node-rank "${RANK}" --master-addr=a --master-port=29500 train.py',
        "export NODE_RANK=${RANK:-0} MASTER_PORT=29500 NNODES=2\nllamafactory-cli train a.yaml",
        "accelerate launch --num_machines 2 --machine_rank $RANK --main_process_ip a --main_process_port 29500 train.py",
        "torchrun --nnodes=2 --node-rank=$LOCAL_RANK --master-addr=a --master-port=29500 train.py",
    ],
)
def test_a_process_as_node_rank(line):
    for head in (BASH, SLURM):
        problem = next(p for p in check("file", head + line + "\n")[1] if "without srun" not in p.says)
        assert "every host takes itself for the first" in problem.says and problem.line == head.count("\n") + 1
        assert problem.instead == ("$SLURM_NODEID" if head == SLURM else "$NODE_RANK")


def test_what_counts_hosts_is_right():
    assert check("file", BASH + "torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK --master-addr=a --master-port=29500 train.py\n")[1] == ()
    assert check("file", BASH + TWO)[1] == ()


def test_llama_factory_takes_a_free_port_on_each_host():
    (problem,) = (p for p in check("file", BASH + "export NNODES=2\nllamafactory-cli train a.yaml\n")[1] if "no MASTER_PORT" in p.says)
    assert problem.line == 2 and problem.instead == "export MASTER_PORT=29500"


NO_PORT = "torchrun --nnodes 2 --node-rank $NODE_RANK --master-addr a train.py\n"


@pytest.mark.parametrize(
    "text",
    [
        NO_PORT,
        "accelerate launch --num_machines 2 --machine_rank 0 --main_process_ip a train.py\n",
        "export MASTER_PORT=29500\n" + NO_PORT,
        "export MASTER_PORT=1234\n" + NO_PORT,
    ],
)
def test_a_port_that_nobody_names_is_the_same_on_all_hosts(text):
    found = [p for p in check("file", BASH + text)[1] if "PORT" in p.says]
    assert [p.says for p in found] == (
        ["torchrun does not read MASTER_PORT: without --master-port its hosts meet on 29500"] if "=1234" in text else []
    )


def test_a_store_of_torchrun_without_an_endpoint():
    (problem,) = check("file", BASH + "torchrun --nnodes=2 --rdzv-backend=c10d train.py\n")[1]
    assert problem.says == "several hosts, and no --rdzv-endpoint: each takes itself for the first (localhost:29400)"
    assert check("file", BASH + "torchrun --nnodes=2 --rdzv-backend=etcd-v2 train.py\n")[1] == ()


@pytest.mark.parametrize("option", ["--nproc_per_node -2", "--nproc-per-node=0", "--nproc-per-node=00"])
def test_counts_below_one(option):
    (problem,) = check("file", BASH + f"torchrun {option} train.py\n")[1]
    assert problem.says.endswith(": it is at least 1")


@pytest.mark.parametrize("text", ["N=1\ntorchrun --nnodes=$N train.py\n", "torchrun --nnodes=${N:-1} --standalone train.py\n"])
def test_one_host_needs_no_port(text):
    assert check("file", BASH + text)[1] == ()


@pytest.mark.parametrize(
    "port",
    [
        "$RANDOM",
        "$((20000 + RANDOM % 1000))",
        "$((29500 + NODE_RANK))",
        "$(( 29500 + ${SLURM_NODEID} ))",
        "$(shuf -i 20000-30000 -n 1)",
        "$(python -c 'import socket; s = socket.socket(); s.bind((\"\", 0)); print(s.getsockname()[1])')",
        "295$NODE_RANK",
    ],
)
def test_a_port_of_each_host(port):
    exported = f"export MASTER_PORT={port}\n{TWO.replace('29500', '$MASTER_PORT')}"
    given = TWO.replace("29500", f'"{port}"')
    for text in (exported, given):
        assert [p.line for p in check("file", BASH + text)[1]] == [2], text


def test_a_port_by_chance_is_right_on_one_host_and_once_in_a_batch_script():
    assert check("file", BASH + "export MASTER_PORT=$RANDOM\ntorchrun --nnodes=1 train.py\n")[1] == ()
    two = TWO.strip().replace("$NODE_RANK", "$SLURM_NODEID")
    batch = SLURM + "export MASTER_PORT=$((20000 + RANDOM % 1000))\nsrun bash -c '" + two.replace("29500", "$MASTER_PORT") + "'\n"
    assert check("file", batch)[1] == ()
    on_each = SLURM + "srun bash -c '" + two.replace("29500", "$RANDOM") + "'\n"
    assert any("differs by host" in p.says for p in check("file", on_each)[1])


def test_ports_and_addresses_of_one_job():
    second = "ssh b " + TWO.replace("$NODE_RANK", "1").replace("29500", "29501")
    (problem,) = check("file", BASH + TWO.replace("$NODE_RANK", "0") + second)[1]
    assert problem.says == "ports of one job differ: 29500, 29501" and problem.line == 3
    (problem,) = check("file", BASH + TWO.replace("master-addr=a", "master-addr=127.0.0.1"))[1]
    assert "takes itself for the first: 127.0.0.1" in problem.says
    assert check("file", BASH + "MASTER_ADDR=localhost MASTER_PORT=1 torchrun --nnodes=1 train.py\n")[1] == ()


def test_hosts_of_slurm_that_torchrun_is_not_told():
    (problem,) = check("file", SLURM + "srun torchrun --nproc-per-node=8 train.py\n")[1]
    assert problem.line == 2 and "each trains by itself" in problem.says


def test_a_launcher_that_only_the_first_host_starts():
    """Once, whatever is asked of tasks: all that is wrong is said at once."""
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"
    said = [p.says for p in check("file", head + "torchrun --nproc-per-node 4 train.py\n")[1]]
    assert said == [
        "2 hosts, and torchrun without --nnodes: it trains on one of them",
        "torchrun without srun: a batch script runs on the first of its 2 hosts only",
    ]
    one, *_ = check("file", head + "srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node 4 train.py\n")[1]
    assert "4 tasks on each host, and each starts a launcher" in one.says


def test_a_launcher_that_only_the_first_host_starts_is_told_by_its_line():
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
    text = "deepspeed --hostfile hosts --num_nodes 2 --master_port 29500 first.py\ntorchrun --nproc-per-node 4 train.py\n"
    alone, without = check("file", head + text)[1]
    assert "it trains on one of them" in alone.says and (alone.line, without.line) == (2, 5)
    assert without.says.startswith("torchrun without srun") and without.instead == "srun torchrun ..."


def test_hosts_that_deepspeed_has_no_file_of():
    several = "deepspeed --num_gpus=8 --num_nodes=2 --no_ssh --node_rank=$NODE_RANK --master_addr=a --master_port=29500 train.py\n"
    (problem,) = check("file", BASH + several)[1]
    assert problem.line == 2 and "without --hostfile" in problem.says
    assert check("file", BASH + several.replace("--no_ssh", "--hostfile hosts --no_ssh"))[1] == ()
    assert check("file", BASH + "deepspeed --num_gpus=8 train.py --num_nodes=2 --master_port=1\n")[1] == ()


RIGHT = {
    "defaults of one host": "NNODES=${NNODES:-1}\nNODE_RANK=${NODE_RANK:-0}\ntorchrun --nnodes ${NNODES:-1} --node_rank $NODE_RANK "
    '--master_addr ${MASTER_ADDR:-127.0.0.1} --master_port "${MASTER_PORT:-29500}" train.py\n',
    "a default by name": 'NNODES=${PET_NNODES:-1}\ntorchrun --nnodes="$NNODES" train.py\n',
    "a default of an argument": 'torchrun --nnodes="${1:-1}" train.py\n',
    "a default that : sets": ': "${NNODES:=1}"\ntorchrun --nnodes=$NNODES train.py\n',
    "one run after the other on the first host": (TWO + TWO.replace("29500", "29501")).replace("$NODE_RANK", "0"),
    "one run after the other": TWO + TWO.replace("29500", "29501"),
    "a quote in a comment": "# it's for the first host's port\n" + TWO + "# don't\n",
    "a quote in a word": 'echo "it\'s two hosts"\n' + TWO,
    "a quote in a pattern": "grep -v don\\'t list | sed \"s/it's//\"\n" + TWO,
    "options of other programs": "rsync --num_nodes 2 a b\nmpirun -H torchrun hostname\nconvert --local_rank 3 a\ndocker run --name deepspeed -d a\n",
    "a port that deepspeed does not read": "export MASTER_PORT=1234\ndeepspeed --num_nodes 2 --hostfile h --master_port=29600 train.py\n",
    "a port that an option replaces": "export MASTER_PORT=1234\n" + TWO,
    "a here-document": "cat <<'EOF'\ntorchrun accelerate launch train.py\nEOF\n" + TWO,
    "an endpoint with defaults": "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=${HEAD:-node0}:${PORT:-29500} train.py\n",
    "looking for a launcher": "if ! command -v torchrun >/dev/null; then exit 1; fi\nwhich deepspeed || pip install deepspeed\n" + TWO,
    "an array": "ARGS=(--nnodes 2 --node-rank $NODE_RANK)\nARGS+=(--master-addr a --master-port 29500)\ntorchrun ${ARGS[@]} train.py\n",
    "a variable that is put before itself": 'CMD="$CMD torchrun"\n$CMD train.py\n',
    "a function": 'run() {\n  torchrun --standalone "$@"\n}\nrun train.py\n',
}


@for_each("text", RIGHT.values(), ids=RIGHT)
def test_what_is_right_is_not_told(text):
    assert check("file", BASH + text + "torchrun train.py\n")[1] == ()


@pytest.mark.parametrize(
    "runner",
    [
        "conda run -n env",
        "conda run -n deepspeed --no-capture-output",
        "uv run",
        "uv run --extra gpu",
        "poetry run",
        "pixi run -e gpu",
        "pdm run",
        "micromamba run -n a",
    ],
)
def test_launchers_in_an_environment(runner):
    (problem,) = check("file", BASH + f"{runner} torchrun --nproc-per-node=8 accelerate launch train.py\n")[1]
    assert "torchrun > accelerate launch" in problem.says and problem.line == 2
    assert check("file", BASH + f"{runner} torchrun --nproc-per-node=8 train.py\n")[1] == ()
    assert check("file", BASH + f"{runner.split()[0]} install torchrun deepspeed\ntorchrun train.py\n")[1] == ()


C10D = "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py\n"
ACCELERATE = "accelerate launch --num_machines=$SLURM_NNODES --main_process_ip=$HEAD --main_process_port=29500 train.py\n"
ON_SLURM = [
    (C10D, "torchrun without srun: a batch script runs on the first of its 2 hosts only", "srun torchrun ..."),
    ("srun " + C10D.replace("--rdzv-backend=c10d ", ""), "no --node-rank", "--rdzv-backend=c10d"),
    ("srun " + C10D.replace("c10d", "static"), "no --node-rank", "--rdzv-backend=c10d"),
    ("srun " + ACCELERATE, "no --machine_rank", "srun bash -c 'accelerate launch --machine_rank=$SLURM_NODEID ...'"),
    ("bash -c '" + C10D.strip() + "'\n", "torchrun without srun", "srun torchrun ..."),
    ("srun " + TWO, "nothing sets NODE_RANK", "srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'"),
    ("srun " + TWO.replace("$NODE_RANK", "$SLURM_NODEID"), "SLURM_NODEID is filled in once", "srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'"),
    (
        'srun bash -c "' + TWO.strip().replace("$NODE_RANK", "$SLURM_PROCID") + '"\n',
        "SLURM_PROCID is filled in once",
        "srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'",
    ),
    (
        "RANK_OF_HOST=$SLURM_NODEID\nsrun " + TWO.replace("$NODE_RANK", "$RANK_OF_HOST"),
        "SLURM_NODEID is filled in once",
        "srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'",
    ),
    ("srun " + TWO.replace("--node-rank=$NODE_RANK ", ""), "no --node-rank", "srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'"),
    (
        "export MASTER_ADDR=a\nsrun bash -c '" + TWO.strip().replace("$NODE_RANK", "$SLURM_NODEID").replace("--master-addr=a ", "") + "'\n",
        "torchrun does not read MASTER_ADDR",
        "--master-addr=$MASTER_ADDR",
    ),
]


@for_each(("text", "says", "instead"), ON_SLURM, ids=[one[1] for one in ON_SLURM])
def test_what_slurm_starts_on_one_host_or_without_its_number(text, says, instead):
    (problem,) = check("file", SLURM + text)[1]
    assert says in problem.says and problem.instead == instead and problem.line == 4 + text.startswith("export")


@for_each(
    "text",
    [
        "srun " + C10D,
        "srun " + ACCELERATE.replace("launch", "launch --rdzv_backend c10d"),
        "srun " + ACCELERATE.replace("launch", "launch --config_file a.yaml"),
        "HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\nsrun " + C10D,
        "HEAD=$(hostname)\nsrun " + C10D,
        "# it's one port for all\nMASTER_PORT=$((20000 + RANDOM % 1000))\nsrun " + C10D.replace("29500", "$MASTER_PORT"),
        "srun bash -c '" + TWO.strip().replace("$NODE_RANK", "$SLURM_NODEID") + "'\n",
        'srun bash -c "' + TWO.strip().replace("$NODE_RANK", "\\$SLURM_NODEID") + '"\n',
        'LAUNCHER="' + TWO.replace("$NODE_RANK", "\\$SLURM_PROCID").replace(" train.py\n", "") + '"\nsrun bash -c "$LAUNCHER train.py"\n',
        'CMD="' + C10D.strip() + '"\nsrun --label $CMD\n',
        "NODE_RANK=0\nfor host in $HOSTS; do ssh $host " + TWO.strip() + " & NODE_RANK=$((NODE_RANK + 1)); done\n",
        "torchrun --standalone --nproc-per-node=8 prepare.py\nsrun " + C10D,
        "command -v torchrun >/dev/null || exit 1\nsrun python train.py\n",
        "deepspeed --hostfile hosts --num_nodes 2 --master_port 29500 train.py\n",
    ],
)
def test_what_slurm_starts_on_all_its_hosts(text):
    assert check("file", SLURM + text)[1] == ()


@pytest.mark.parametrize("count", ["$SLURM_NNODES", "$SLURM_JOB_NUM_NODES", "${SLURM_NNODES}"])
def test_one_host_of_slurm_needs_nothing(count):
    assert check("file", SLURM.replace("nodes=2", "nodes=1") + f"torchrun --nnodes={count} train.py\n")[1] == ()


def test_variables_that_hold_one_another_many_times_over_end():
    chain = "".join(f'V{i}="{f"$V{i + 1} " * 40}"\n' for i in range(8)) + "W=a\n" + 'W="$W $W"\n' * 40
    assert check("file", BASH + chain + "torchrun $V0 $W train.py\n")[0] == "torchrun"


@pytest.mark.parametrize(
    "line",
    ["-N 2 --gpus-per-node=8 --ntasks-per-node=8", "--ntasks-per-node 8 -N2 -G 16", "--job-name='a b' --nodes=2 --gres=gpu:8 --ntasks-per-node=8"],
)
def test_several_options_on_one_line_of_sbatch(line):
    problems = check("file", f"#!/bin/bash\n#SBATCH {line} # --ntasks-per-node=1\nsrun torchrun train.py\n")[1]
    assert [(p.line, p.instead) for p in problems] == [(2, "#SBATCH --ntasks-per-node=1"), (2, "--nnodes=$SLURM_NNODES")]


def test_the_last_of_two_counts_for_sbatch():
    assert check("file", "#!/bin/bash\n#SBATCH -N 4 -G 8\n#SBATCH -N 1\ntorchrun --standalone train.py\n")[1] == ()
    assert "no GPUs" in check("file", "#!/bin/bash\n#SBATCH -N 1 --comment='--gpus=8'\ntorchrun train.py\n")[1][0].says
    assert check("file", "#!/bin/bash\n#SBATCH --tres-per-task=gres/gpu:1 --comment=it's\ntorchrun train.py\n")[1] == ()
    assert check("file", "#!/bin/bash\n#SBATCH -G 8 --nodes=" + "9" * 5000 + "\ntorchrun train.py\n")[1] == ()


LARGE = {
    "shell": ("torchrun", lambda n: BASH + "torchrun --nnodes 2 train.py\n" * n),
    "ports": (
        "torchrun",
        lambda n: BASH + "".join(f"torchrun --nnodes 2 --node-rank {i} --master-addr a --master-port {9999 + i} t.py\n" for i in range(n)),
    ),
    "containers": (
        "kubernetes",
        lambda n: (
            "apiVersion: v1\nspec:\n  containers:\n" + "".join("  - command: [torchrun, --nnodes=2, train.py]\n    env: []\n" for _ in range(n))
        ),
    ),
    "documents": ("kubernetes", lambda n: "apiVersion: v1\nkind: Pod\nspec: {containers: [{command: [torchrun, train.py]}]}\n---\n" * n),
    "fields": ("llamafactory", lambda n: "stage: sft\n" + "".join(f"num_procesess{i}: 2\n" for i in range(n))),
}


_NESTED = "".join(f"{a}='" + f'bash -c "${b}";' * 20 + "'\n" for a, b in itertools.pairwise("ABCDEFGH"))
_BLANK = "A=' '\n" + "".join(f"{b}='" + f"${a} " * 60 + "'\n" for a, b in itertools.pairwise("ABCDEFG"))


@for_each(
    ("text", "says"),
    [
        ("A=b\n" * 3_000 + "x\n", "more than 2000 variables"),
        ("torchrun x\n" * 2_001, "more than 2000 launchers"),
        ("x " * 60_000 + "\ny\n", "more than 50000 words"),
        ("A='" + "a " * 1_999 + "'\n" + "x $A\n" * 20_000, "more than 50000 words"),
        (_NESTED + 'bash -c "$A"\n', "more than 50000 words"),
        (_BLANK + "x $G\n", None),
        ("! " * 15_000 + "x\n", None),
    ],
    ids=["variables", "launchers", "words", "filled-in", "nested", "blank", "reserved"],
)
def test_what_no_one_writes_is_refused_or_read_at_once(text, says):
    begun = time.process_time()
    if says is None:
        assert not read(text).starts
    else:
        with pytest.raises(UnhangError, match=says):
            read(text)
    assert time.process_time() - begun < 3


def test_more_variables_than_a_file_has_are_not_judged():
    with pytest.raises(UnhangError, match="more than 2000 variables"):
        check("Dockerfile", "FROM x\n" + "ENV A=b\n" * 2_001)


def test_launchers_share_the_variables_that_were_set_before():
    first, second, third = read("A=b\ntorchrun x\ntorchrun y\nA=c\ntorchrun z\n").starts
    assert first.variables is second.variables and third.variables["A"].text == "c" and first.variables["A"].text == "b"


@pytest.mark.parametrize("name", LARGE)
def test_time_grows_with_the_size_and_not_faster(name):
    form, made = LARGE[name]
    # A file that was parsed once is not parsed again.
    names = (f"file{i}" for i in itertools.count())

    def taken_s(n):
        begun = time.process_time()
        found, problems = check(next(names), made(n))
        assert found == form and (name == "documents" or (len(problems) == 201 and "not shown" in problems[-1].says))
        return time.process_time() - begun

    small, large = min(taken_s(250) for _ in range(3)), min(taken_s(2000) for _ in range(3))
    assert large < 24 * small, (small, large)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (BASH + 'echo "open\ntorchrun train.py\n', 2, "unexpected EOF"),
        (BASH + "if true; then\n  torchrun train.py\n", 3, "syntax error"),
        (SLURM + "for i in 1 2\ntorchrun train.py\n", 5, "syntax error near unexpected token"),
    ],
)
def test_what_bash_cannot_read(text, line, says, monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    problem = next(p for p in check("file", text)[1] if says in p.says)
    # Where a quote opens, or where the file ends: that differs by bash's release.
    assert problem.line in (line, line + 1) and says in problem.says.of("zh")


def test_bash_runs_nothing_of_what_it_reads(tmp_path, monkeypatch):
    (tmp_path / "env").write_text(f"touch {tmp_path}/read\n")
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "env"))
    text = BASH + f"touch {tmp_path}/run\nshopt -s nullglob\ntorchrun train.py <<X\n$(touch {tmp_path}/inside)\nX\n"
    assert check("file", text)[1] == () and [p.name for p in tmp_path.iterdir()] == ["env"]
    assert check("file", BASH + "shopt -s extglob\ncase $1 in +([0-9])) torchrun train.py;; esac\n")[1] == ()
    assert check("file", "#!/bin/zsh\nfor f (*.py) torchrun $f\n")[1] == ()


BY_SLURM = (
    "N=${SLURM_NNODES:-1}\nA=$(scontrol show hostnames ${SLURM_STEP_NODELIST:-localhost} | head -n1)\n"
    "torchrun --nnodes=$N --rdzv-backend=c10d --rdzv-endpoint=$A:16111 t.py"
)
# Of several hosts: what is written, what is said of it, and what to write instead.
MEETING = [
    (
        "accelerate launch --num_machines 2 --machine_rank 0 --num_processes 7 --main_process_ip a t.py",
        "7 does not divide by 2",
        "=6 or --num_processes=8",
    ),
    ("N=4\naccelerate launch --num_machines=$N --num_processes=10 --machine_rank $R --main_process_ip a t.py", "10 does not divide by 4", "=8 or"),
    ("accelerate launch --num_machines 3 --num_processes 2 --machine_rank 0 --main_process_ip a t.py", "2 does not divide by 3", "--num_processes=3"),
    ("accelerate launch --num_machines 2 --machine_rank 2 --num_processes 8 --main_process_ip a t.py", "2 hosts count from 0", "--machine_rank=1"),
    ("torchrun --nnodes 2 --node_rank 2 --master-addr a t.py", "--node-rank is 2, and 2 hosts count from 0", "--node-rank=1"),
    (TWO.replace("-addr=a", "-addr=$(hostname)"), "each host gives its own name (hostname)", "first host"),
    (TWO.replace("-addr=a", '-addr="$(hostname -f)"'), "its own name", "first host"),
    ("HEAD=$HOSTNAME\ntorchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint $HEAD:29400 t.py", "its own name (HOSTNAME)", "first host"),
    ("A=$(hostname -I)\ntorchrun --nnodes 2 --node-rank $R --master-addr $A t.py", "several addresses", "first host"),
    ("A=$(ssh $FIRST hostname -i)\ntorchrun --nnodes 2 --node-rank $R --master-addr $A t.py", "the loopback on some systems", "$FIRST"),
    (
        "A=$(cat f || echo localhost)\ntorchrun --nnodes 2 --node-rank $R --master-addr $A t.py",
        "where that fails, every host falls back",
        "first host",
    ),
    (
        BY_SLURM,
        "where SLURM_STEP_NODELIST is not set, as outside of a job step, every host falls back to localhost",
        '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    ),
    ("export MASTER_PORT=29544\ntorchrun --nnodes 2 --rdzv-backend c10d t.py", "no --rdzv-endpoint", "$MASTER_ADDR:$MASTER_PORT"),
]


@for_each(("text", "says", "instead"), MEETING, ids=[one[1] for one in MEETING])
def test_counts_and_addresses_of_several_hosts(text, says, instead):
    (problem,) = check("file", BASH + text + "\n")[1]
    assert says in problem.says and instead in problem.instead and not problem.note, problem


@pytest.mark.parametrize(
    "text",
    [
        "accelerate launch --num_machines 2 --num_processes $((2 * 4)) --machine_rank $R --main_process_ip a t.py",
        "accelerate launch --num_processes 7 t.py",
        "torchrun --nnodes 1 --master-addr $(hostname) t.py",
        "torchrun --nnodes 2 --node-rank 0 --master-addr $(hostname) t.py",
        "HEAD=$(hostname)\nfor h in $HOSTS; do ssh $h torchrun --nnodes 2 --node-rank $R --master-addr $HEAD t.py; done",
        "if [ $R = 0 ]; then A=$(hostname); else A=$(cat /shared/first); fi\ntorchrun --nnodes 2 --node-rank $R --master-addr $A t.py",
        "A=$(hostname -I | awk '{print $1}')\nmpirun -H a,b torchrun --nnodes 2 --node-rank $R --master-addr $A t.py",
        BY_SLURM.replace("STEP", "JOB"),
    ],
)
def test_counts_and_addresses_that_are_right(text):
    assert check("file", BASH + text + "\n")[1] == ()


def test_a_number_of_the_host_that_a_store_does_not_read_is_a_note():
    (problem,) = check("file", SLURM + "srun " + C10D.replace("train.py", "--node-rank=$SLURM_NODEID train.py"))[1]
    assert problem.note and "--node-rank has no effect with --rdzv-backend=c10d" in problem.says


@pytest.mark.parametrize(
    ("start", "gpus"),
    [
        ("G=4\nsrun torchrun --nproc_per_node $G t.py", "4"),
        ("srun accelerate launch --num_machines 1 --num_processes 2 t.py", "2"),
        ("srun torchrun --nproc-per-node gpu t.py", "N"),
    ],
)
def test_gpus_that_are_suggested_are_those_of_the_script(start, gpus):
    head = "#!/bin/bash\n#SBATCH -N 1\n"
    assert [p.instead for p in check("file", head + start + "\n")[1]] == [f"#SBATCH --gpus-per-node={gpus}"]
    assert check("file", head + start.replace("srun", "srun --gpus-per-node=8") + "\n")[1] == ()


def test_a_substitution_in_a_variable_without_quotes_is_one_word():
    text = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29544\n'
    start = "torchrun --nnodes 2 --node_rank $SLURM_NODEID --master_addr $MASTER_ADDR --master_port $MASTER_PORT --nproc_per_node 4 t.py"
    (found,) = read(text + f"srun bash -c '{start}'\n").starts
    assert found.options["--master-port"].text == "29544" and found.options["--nproc-per-node"].text == "4"
    assert check("file", SLURM + text + f"srun bash -c '{start}'\n")[1] == ()
