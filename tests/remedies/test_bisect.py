from hypothesis import given
from hypothesis import strategies as st

from unhang.remedies.ladder import smallest

KEYS = ["cumem-host", "shm", "p2p", "ib", "interface", "nvls", "timeout", "loader-workers"]


@given(st.sets(st.sampled_from(KEYS), min_size=1), st.integers(1, 3))
def test_it_is_what_is_needed_and_nothing_else(needed, last):
    """Whatever is needed, of which the last rung adds a part."""
    choice = dict.fromkeys(KEYS, False)
    added = KEYS[-last:]
    if not needed & set(added):
        needed = needed | {added[0]}
    asked = []

    def passes(part):
        asked.append(part)
        return needed <= set(part)

    assert set(smallest(choice, added=added, passes=passes)) == needed
    assert len(asked) <= 2 * len(KEYS)


def test_the_last_one_alone_is_asked_first():
    asked = []
    found = smallest({"shm": False, "p2p": False, "ib": False}, added=["ib"], passes=lambda part: asked.append(dict(part)) or "ib" in part)
    assert found == {"ib": False} and asked == [{"ib": False}]


def test_the_values_and_their_order_stay():
    found = smallest({"shm": False, "interface": "lo", "timeout": 60}, added=["timeout"], passes=lambda part: len(part) == 3)
    assert list(found.items()) == [("shm", False), ("interface", "lo"), ("timeout", 60)]
