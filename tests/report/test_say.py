"""What commands say beside their answer, in the language that they were asked for."""

import pytest
from tests.chinese import both

from unhang.report import language, screen


@pytest.mark.parametrize(("asked", "told"), [("en", "unhang: wrote a.html\n"), ("zh", "unhang: 已写入 a.html\n")])
def test_a_line_beside_is_in_the_language_and_on_standard_error(asked, told, capsys):
    language.chosen(asked)
    try:
        screen.say(both("wrote {path}", "已写入 {path}").fill(path="a.html"))
    finally:
        language.chosen(None)
    assert capsys.readouterr() == ("", told)
