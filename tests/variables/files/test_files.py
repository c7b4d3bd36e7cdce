"""Assignments in every kind of file."""

from __future__ import annotations

import time

import pytest
from tests.tables import for_each

from unhang.errors import UnhangError
from unhang.files.opening import parse


def pairs(name, text):
    return [(s.name, s.value, s.line + 1) for s in parse(name, text).settings]


@for_each(
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
        ("exec env -i A=b 'C=d e' run\n", [("A", "b", 1), ("C", "d e", 1)]),
        ("docker run -eA=b img\n", [("A", "b", 1)]),
        ("x | { A=b run; }\ncase x in\n  a | b) export C=d ;;\n  *) E=f run ;;\nesac\n", [("A", "b", 1), ("C", "d", 3), ("E", "f", 4)]),
        ("x |&\nexport A=b > y\n! time C=d run\n", [("A", "b", 2), ("C", "d", 3)]),
        ("set -x\nset -euo pipefail\nA=b run\n", [("A", "b", 3)]),
    ],
)  # fmt: skip
def test_shell(text, found):
    assert pairs("run.sh", text) == found


@for_each(
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
        ("E=(\n  --what A=b\n  --export=ALL,C=d\n  -x\n  F=g\n)\n", [("E", None, 1), ("A", "b", 2), ("C", "d", 3), ("F", "g", 4)]),
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


@for_each(
    ("text", "values"),
    [
        ("ALL,A=b", ["b"]),
        ('"A=b,ALL"', ["b"]),
        ('"A=b",ALL', ["b"]),
        ('ALL,"A=b c",D=e', ["b c"]),
        ("A=b,D,A=c", ["b", "c"]),
        ("'ALL,'A=b','D", ["b"]),
        ("\"ALL,A='b,c',D=e\"", ["b,c"]),
        ("'ALL,'A=b", ["b"]),
        ("D,E=A=b", []),
    ],
)
@for_each(
    "form",
    ["srun --export={} x\n", "srun --export {} x\n", "#SBATCH --export={}\n", "#SBATCH -n 2 --export {} -t 1\n", "#PBS -v {}\n"],
)
def test_lists(form, text, values):
    assert [s.value for s in parse("a.sh", form.format(text)).settings if s.name == "A"] == values


def test_a_list_whose_option_is_quoted():
    assert pairs("a.sh", 'srun "--export=ALL,A=b c" run\n') == [("A", "b c", 1)]


@for_each(
    "block",
    [
        "f() {\n  @\n}\n",
        "function f {\n  @\n}\n",
        "if x; then\n  y\nelif z; then @\nelse\n  y\nfi\n",
        "for x in a b\ndo\n  @\ndone\n",
        "for ((;;)) do\n  @\ndone\n",
        "while x; do\n  if y; then\n    z\n  fi\n  @\ndone\n",
        "until x; do @; done\n",
        "case $x in\n  a) y ;;\n  (b | c)\n    @\n    ;;\nesac\n",
        "if ! {\n  x\n} then\n  @\nfi\n",
        "x | { @; } | y\n",
    ],
)
def test_only_what_surely_runs_unsets(block):
    assert pairs("a.sh", "export A=b\n" + block.replace("@", "unset A")) == [("A", "b", 1)]
    assert pairs("a.sh", block.replace("@", "run") + "export A=b\nunset A\n") == []


def test_not_exported():
    of = {s.name: s.exported for s in parse("a.sh", "A=1\nB=2\nexport B\nC=3\npython x.py --c $C\nD=4 python x.py\nE=(F=5)\n").settings}
    assert of == {"A": False, "B": True, "C": True, "D": True, "E": False, "F": True}
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "a: {{ b }}\n- c"),
        ("a.py", "def f(:\n"),
        ("a.json", "{"),
        ("a.csh", "setenv NCCL_DEBUG INFO\n"),
        ("a.fish", "set -gx NCCL_DEBUG INFO\n"),
        ("job", "#!/bin/tcsh -f\nsetenv NCCL_DEBUG INFO\n"),
        ("job", "#!/usr/bin/env fish\nset -gx NCCL_DEBUG INFO\n"),
    ],
)
def test_what_is_no_such_file(name, text):
    with pytest.raises(UnhangError, match=name):
        parse(name, text)


@pytest.mark.parametrize("text", ["[" * 50_000, "[" * 201 + "]" * 201, "".join(" " * i + "a:\n" for i in range(300))])
@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_what_is_nested_too_deeply(name, text):
    with pytest.raises(UnhangError, match="nested too deeply"):
        parse(name, text)


@for_each(
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
        "x=1\nunset y\n" * 20_000,
        "export " + "A=b " * 40_000,
        "x" + " ]]" * 60_000,
        "--rsh ssh " * 40_000,
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
        "unset-by-many",
        "exported",
        "tests",
        "no-ssh",
    ],
)
def test_odd_scripts_take_no_time(text):
    begin = time.process_time()
    parse("run.sh", text)
    assert time.process_time() - begin < 10


def test_arguments_of_a_dockerfile_take_no_time():
    begin = time.process_time()
    assert {s.only_in_build for s in parse("Dockerfile", "FROM x\n" + "".join(f"ARG A{i}=b\n" for i in range(30_000))).settings} == {True}
    assert time.process_time() - begin < 10


def test_a_chain_of_hosts_ends():
    hops = "".join(f"ssh h{i} " for i in range(20))
    assert pairs("run.sh", f"{hops} A=b x\n") == [("A", "b", 1)]
    with pytest.raises(UnhangError, match="more than 20 hosts"):
        parse("run.sh", f"{hops} ssh h20 A=b x\n")


def test_many_scripts_in_one_file_take_no_time():
    begin = time.process_time()
    parse("a.yaml", "".join(f"k{i}: |\n  export A=$B\n" for i in range(8_000)))
    assert time.process_time() - begin < 10


def test_a_dockerfile_without_its_name():
    assert pairs("some.text", "\r\n# x\nARG A=1\n\nfrom x\nENV A=b\n") == [("A", "1", 3), ("A", "b", 6)]


@for_each(
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
