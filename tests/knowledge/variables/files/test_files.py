"""Assignments in every kind of file, and the corrected file, of which all else stays byte for byte."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest

from unhang.errors import UnhangError
from unhang.knowledge.variables.files.opening import parse
from unhang.knowledge.variables.files.rewriting import Change, rewrite


def pairs(name, text):
    return [(s.name, s.value, s.first + 1) for s in parse(name, text).settings]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("export A=b\n", [("A", "b", 1)]),
        ("export A=b C='d e' D\n", [("A", "b", 1), ("C", "d e", 1)]),
        ("A=1 B=\"x y\" python train.py\n", [("A", "1", 1), ("B", "x y", 1)]),
        ("env -u X A=b C=d python a.py X=y\n", [("A", "b", 1), ("C", "d", 1)]),
        ("mpirun -np 2 -x A=b -x PATH ./a\n", [("A", "b", 1)]),
        ("mpiexec -genv A b ./a\n", [("A", "b", 1)]),
        ("docker run -e A=b --env C=d --env=E=f -e \"G=h i\" img\n", [("A", "b", 1), ("C", "d", 1), ("E", "f", 1), ("G", "h i", 1)]),
        ("#SBATCH --export=ALL,A=b,C=d\n", [("A", "b", 1), ("C", "d", 1)]),
        ("srun --export=ALL,A=b ./a\n", [("A", "b", 1)]),
        ("#PBS -v A=b\n", [("A", "b", 1)]),
        ("# export A=b\n", []),
        ("echo a # A=b\n", []),
        ("cat <<EOF\nexport A=b\nEOF\nexport C=d\n", [("C", "d", 4)]),
        ("cat <<-'EOF' > x\n\texport A=b\n\tEOF\nexport C=d\n", [("C", "d", 4)]),
        ("torchrun \\\n  -x A=b \\\n  a.py\n", [("A", "b", 1)]),
        ("export A=\"b\\\nc\"\n", [("A", "bc", 1)]),
        ("export A=$(hostname -I | cut -d' ' -f1)\n", [("A", "$(hostname -I | cut -d' ' -f1)", 1)]),
        ("export A=${B:-c d}\n", [("A", "${B:-c d}", 1)]),
        ("if x; then export A=b; fi\n", [("A", "b", 1)]),
        ("export A=b && export C=d\n", [("A", "b", 1), ("C", "d", 1)]),
        ("export A=b\nunset A\n", []),
        ("export A=b\nrun\nunset A\n", [("A", "b", 1)]),
        ("export A=b\nif x; then unset A; fi\n", [("A", "b", 1)]),
        ("grep 'A=b' x\n", []),
        ("A=b\r\nC=d\r\n", [("A", "b", 1), ("C", "d", 2)]),
        ("export A='unclosed\n", [("A", "unclosed\n", 1)]),
        ("export \"A=b\" 'C=d e'\n", [("A", "b", 1), ("C", "d e", 1)]),
        ("sudo -E -u me A=b run A=c\n", [("A", "b", 1)]),
        ("sudo A=b run\n", [("A", "b", 1)]),
        ("bash -lc 'A=b run' X=y\n", [("A", "b", 1)]),
        ("srun -N 2 sh -c \"export A=b; run \\$A\"\n", [("A", "b", 1)]),
        ("bash -eo pipefail -c '\nexport A=b\nrun'\n", [("A", "b", 2)]),
        ("bash run.sh -c 'A=b'\n", []),
        ("docker run -e A=b img bash -c 'C=d run'\n", [("A", "b", 1), ("C", "d", 1)]),
        ("ssh -p 22 -o X=y me@host A=b run C=d\n", [("A", "b", 1)]),
        ("ssh host 'cd /x && export A=b; run'\n", [("A", "b", 1)]),
        ("timeout 5 ssh -t host env A=b run\n", [("A", "b", 1)]),
        ("rsync -e ssh host A=b\n", []),
        ("eval \"export A=b\"\n", [("A", "b", 1)]),
        ("env -S 'A=b C=d run' x\n", [("A", "b", 1), ("C", "d", 1)]),
        ("setenv A 'b c'\nsetenv C\n", [("A", "b c", 1), ("C", "", 2)]),
        ("set -gx A b c; set -x -g D e; set E f\n", [("A", "b c", 1), ("D", "e", 1)]),
        ("set -x\nset -euo pipefail\nA=b run\n", [("A", "b", 3)]),
    ],
)  # fmt: skip
def test_shell(text, found):
    assert pairs("run.sh", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(( y = x << z ))\nexport A=5\n", [("A", "5", 2)]),
        ("if (( x << 2 )); then\nexport A=5; fi\n", [("A", "5", 2)]),
        ("for ((i = 1; i < 1 << 3; i++)); do export A=5; done\n", [("A", "5", 1)]),
        ("((x) || (y))\n(( (x << 2) ))\nexport A=5\n", [("A", "5", 3)]),
        ("run y=$((x << z))\nexport A=5\n", [("A", "5", 2)]),
        ("run y=$( (x) | cat; case a in a) echo 'it';; esac)\nexport A=5\n", [("A", "5", 2)]),
        ("run q=$'it\\'s'\nexport A=5\n", [("A", "5", 2)]),
        ("export A=$'a\\tb\\x41\\102\\'' C=$\"d\"\n", [("A", "a\tbAB'", 1), ("C", "$d", 1)]),
        ("run x=$(echo \"it's )\") # it's\nexport A=5\n", [("A", "5", 2)]),
        ("run x=$(cat <<E\nit's\nE\n)\nexport A=5\n", [("A", "5", 5)]),
        ("run x=$(\n# it's\ny)\nexport A=5\n", [("A", "5", 4)]),
        ("x=\"${y:-it's}\"\nexport A=5\n", [("x", "${y:-it's}", 1), ("A", "5", 2)]),
        ("x=${y#'}'}\nexport A=5\n", [("x", "${y#'}'}", 1), ("A", "5", 2)]),
        ("x=\"${y%'}'}\"\nexport A=5\n", [("x", "${y%'}'}", 1), ("A", "5", 2)]),
        ("cat <<E-1 <<'F G' > x\nexport A=b\nE-1\nF\nexport A=c\nF G\nexport A=5\n", [("A", "5", 7)]),
        ("cat <<< it; export A=5\n", [("A", "5", 1)]),
        ("env A=5 run > x 2>&1 C=d\n", [("A", "5", 1)]),
        ("run &> x; run A=b >| y; diff <(A=5 x) <(y)\n", [("A", "5", 1)]),
        ("mpirun &> x -x A=5 run\n", [("A", "5", 1)]),
        ("export A=18\\\n00\n", [("A", "1800", 1)]),
        ("export A=18\\\n  C=00\n", [("A", "18", 1), ("C", "00", 1)]),
        ("env \"A=b c\" run; echo -e A=c; grep -e 'A=d' x; echo env A=e\n", [("A", "b c", 1)]),
        ("E=(A=b 'C=d e' # F=g\n -x G=h $I)\n", [("E", None, 1), ("A", "b", 1), ("C", "d e", 1), ("G", "h", 2)]),
        ("declare -a E+=(A=b)\nf() (A=c)\n", [("E", None, 1), ("A", "b", 1), ("A", "c", 2)]),
    ],
)  # fmt: skip
def test_shell_is_cut_as_bash_does(text, found):
    assert pairs("run.sh", text) == found and not parse("run.sh", text).unclosed


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        ("x\necho 'a\nexport A=b\n", ("quote", 1)),
        ("x=$(y\nexport A=b\n", ("quote", 0)),
        ('x "${y\nexport A=b\n', ("quote", 0)),
        ("x\nE=(a\nexport A=b\n", ("bracket", 1)),
        ("x\n\ncat <<E\nexport A=b\n E\n", ("here-document", 2)),
        ("x <<E", ("here-document", 0)),
        ("echo a\\", None),
        ("echo 'a'", None),
    ],
)
def test_what_is_not_closed_is_told(text, open_):
    assert [(one.what, one.line) for one in parse("a.sh", text).unclosed] == ([] if open_ is None else [open_])


def test_a_here_document_in_yaml_ends_where_it_does():
    text = "run: |\n\n    cat <<E\n    A=b\n    E\n    export A=5\n"
    assert pairs("a.yaml", text) == [("A", "5", 6)] and not parse("a.yaml", text).unclosed
    assert [one.line for one in parse("a.yaml", text.replace("    E\n", "")).unclosed] == [2]


LISTS = [
    ("ALL,A=b", "ALL"),
    ("A=b,PATH", "PATH"),
    ('"ALL,A=b"', '"ALL"'),
    ("'ALL,A=b'", "'ALL'"),
    ('"A=b,ALL"', '"ALL"'),
    ('"A=b",ALL', "ALL"),
    ('ALL,"A=b c"', "ALL"),
    ('ALL,"A=b c",D=e', "ALL,D=e"),
    ("A=b,A=c,D", "D"),
    ("D,A=b,A=c", "D"),
    ("A=b,D,A=c", "D"),
    ("'ALL,'A=b','D", "'ALL,'D"),
    ("ALL,A=\"b\",'D'", "ALL,'D'"),
    ("\"ALL,A='b,c',D=e\"", '"ALL,D=e"'),
    ("A=b", None),
    ('"A=b"', None),
    ("A=b,A=c", None),
    # What is left would begin within quotes and end outside of them.
    ("'ALL,'A=b", None),
]


@pytest.mark.parametrize(("before", "after"), LISTS)
@pytest.mark.parametrize(
    "form", ["srun --export={} x\n", "srun --export {} x\n", "#SBATCH --export={}\n", "#SBATCH -n 2 --export {} -t 1\n", "#PBS -v {}\n"]
)
def test_lists(form, before, after):
    text = form.format(before)
    done = corrected("a.sh", text, out=("A",))
    if after is None:
        assert done.text == text and {one.why for one in done.left} <= {"list", "line"} and done.left
    else:
        count = sum(s.name == "A" for s in parse("a.sh", text).settings)
        assert done.text == "# unhang: A: why\n" * count + form.format(after) and not done.left
    renamed = corrected("a.sh", text, new={"A": "B"}).text
    assert renamed == form.format(before.replace("A=", "B=")) and pairs("a.sh", renamed)


def test_a_list_whose_option_is_quoted():
    assert corrected("a.sh", 'srun "--export=ALL,A=b c" run\n', out=("A",)).text == '# unhang: A: why\nsrun "--export=ALL" run\n'


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("E=(A=b)\n", "# unhang: A: why\nE=()\n"),
        ("E=(A=b C=d)\n", "# unhang: A: why\nE=(C=d)\n"),
        ("E=( C=d A=b )\n", "# unhang: A: why\nE=( C=d )\n"),
        ("E=(\n  A=b # c\n  C=d\n)\n", "E=(\n  # unhang: A: why\n  # A=b # c\n  C=d\n)\n"),
        ("f() {\n  E=(\n    -x A=b\n  )\n}\n", "f() {\n  E=(\n    # unhang: A: why\n    # -x A=b\n  )\n}\n"),
        ("E=(x \\\n  A=b \\\n  C=d)\n", "# unhang: A: why\nE=(x \\\n  \\\n  C=d)\n"),
        ("E+=('A=b c' \"C=d\")\n", '# unhang: A: why\nE+=("C=d")\n'),
        ("E=(--export=ALL,A=b)\n", "# unhang: A: why\nE=(--export=ALL)\n"),
        ("set -eu\nE=(A=b C=d)\n", "set -eu\n# unhang: A: why\nE=(C=d)\n"),
        # Left.
        ("set -eu\nE=(A=b)\n", None),
        ("E=(A=b)\necho ${E[0]}\n", None),
        ("E=(A=b)\necho ${#E[@]}\n", None),
        ("E=(A=b)\necho $E\n", None),
        ("E=(--what A=b)\n", None),
    ],
)
def test_arrays(text, after):
    uses = 'run "${E[@]}" "${E[@]/#/-x }"\n'
    done = corrected("a.sh", text + uses, out=("A",))
    assert done.text == (text if after is None else after) + uses and bool(done.left) == (after is None)
    assert all(s.exported for s in parse("a.sh", text + uses).settings if s.name == "A")


def test_not_exported():
    of = {s.name: s.exported for s in parse("a.sh", "A=1\nB=2\nexport B\nC=3\npython x.py --c $C\nD=4 python x.py\n").settings}
    assert of == {"A": False, "B": True, "C": True, "D": True}
    assert all(s.exported for s in parse("a.env", "A=1\nB=2\n").settings)
    assert all(s.exported for s in parse("a.sh", "set -a\nA=1\npython x.py\n").settings)


def test_plain_assignments_are_for_whoever_loads_the_file():
    assert all(s.exported for s in parse("env.sh", "A=1\nexport B=2\n").settings)
    assert all(s.exported for s in parse("conf/.env", "A=1\nexport B=$(hostname)\necho loaded\n").settings)
    assert [s.exported for s in parse("run.sh", "A=1\nexport B=2\necho loaded\n").settings] == [False, True]


@pytest.mark.parametrize(
    ("statement", "exported"),
    [
        ("local A=0", False),
        ("readonly A=0", False),
        ("declare A=0", False),
        ("declare -gx A=0", True),
        ("local A=0; export A", True),
        ("export -n A=0", False),
    ],
)
def test_what_declarations_hand_on(statement, exported):
    assert [s.exported for s in parse("a.sh", f"f() {{\n  {statement}\n  python x.py\n}}\nf\n").settings] == [exported]


def test_options_of_launchers():
    said = parse("a.sh", "deepspeed --hostfile h train.py --ddp_timeout 7200\n").options
    assert [(o.name, o.value) for o in said] == [("launcher", "deepspeed"), ("ddp_timeout", "7200")]


def test_dockerfile():
    text = 'FROM x\nENV A=b \\\n    # a comment\n    C="d e"\nENV F g h\nRUN export I=j\nARG K=l\n'
    assert pairs("Dockerfile", text) == [("A", "b", 2), ("C", "d e", 2), ("F", "g h", 5), ("I", "j", 6), ("K", "l", 7)]
    assert pairs("some.text", text)[0] == ("A", "b", 2)


def test_kubernetes():
    text = (
        "spec:\n  containers:\n  - name: x\n    env:\n    - name: NCCL_DEBUG\n      value: INFO\n    - {name: NCCL_ALGO, value: Ring}\n"
        "    - name: RANK\n      valueFrom:\n        fieldRef: {fieldPath: a}\n    command: [bash, -c]\n    args:\n    - |\n"
        "      export NCCL_P2P_DISABLE=1\n      python x.py\n"
    )
    assert pairs("pod.yaml", text) == [("NCCL_DEBUG", "INFO", 5), ("NCCL_ALGO", "Ring", 7), ("RANK", None, 8), ("NCCL_P2P_DISABLE", "1", 14)]


def test_compose_and_plain_maps():
    assert pairs("c.yml", "environment:\n  - NCCL_DEBUG=INFO\n  - PATH\nother:\n  NCCL_ALGO: Ring\n  NCCL_IB_DISABLE: 1\n") == [
        ("NCCL_DEBUG", "INFO", 2),
        ("NCCL_ALGO", "Ring", 5),
        ("NCCL_IB_DISABLE", "1", 6),
    ]
    assert pairs("a.json", '{"env": {"NCCL_DEBUG": "INFO"}}') == [("NCCL_DEBUG", "INFO", 1)]
    assert [(o.name, o.value) for o in parse("lf.yaml", "ddp_timeout: 180000000\n").options] == [("ddp_timeout", "180000000")]


def test_python():
    text = (
        "import os\nos.environ['NCCL_DEBUG'] = 'INFO'\nos.environ.setdefault(\"NCCL_ALGO\", \"Ring\")\nos.environ.update({'NCCL_PROTO': str(1)})\n"
        "os.environ.update(NCCL_NET='IB')\nos.putenv('NCCL_X', f())\n"
        "dist.init_process_group(timeout=timedelta(minutes=5))\nargs = A(ddp_timeout=60)\n"
    )
    assert pairs("t.py", text) == [
        ("NCCL_DEBUG", "INFO", 2), ("NCCL_ALGO", "Ring", 3), ("NCCL_PROTO", "1", 4), ("NCCL_NET", "IB", 5), ("NCCL_X", None, 6)
    ]  # fmt: skip
    assert {(o.name, o.value) for o in parse("t.py", text).options} == {("group_timeout", "300"), ("ddp_timeout", "60")}
    assert pairs("t.py", "env = dict(os.environ, TORCH_A='é', A=\"1\", shell=True)\n") == [("TORCH_A", "é", 1), ("A", "1", 1)]


@pytest.mark.parametrize(("name", "text"), [("a.yaml", "a: {{ b }}\n- c"), ("a.py", "def f(:\n"), ("a.json", "{")])
def test_what_is_no_such_file(name, text):
    with pytest.raises(UnhangError, match=name):
        parse(name, text)


@pytest.mark.parametrize("text", ["[" * 50_000, "[" * 201 + "]" * 201, "".join(" " * i + "a:\n" for i in range(300))])
@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_what_is_nested_too_deeply(name, text):
    with pytest.raises(UnhangError, match="nested too deeply"):
        parse(name, text)


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 60 + "x=1\n",
        "deepspeed " + "-H h " * 100_000,
        "#SBATCH" + " " * 100_000 + "\n",
        "x=1\nunset y\n" * 2_000,
        "((" * 20_000,
        "$((" * 20_000,
        '"$(' * 20_000,
        "${x:-" * 20_000,
        "\"${x:-'" * 20_000,
        "x <<E\n" * 20_000,
        "A=(" * 20_000,
        "run --export=" + "A=b," * 20_000,
        "A=(" + "A=b " * 5_000 + ")",
    ],
    ids=[
        "blank-lines",
        "hosts",
        "spaces",
        "unset",
        "arithmetic",
        "substituted",
        "quoted",
        "braces",
        "quoted-braces",
        "here-documents",
        "brackets",
        "list",
        "array",
    ],
)
def test_odd_scripts_take_no_time(text):
    begin = time.process_time()
    parse("run.sh", text)
    assert time.process_time() - begin < 10


def test_many_scripts_in_one_file_take_no_time():
    begin = time.process_time()
    parse("a.yaml", "".join(f"k{i}: |\n  export A=$B\n" for i in range(8_000)))
    assert time.process_time() - begin < 10


def test_a_dockerfile_without_its_name():
    assert pairs("some.text", "\r\n# x\nARG A=1\n\nfrom x\nENV A=b\n") == [("A", "1", 3), ("A", "b", 6)]


def corrected(name, text, *, out=(), new=None):
    parsed = parse(name, text)
    changes = {i: Change(why="why") for i, s in enumerate(parsed.settings) if s.name in out}
    changes |= {i: Change(why="", new_name=new[s.name]) for i, s in enumerate(parsed.settings) if new and s.name in new}
    done = rewrite(text, parsed, changes)
    parse(name, done.text)
    return done


@pytest.mark.parametrize(
    ("name", "text", "after"),
    [
        ("a.sh", "x\n  export A=b # c\ny\n", "x\n  # unhang: A: why\n  # export A=b # c\ny\n"),
        ("a.sh", "export A=b C=d\n", "# unhang: A: why\nexport C=d\n"),
        ("a.sh", "A=b C=d run\n", "# unhang: A: why\nC=d run\n"),
        ("a.sh", "x && export A=b\n", "# unhang: A: why\nx && :\n"),
        ("a.sh", "if x; then export A=b; fi\n", "# unhang: A: why\nif x; then :; fi\n"),
        ("a.sh", "bash -c '\nexport A=b\nrun'\n", "# unhang: A: why\nbash -c '\n:\nrun'\n"),
        ("a.sh", "ssh h sudo A=b run\n", "# unhang: A: why\nssh h sudo run\n"),
        ("a.sh", "x\nsetenv A b\nset -x A b\n", "x\n# unhang: A: why\n# setenv A b\n# unhang: A: why\n# set -x A b\n"),
        # What stays of these words would have to be put together anew.
        ("Dockerfile", "FROM x\nRUN A=b y\nCMD [\"env\", \"A=b\"]\n", "FROM x\nRUN A=b y\nCMD [\"env\", \"A=b\"]\n"),
        ("a.sh", "run -x C=d \\\n  -x A=b \\\n  z\n", "# unhang: A: why\nrun -x C=d \\\n  \\\n  z\n"),
        ("a.sh", "x \\\n | A=b run\n", "# unhang: A: why\nx \\\n | run\n"),
        ("a.sh", "#SBATCH --export=ALL,A=b,C=d\n", "# unhang: A: why\n#SBATCH --export=ALL,C=d\n"),
        ("a.sh", "srun --export=A=b,ALL run\n", "# unhang: A: why\nsrun --export=ALL run\n"),
        ("a.sh", "srun --export=A=b,C=d run\n", "# unhang: A: why\nsrun --export=C=d run\n"),
        ("a.sh", "srun --export=PATH,A=b run\n", "# unhang: A: why\nsrun --export=PATH run\n"),
        ("a.sh", "srun --export=A=b,A=c,ALL,A=d,C run\n", "# unhang: A: why\n" * 3 + "srun --export=ALL,C run\n"),
        ("a.sh", 'srun --export="A=b,ALL" run\n', '# unhang: A: why\nsrun --export="ALL" run\n'),
        # Without a list Slurm hands on all that is set; PBS would take the next word for it.
        ("a.sh", "srun --export=A=b run\n", "srun --export=A=b run\n"),
        ("a.sh", "#PBS -v A=b\nrun\n", "#PBS -v A=b\nrun\n"),
        ("a.sh", "export A=b\r\nz\r\n", "# unhang: A: why\r\n# export A=b\r\nz\r\n"),
        ("a.sh", "export A=b", "# unhang: A: why\n# export A=b"),
        ("a.sh", "echo 'a\nb'; export A=b; x\n", "# unhang: A: why\necho 'a\nb'; :; x\n"),
        ("a.sh", "export A=b > x\n", "# unhang: A: why\n: > x\n"),
        ("a.sh", "(A=b run)\n", "# unhang: A: why\n(run)\n"),
        ("a.sh", "env A=18\\\n00 x\n", "# unhang: A: why\nenv x\n"),
        ("a.sh", 'run -e "A=b" --env="A=c d" x\n', "# unhang: A: why\n# unhang: A: why\nrun x\n"),
        ("a.sh", "export C=d A=b\nrun\nunset C\n", "# unhang: A: why\nexport C=d\nrun\nunset C\n"),
        ("a.sh", "export C=d A=b\nunset C\n", "# unhang: A: why\nexport C=d\nunset C\n"),
        ("a.sh", "x && export C A=b\n", "# unhang: A: why\nx && export C\n"),
        ("Dockerfile", "FROM x\nENV A=b C=d\n", "FROM x\n# unhang: A: why\nENV C=d\n"),
        ("Dockerfile", "FROM x\nENV A b\n", "FROM x\n# unhang: A: why\n# ENV A b\n"),
        ("a.yaml", "env:\n  A: b\n  C: d\n", "env:\n  # unhang: A: why\n  # A: b\n  C: d\n"),
        ("a.yaml", "- name: A\n  value: b\n- name: C\n  value: d\n", "# unhang: A: why\n# - name: A\n  # value: b\n- name: C\n  value: d\n"),
        ("a.py", "import os\nif x:\n    os.environ['A'] = 'b'\n", "import os\nif x:\n    # unhang: A: why\n    # os.environ['A'] = 'b'\n    pass\n"),
        ("a.py", "e = dict(\n    C='d',\n    A='b',\n)\n", "e = dict(\n    C='d',\n    # unhang: A: why\n    # A='b',\n)\n"),
        ("a.py", "e = {\n    'A': 'b',\n    'C': 'd',\n}\n", "e = {\n    # unhang: A: why\n    # 'A': 'b',\n    'C': 'd',\n}\n"),
    ],
)  # fmt: skip
def test_what_goes(name, text, after):
    assert corrected(name, text, out=("A",)).text == after


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("text", "fillers"),
    [
        ("f() {\n  export A=b\n}\n", 1),
        ("function f {\n  local A=b\n}\n", 1),
        ("if x; then\n  export A=b\nelif y; then\n  export A=c\nelse\n  # c\n  A=d\nfi\n", 3),
        ("for x in a b\ndo\n  export A=b\n  export A=c\ndone\n", 1),
        ("while x; do\n  if y; then\n    export A=b\n  fi\ndone\n", 1),
        ("(\n  export A=b\n)\n", 1),
        ("x &&\nexport A=b\necho c\n", 1),
        ("x || \\\nexport A=b\necho c\n", 1),
        ("if x; then export A=b A=c; fi\n", 1),
        ("if x; then A=b A=c; fi\n", 1),
        ("f() {\n  export A=b\n  case $x in\n    a) export A=c ;;\n    *)\n      export A=d\n      ;;\n  esac\n}\n", 1),
        ("for ((i = 0; i < 3; i++)); do\n  export A=$i\n  run\ndone\n", 0),
        ("f() {\n  export A=b \\\n    A=c\n}", 1),
        ("if ((x)) then\n  export A=b\nfi\n", 1),
        ("if [[ x ]] then\n  export A=b\nfi\n", 1),
        ("for ((;;)) do\n  export A=b\ndone\n", 1),
        ("if ! {\n  x\n} then\n  export A=b\nfi\n", 1),
        ("x |&\nexport A=b\necho c\n", 1),
        ("if x; then\n  ((x)) &&\n  export A=b\nfi\n", 1),
        ("export A=b\n", 0),
    ],
)
def test_what_is_emptied_stays_a_script(text, fillers):
    after = corrected("a.sh", text, out=("A",)).text
    checked = subprocess.run(["bash", "-n"], input=after, text=True, capture_output=True, check=False)
    assert not checked.returncode, checked.stderr + after
    alive = [line.partition("#")[0] for line in after.splitlines()]
    assert sum(":" in line for line in alive) == fillers and not any("A=" in line for line in alive), after


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.sh", "set -eu; x\nexport A=1800\necho --t $A\n", 3),
        ("a.sh", "export A=b\nrun -x A\n", 2),
        ("a.sh", "export A=b\nrun '# $A'\n", 2),
        ("a.sh", "export A=b\ncat <<E\n# $A\nE\n", 3),
        ("a.sh", "export A=b\nexport C=$A\n", 2),
        ("a.sh", "export A=b\necho ${A=c}$A=\n", 2),
        ("a.py", "import os\nos.environ['A'] = 'b'\nint(os.environ['A'])\n", 3),
        ("a.py", "os.environ['A'] = 'b'\nrun('# $A')\n", 2),
        ("Dockerfile", "FROM x\nENV A=b\nRUN echo $A # c\n", 3),
        ("a.yaml", "A: b\nargs: [$(A)]\n", 2),
        ("a.yaml", "A: b\nrun: |\n  cat <<E\n  # $A\n  E\n", 4),
    ],
)
def test_a_name_that_the_file_uses_stays(name, text, line):
    for done in (corrected(name, text, out=("A",)), corrected(name, text, new={"A": "B"})):
        assert done.text == text and [(one.name, one.why, one.line + 1) for one in done.left] == [("A", "used", line)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "export A=b # $A\n# $A\necho $AB A=c\n"),
        ("a.sh", "export A=${A:-1}\n"),
        ("a.py", "os.environ['A'] = 'b'  # A\nprint(AB)\n"),
        ("a.yaml", "# A\nA: b\nrun: |\n  # A\n  x\n"),
        ("Dockerfile", "FROM x\n# A\nENV A=b\n"),
    ],
)
def test_a_name_that_nothing_uses_goes(name, text):
    assert not corrected(name, text, out=("A",)).left and not corrected(name, text, new={"A": "B"}).left


def test_what_only_uses_what_goes_with_it_is_no_use():
    assert not corrected("a.sh", "export A=b\nexport C=$A\n", out=("A", "C")).left
    text = "export A=b\nexport C=$A\nrun $C\n"
    done = corrected("a.sh", text, out=("A", "C"))
    assert done.text == text and {one.name for one in done.left} == {"A", "C"}
    # More of them in a row than turns are taken.
    chain = "export A0=b\n" + "".join(f"export A{i + 1}=$A{i}\n" for i in range(20)) + "run $A20\n"
    assert corrected("a.sh", chain, out=[f"A{i}" for i in range(21)]).text == chain
    done = corrected("a.sh", "A=b x\nexport C=d\nrun $C\n", out=("A", "C"))
    assert done.left[0].line == 3 and done.text.splitlines()[3] == "run $C"


@pytest.mark.parametrize(
    ("value", "stays"),
    [
        ("$(cmd)", True), ("`cmd`", True), ('"x$(cmd)"', True), ("${B:=c}", True), ("${B:?c}", True), ("${B:-$(cmd)}", True), ("$((B++))", True),
        ("'$(cmd)'", False), ("${B:-c}", False), ("$((B+1))", False), ("$B", False), (r"\`x\`", False), ("$(( B == 1 ))", False),
    ],
)  # fmt: skip
def test_a_value_that_a_command_gives_stays(value, stays):
    text = f"export A={value}\n"
    done = corrected("a.sh", text, out=("A",))
    assert [one.why for one in done.left] == ["runs"] * stays and (done.text == text) == stays


@pytest.mark.parametrize("value", ["v", "größer 数 \U0001f600"])
def test_a_dictionary_of_megabytes(value):
    # Whoever looks at the whole line for each of its entries takes minutes.
    entries = [f"'MY_X{i}': '{value}'" for i in range(40_000)]
    text = f"import os\nos.environ.update({{{', '.join(entries)}, 'A': 'b'}})\nos.environ['C'] = 'd'\n"
    parsed = parse("a.py", text)
    assert [(s.name, s.value) for s in parsed.settings[-2:]] == [("A", "b"), ("C", "d")]
    assert all(text.startswith(s.name, s.name_at) for s in parsed.settings)
    assert len(parsed.settings) == 40_002


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "\n".join(f"export A{i}=b" for i in range(8_000))),
        ("a.sh", "export " + " ".join(f"A{i}=b" for i in range(8_000))),
        ("a.sh", "#SBATCH --export=ALL," + ",".join(f"A{i}=b" for i in range(8_000))),
        ("Dockerfile", "FROM x\nENV " + " ".join(f"A{i}=b" for i in range(8_000))),
    ],
)
def test_many_changes_of_one_file(name, text):
    done = corrected(name, text, out={f"A{i}" for i in range(8_000)})
    assert parse(name, done.text).settings == () and not done.left


def test_a_block_of_python_is_not_emptied():
    text = "for x in y:\n    os.environ['A'] = 'b'\n    os.environ['A'] = 'c'\n"
    after = corrected("a.py", text, out=("A",)).text
    assert after.splitlines()[-2:] == ["    # os.environ['A'] = 'c'", "    pass"] and after.count("pass") == 1


def test_renaming_touches_the_name_only():
    text = 'export NCCL_X="$NCCL_X" # NCCL_X\n'
    assert corrected("a.sh", text, new={"NCCL_X": "TORCH_NCCL_X"}).text == 'export TORCH_NCCL_X="$NCCL_X" # NCCL_X\n'
    assert corrected("a.py", "os.environ['A'] = 'A'\n", new={"A": "B"}).text == "os.environ['B'] = 'A'\n"
    text = "e = dict(os.environ, X_A='é', A='1')\n"
    assert corrected("a.py", text, new={"A": "B"}).text == "e = dict(os.environ, X_A='é', B='1')\n"
    assert corrected("a.yaml", "x: {A: b}\n", new={"A": "B"}).text == "x: {B: b}\n"


def test_what_cannot_go_is_left_and_told():
    done = corrected("a.yaml", "x: {A: b, C: d}\n", out=("A",))
    assert done.text == "x: {A: b, C: d}\n" and [s.name for s in done.left] == ["A"]
    for text in ("import os; os.environ['A'] = 'b'\n", "e = {\n    'A': 'b', 'c': 'd',\n}\n"):
        done = corrected("a.py", text, out=("A",))
        assert done.text == text and [s.name for s in done.left] == ["A"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("RUN export A=b && make\n", [("A", "b", True)]),
        ("RUN A=b make\n", [("A", "b", False)]),
        ("RUN --mount=type=cache,target=/x A=b make\n", [("A", "b", False)]),
        ("RUN <<EOF\nexport A=b\nmake\nEOF\nENV C=d\n", [("A", "b", True), ("C", "d", False)]),
        ("RUN cat > x <<EOF && y\nENV A=b\nEOF\nENV C=d\n", [("C", "d", False)]),
        ("ARG A=b\n", [("A", "b", True)]),
        ("ARG A=b\nARG X\nENV C=$A\n", [("A", "b", False), ("C", "$A", False)]),
        ("CMD A=b torchrun a.py\n", [("A", "b", False)]),
        ('CMD ["bash", "-c", "A=b torchrun a.py"]\n', [("A", "b", False)]),
        ('ENTRYPOINT ["env", "A=b", "torchrun"]\n', [("A", "b", False)]),
    ],
)
def test_commands_of_a_dockerfile(text, found):
    parsed = parse("Dockerfile", f"FROM x\n{text}")
    assert [(s.name, s.value, s.only_in_build) for s in parsed.settings] == found and not parsed.unclosed


def test_commands_in_yaml():
    text = 'a: bash -c "NCCL_DEBUG=INFO x"\nb: [bash, -c, "NCCL_ALGO=Ring y"]\nc:\n- sh\n- -lc\n- NCCL_PROTO=LL z\nd: [NCCL_NET=IB]\n'
    assert pairs("a.yaml", text) == [("NCCL_DEBUG", "INFO", 1), ("NCCL_ALGO", "Ring", 2), ("NCCL_PROTO", "LL", 6), ("NCCL_NET", "IB", 7)]
