import json

import pytest

from unhang.facts import distributions

SITE = "/env/site-packages"


def nowhere(machine, files):
    host = machine({f"{SITE}/{name}": text for name, text in files.items()} | {"/src/kept": None})
    return distributions.leads_nowhere(host, SITE, host.names(SITE))


def test_names_tell_what_is_installed():
    names = ["torch-2.8.0+cu128.dist-info", "Flash_Attn-2.7.dist-info", "torch", "a.pth", "old_thing-1.0-py3.10.egg-info", "~orch-2.1.dist-info"]
    assert distributions.installed(names) == {"torch": ("2.8.0+cu128",), "flash-attn": ("2.7",), "old-thing": ("1.0",)}
    assert distributions.installed(["torch-2.8.0.dist-info", "torch-2.4.1.dist-info"]) == {"torch": ("2.8.0", "2.4.1")}
    assert distributions.record(names, "flash-attn") == "Flash_Attn-2.7.dist-info"


def test_pins_of_this_platform():
    metadata = (
        "Metadata-Version: 2.1\nName: torch\n"
        'Requires-Dist: nvidia-nccl-cu12==2.27.3; platform_system == "Linux" and platform_machine == "x86_64"\n'
        "Requires-Dist: torch (==2.6.0)\n"
        "Requires-Dist: sympy>=1.13.3\n"
        'Requires-Dist: optree==0.13; extra == "optree"\n'
        'Requires-Dist: setuptools==1.0; python_version < "3.9"\n'
        'Requires-Dist: windows-thing==1; sys_platform == "win32"\n'
        "\nRequires-Dist: of-the-readme==1\n"
    )
    assert distributions.pins(metadata) == {"nvidia-nccl-cu12": "2.27.3", "torch": "2.6.0"}


def test_an_editable_install_without_its_sources(machine):
    files = {
        "trainer-1.0.dist-info/direct_url.json": json.dumps({"dir_info": {"editable": True}, "url": "file:///src/gone%20away"}),
        "__editable__.trainer-1.0.pth": "/src/gone away/src\n",
        "kept-1.0.dist-info/direct_url.json": json.dumps({"dir_info": {"editable": True}, "url": "file:///src/kept"}),
        "plain-1.0.dist-info/direct_url.json": json.dumps({"dir_info": {}, "url": "file:///tmp/build-of-plain"}),
        "wheel-1.0.dist-info/direct_url.json": json.dumps({"archive_info": {}, "url": "file:///tmp/wheel.whl"}),
        "older.egg-link": "/src/older\n.",
    }
    editables, lines = nowhere(machine, files)
    assert {(e.name, e.target) for e in editables} == {("trainer", "/src/gone away"), ("older", "/src/older")}
    assert lines == ()


def test_lines_that_lead_nowhere(machine):
    files = {
        "conda.pth": "/src/kept\n/src/left\n# /src/comment\n\nimport os; os.getcwd()\nbeside\n",
        "beside": None,
        "__editable__.x-1.pth": "import __editable___x_1_finder; __editable___x_1_finder.install()\n",
        "__editable__.y-1.pth": "import __editable___y_1_finder; __editable___y_1_finder.install()\n",
        "__editable___y_1_finder.py": "",
    }
    editables, lines = nowhere(machine, files)
    assert [line.target for line in lines] == ["/src/left"]
    assert [e.target for e in editables] == [f"{SITE}/__editable___x_1_finder.py"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"url": 3, "dir_info": {"editable": true}}', '{"url": "file://[", "dir_info": {"editable": true}}', "\0", "[" * 9999]
)
def test_odd_records_are_survived(machine, text):
    assert nowhere(machine, {"x-1.dist-info/direct_url.json": text, "x.pth": "a\0b\n", "y.egg-link": text}) == ((), ())
