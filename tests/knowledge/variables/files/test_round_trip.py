"""Launch scripts before and after --rewrite, both run with programs that say what they were given: nothing differs but what was taken out."""

from __future__ import annotations

import random
import re
import shutil
import subprocess

import pytest

from unhang.knowledge.variables.files.opening import parse
from unhang.knowledge.variables.files.rewriting import Change, rewrite

GONE = ("NCCL_TIMEOUT", "NCCL_RINGS")
RENAMED = {"NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
PROGRAMS = ("python", "torchrun", "srun", "mpirun", "mpiexec", "docker", "deepspeed", "sbatch", "ssh", "module")
# One argument a line, then what reaches the program.
PROGRAM = """#!/bin/bash
printf '%s:' "${0##*/}"; printf ' <%s>' "$@"; echo
while IFS= read -r -d '' pair; do case $pair in NCCL_*|TORCH_*) printf '  %q\\n' "$pair";; esac; done < <(env -0 | sort -z)
"""

SCRIPTS = {
    "exports": """#!/bin/bash
set -euo pipefail
export NCCL_TIMEOUT=1800
export NCCL_DEBUG=INFO NCCL_RINGS="0 1 2|3 4" # both
export NCCL_ASYNC_ERROR_HANDLING=1; torchrun --nproc-per-node 8 train.py
""",
    "quotes": r"""export NCCL_TIMEOUT="18\"00" NCCL_DEBUG='IN"FO'
NCCL_RINGS='it'"'"'s
two lines' NCCL_ALGO="Ring
Tree" python train.py "NCCL it's" 'a "b'
echo "a
b"; export NCCL_TIMEOUT=5; python x
echo \"; export NCCL_TIMEOUT=\'\"; python y
""",
    "ansi_quotes": r"""q=$'it\'s'; d=$'\\'
export NCCL_TIMEOUT=$'a\'b' NCCL_DEBUG=$'IN\x46O'
python "$q" "$d" $'a\tb' $"c"
""",
    "scripts_in_words": """export NCCL_DEBUG=INFO
bash -c 'NCCL_TIMEOUT=5 NCCL_ALGO=Ring python a'
bash -c 'export NCCL_TIMEOUT=5; python b' && bash -eo pipefail -c '
export NCCL_TIMEOUT=5
export NCCL_RINGS=1 NCCL_ASYNC_ERROR_HANDLING=1 # both
if true; then export NCCL_TIMEOUT=7; fi
python c'
sh -c "export NCCL_TIMEOUT=5 NCCL_ALGO=Tree; python \\$NCCL_ALGO"
eval "export NCCL_RINGS=6"
env -S 'NCCL_TIMEOUT=5 NCCL_ALGO=Ring python d'
export "NCCL_TIMEOUT=8" 'NCCL_PROTO=LL'
python e
""",
    "arrays": """ENVS=(NCCL_TIMEOUT=1800)
MORE=( NCCL_DEBUG=INFO NCCL_TIMEOUT=1800 # a comment
  "NCCL_RINGS=0 1" 'NCCL_ALGO=Ring'
)
env "${ENVS[@]}" "${MORE[@]}" python train.py
for one in ${ENVS[@]+"${ENVS[@]}"} "${MORE[@]}"; do export "$one"; done
python again
""",
    "arrays_of_flags": """ARGS=(-np 2
  -x NCCL_TIMEOUT=1800
  -x NCCL_DEBUG=INFO
  --bind-to none)
ARGS+=(-x NCCL_RINGS=0)
run() { mpirun "${ARGS[@]}" python train.py; }
run
declare -a IMAGE=(-e NCCL_TIMEOUT=1 --env=NCCL_DEBUG=WARN --env NCCL_RINGS=2 img:1)
docker run "${IMAGE[@]}" python x
declare -A TABLE=([NCCL_BUFFSIZE]=1800)
python "${!TABLE[@]}"
""",
    "arrays_under_nounset": """set -u
E=(NCCL_TIMEOUT=1)
F=(NCCL_TIMEOUT=1
   NCCL_DEBUG=INFO)
env "${E[@]}" "${F[@]}" python train.py
""",
    "here_documents": """cat <<EOF > /dev/stdout; export NCCL_TIMEOUT=1
export NCCL_TIMEOUT=1800 it's "$(echo x)"
EOF
cat <<-'E-F' | NCCL_RINGS=1 python -
\texport NCCL_RINGS=1
\tE-F
export NCCL_TIMEOUT=2
cat <<A <<"B C"; python a
it's
A
(( <<
B C
export NCCL_TIMEOUT=3 NCCL_DEBUG=INFO
python <<< "it's NCCL"
""",
    "here_documents_in_substitutions": """text=$(cat <<EOF
it's (one
EOF
)
export NCCL_TIMEOUT=3 NCCL_DEBUG=WARN
python "$text" "$(
  # it's a comment )
  case $text in *z*) echo 1 ;; (a|*) echo "2)" ;; esac
)"
export NCCL_RINGS=1
python b
""",
    "arithmetic": """x=3 z=2
(( y = x << z ))
if (( x << 1 > 2 )) && ((x)); then
  export NCCL_TIMEOUT=$((x << z))
fi
for ((i = 0; i < 2; i++)); do
  export NCCL_RINGS=$i
done
(( (x) > (z) )) 2>/dev/null || ( (export NCCL_TIMEOUT=1; python $((16#ff)) ) )
while (( --x > 0 )); do NCCL_TIMEOUT=$x python $x; done
python $y
""",
    "case": """kind=b
case $kind in
  a) export NCCL_TIMEOUT=1 ;;
  b | c)
    export NCCL_TIMEOUT=2
    ;;
  (d)
    export NCCL_RINGS=2 NCCL_DEBUG=INFO ;;
  *) NCCL_TIMEOUT=3 python no ;;
esac
case a in a) NCCL_TIMEOUT=1 python yes;; esac
python train.py
""",
    "functions": """setup() {
  export NCCL_TIMEOUT=1800
}
function other {
  local NCCL_TIMEOUT=1
}
third() (
  export NCCL_RINGS=1
)
fourth()
{
  declare -x NCCL_TIMEOUT=7; python in
}
setup; other; third; fourth
python train.py
""",
    "blocks": """if true; then
  export NCCL_TIMEOUT=1
elif false; then export NCCL_TIMEOUT=2
else
  # nothing
  export NCCL_TIMEOUT=3
fi
for i in 1 2
do
  export NCCL_TIMEOUT=1
  export NCCL_RINGS=2
done
! { export NCCL_TIMEOUT=1; }
time {
  export NCCL_TIMEOUT=1
} 2>/dev/null
i=0; until [ $i = 1 ]; do i=1; NCCL_TIMEOUT=$i; done
python train.py | { NCCL_RINGS=1 python -; }
""",
    "conditions": """true &&
export NCCL_TIMEOUT=1
python a
false || \\
export NCCL_TIMEOUT=2
python b
[[ -n x && a < b ]] && export NCCL_RINGS=1 || export NCCL_DEBUG=WARN
[[ "it's" =~ ^(it|b)$ ]] || export NCCL_TIMEOUT=4 NCCL_DEBUG=INFO
python c |&
NCCL_TIMEOUT=5 python d
""",
    "continuations": """NCCL_TIMEOUT=1800 \\
  NCCL_DEBUG=INFO \\
  torchrun \\
    --nnodes 2 \\
    train.py
export NCCL_TIMEOUT=1 \\
  NCCL_RINGS=2
export NCCL_DEBUG=WARN \\
  NCCL_TIMEOUT=18\\
00
mpirun -np 2 \\
  -x \\
  NCCL_TIMEOUT=1 \\
  python x \\
  -x NCCL_RINGS=1
true && \\
  export NCCL_TIMEOUT=3
python y
""",
    "sbatch": """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --export=ALL,NCCL_TIMEOUT=1800,NCCL_DEBUG=INFO
#SBATCH --export="ALL,NCCL_TIMEOUT=1800"
#SBATCH --export='NCCL_TIMEOUT=1800,PATH' --exclusive
#SBATCH --export NCCL_TIMEOUT=1800
#PBS -v NCCL_RINGS=1,HOME
export NCCL_TIMEOUT=1
srun python train.py
""",
    "srun": """srun --export=ALL,NCCL_TIMEOUT=1800 python a
srun --export="ALL,NCCL_TIMEOUT=1800" python b
srun --export='ALL,NCCL_TIMEOUT=1800',NCCL_DEBUG=INFO python c
srun --export=NCCL_TIMEOUT=1800,PATH python d
srun --export="NCCL_TIMEOUT=1800,ALL" python e
srun --export "NCCL_RINGS=1",NCCL_TIMEOUT=1800,ALL python f
srun "--export=ALL,NCCL_TIMEOUT=1800" python g
srun --export=NCCL_TIMEOUT=1800 python h
srun --export=NCCL_TIMEOUT=1800,NCCL_RINGS=1 python i
srun --export=ALL,NCCL_RINGS='0 1',NCCL_DEBUG="$HOME" --mpi=none python j
srun --export="ALL,NCCL_RINGS='0,1',NCCL_DEBUG=INFO" python k
srun --export='ALL,'NCCL_TIMEOUT=1 python l
srun --export=ALL,NCCL_ASYNC_ERROR_HANDLING=1 python m
""",
    "env": """env NCCL_TIMEOUT=1800 python a
env -i PATH="$PATH" NCCL_TIMEOUT=1 "NCCL_RINGS=0 1" 'NCCL_DEBUG=INFO' python b
/usr/bin/env -u HOME NCCL_TIMEOUT=1 NCCL_DEBUG=WARN python c -x NCCL=1
exec env NCCL_TIMEOUT=1 python d
""",
    "docker": """docker run --rm -e NCCL_TIMEOUT=1800 -e "NCCL_DEBUG=INFO" --env NCCL_RINGS='0 1' img python a
docker run --env=NCCL_TIMEOUT=1 --env="NCCL_RINGS=0 1" -e NCCL_DEBUG -eNCCL_TIMEOUT=3 img bash -c 'python "b"'
docker run -v /a:/b \\
  -e "NCCL_TIMEOUT=1" \\
  img env NCCL_TIMEOUT=1 python c
""",
    "mpirun": """mpirun -np 2 -x NCCL_TIMEOUT=1800 -x NCCL_DEBUG=INFO -x PATH python a &> /dev/stdout
mpirun -x "NCCL_RINGS=0 1" --bind-to none python b 2>&1 -x NCCL_TIMEOUT=1
mpiexec -genv NCCL_TIMEOUT 1800 -genv NCCL_DEBUG INFO python c
mpirun > /dev/stdout -x NCCL_TIMEOUT=1 python d &
wait
""",
    "text": """echo -e "NCCL_TIMEOUT=1800\\\\n" 'export NCCL_TIMEOUT=1'
echo env NCCL_TIMEOUT=1
printf '%s\\n' -x NCCL_TIMEOUT=1
echo NCCL_TIMEOUT=1 | grep -e NCCL_TIMEOUT=1 -e NCCL_DEBUG=1
echo 'NCCL_TIMEOUT=2' | sed -e 's/=/ /' # export NCCL_TIMEOUT=4
bash -c 'export NCCL_TIMEOUT=1; python a'
eval "NCCL_RINGS=1 python b"
""",
    "used": """set -eu
export NCCL_TIMEOUT=1800
python --ddp_timeout $NCCL_TIMEOUT
export NCCL_RINGS=${NCCL_TIMEOUT:-1}
NCCL_ASYNC_ERROR_HANDLING=1
export NCCL_ASYNC_ERROR_HANDLING
python train.py
""",
    "used_in_text": """set -u
NCCL_RINGS="0 1"; export NCCL_TIMEOUT=1
python a # $NCCL_TIMEOUT
cat <<EOF
# ${NCCL_RINGS}
EOF
python 'x # y' "# $NCCL_TIMEOUT"
""",
    "commands": """next() { echo "$1 runs" >&2; echo 5; }
export NCCL_TIMEOUT=$(next a)
export NCCL_RINGS="x`next b`" NCCL_DEBUG=INFO
NCCL_TIMEOUT=$((n = 3)) python c
python $n
NCCL_TIMEOUT=${m:=4} python d
python $m
""",
    "redirections": """export NCCL_TIMEOUT=1 > /dev/null
export NCCL_RINGS=1 2>/dev/null && python a
diff <(NCCL_TIMEOUT=1 python x) <(export NCCL_TIMEOUT=1; python x) && echo same
( python > >(cat) b ) | cat
(NCCL_TIMEOUT=1 python c)
( NCCL_RINGS=1 python d ) 2>&1 | cat; wait
{ export NCCL_TIMEOUT=1; } >/dev/null
export NCCL_TIMEOUT=1 $MORE >/dev/null; readonly NCCL_RINGS=1 MORE
python e
""",
    "expansions": """y="it's }"; a=abc
python "${y:-it\\'s}" "${y#'it'}" ${y%'}'} "${y//\\'/x}" "${a/b/"$y"}" `echo \\`echo z\\``
export NCCL_TIMEOUT=${y:-'a b'} NCCL_DEBUG="${a%"c"}"
python "$(echo "$(echo "it's ${y}")")" "${#y}" ${a#*b}
export NCCL_RINGS=1
python end
""",
    "carriage_returns": "export NCCL_TIMEOUT=1800\r\nexport NCCL_TIMEOUT=1 NCCL_DEBUG=INFO\r\npython train.py\r\n",
    "unset": """export NCCL_TIMEOUT=1 NCCL_DEBUG=INFO
unset NCCL_DEBUG
python a
export NCCL_RINGS=3
unset NCCL_RINGS
python b
""",
    "without_an_end": "python a\nif true; then\n  export NCCL_TIMEOUT=1800\nfi; export NCCL_RINGS=1",
}


def rewritten(text):
    parsed = parse("run.sh", text)
    changes = {i: Change(why="why") for i, s in enumerate(parsed.settings) if s.name in GONE}
    changes |= {i: Change(why="old", new_name=RENAMED[s.name]) for i, s in enumerate(parsed.settings) if s.name in RENAMED}
    return rewrite(text, parsed, changes)


def alive(text):
    """Where settings that should go are still made, as bash sees it."""
    return [s.name for s in parse("run.sh", text).settings if s.name in GONE]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    for name in PROGRAMS:
        (folder / name).write_text(PROGRAM)
        (folder / name).chmod(0o755)
    return folder


def bash(text, programs, *flags):
    return subprocess.run(
        ["bash", *flags],
        input=text.encode(),
        capture_output=True,
        check=False,
        timeout=120,
        cwd=programs,
        env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": "/home/x", "LC_ALL": "C"},
    )


# A variable, and the flag or the comma that goes with it, as the programs print them.
NAMED = rb"(?:NCCL_TIMEOUT|NCCL_RINGS)"
SAID = re.compile(
    rb" <(?:-x|-e|--env)> <NAMED=[^>]*>| <-genv> <NCCL_TIMEOUT> <[^>]*>|(?<!<--export>) <(?:-e|--env=)?NAMED=[^>]*>|^  (?:\$')?NAMED=.*\n".replace(
        b"NAMED", NAMED
    ),
    re.MULTILINE,
)
LISTED = re.compile(rb"(?<=[=<,])NAMED=(?:'[^']*'|[^,>'])*,|,NAMED=(?:'[^']*'|[^,>'])*(?=[,>])".replace(b"NAMED", NAMED))


def common(output):
    """What is printed without what was taken out, and with new names."""
    for old, new in RENAMED.items():
        output = re.sub(rb"(?<!TORCH_)" + old.encode(), new.encode(), output)
    return re.sub(rb"(?:^  .*\n)+", lambda env: b"".join(sorted(env[0].splitlines(True))), re.sub(LISTED, b"", re.sub(SAID, b"", output)), flags=re.M)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_corrected_script_does_what_it_did(name, programs):
    before = SCRIPTS[name]
    done = rewritten(before)
    assert not bash(before, programs, "-n").returncode, "the script itself is wrong"
    checked = bash(done.text, programs, "-n")
    assert not checked.returncode, checked.stderr.decode() + done.text
    was, now = bash(before, programs), bash(done.text, programs)
    assert common(now.stdout) == common(was.stdout), done.text
    assert now.returncode == was.returncode and without_lines(now.stderr) == without_lines(was.stderr), done.text
    assert not parse("run.sh", done.text).unclosed


def without_lines(stderr):
    return re.sub(rb"line \d+|^\s*(?:real|user|sys).*", b"", stderr, flags=re.MULTILINE)


LEFT = {
    "arrays_under_nounset": [("NCCL_TIMEOUT", "list")],
    "sbatch": [("NCCL_TIMEOUT", "list")],
    "srun": [("NCCL_TIMEOUT", "list"), ("NCCL_TIMEOUT", "list"), ("NCCL_RINGS", "list"), ("NCCL_TIMEOUT", "line")],
    "used": [("NCCL_TIMEOUT", "used"), ("NCCL_ASYNC_ERROR_HANDLING", "used")],
    "used_in_text": [("NCCL_RINGS", "used"), ("NCCL_TIMEOUT", "used")],
    "commands": [("NCCL_TIMEOUT", "runs"), ("NCCL_RINGS", "runs"), ("NCCL_TIMEOUT", "runs"), ("NCCL_TIMEOUT", "runs")],
    "redirections": [("NCCL_TIMEOUT", "line")],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_corrected_script_sets_no_more_than_was_told(name):
    done = rewritten(SCRIPTS[name])
    assert [(one.name, one.why) for one in done.left] == LEFT.get(name, [])
    assert sorted(alive(done.text)) == sorted(one.name for one in done.left if one.name in GONE), done.text
    again = rewritten(done.text)
    assert again.text == done.text or LEFT.get(name), again.text


PIECES = (
    "'",
    '"',
    "(",
    ")",
    "$(",
    "`",
    "{",
    "}",
    "\\",
    "\n",
    " ",
    "#",
    "<<E\n",
    "E\n",
    "((",
    "))",
    "$'",
    ";",
    "&&",
    "|",
    "=",
    ",",
    "!",
    "\\\n",
    "fi",
    "then",
)


def damaged(chance):
    """A script of those above with a piece of another in it, something put in, and something left out."""
    text = chance.choice(list(SCRIPTS.values()))
    if chance.random() < 0.3:
        lines, other = text.splitlines(True), chance.choice(list(SCRIPTS.values())).splitlines(True)
        at = chance.randrange(len(lines))
        text = "".join([*lines[:at], *other[chance.randrange(len(other)) :], *lines[at:]])
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(text))
        text = text[:at] + (chance.choice(PIECES) + text[at:] if chance.random() < 0.5 else text[at + chance.choice((1, 1, 2, 5, 20)) :])
    return text


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("seed", range(4))
def test_what_bash_took_it_still_takes(seed, programs):
    chance = random.Random(seed)
    tried = 0
    for _ in range(150):
        before = damaged(chance)
        after = rewritten(before).text
        if after != before and not bash(before, programs, "-n").returncode:
            tried += 1
            checked = bash(after, programs, "-n")
            assert not checked.returncode, f"{checked.stderr.decode()}\n{before}\n--- became\n{after}"
    assert tried > 30
