"""Made motion, and files that hold motion or do not."""

from __future__ import annotations

import numpy as np
import pytest

BVH = """HIERARCHY
ROOT Hips
{
  OFFSET 0 90 0
  CHANNELS 6 Xposition Yposition Zposition Zrotation Xrotation Yrotation
  JOINT Knee
  {
    OFFSET 0 -45 0
    CHANNELS 3 Zrotation Xrotation Yrotation
    End Site
    {
      OFFSET 0 -45 0
    }
  }
}
MOTION
Frames: 2
Frame Time: 0.0333333
10 90 5  179 0 0  30 0 0
12 91 5 -179 0 0  30 0 90
"""


def test_gaits_are_the_same_at_each_call_and_move_as_one_body():
    from motion import CHANNELS, Gaits

    gaits, again = Gaits(50, seed=1), Gaits(50, seed=1)
    assert len({*gaits.lengths}) > 20
    for index in range(50):
        sequence = gaits[index]
        assert sequence.shape == (gaits.lengths[index], CHANNELS) and sequence.dtype == np.float32
        assert np.array_equal(sequence, again[index])
        # Both hips swing at one pace, half a stride apart.
        left, right = sequence[:, 0], sequence[:, 6]
        assert np.corrcoef(left, right)[0, 1] < -0.8
    assert not np.array_equal(Gaits(1, seed=2)[0][:64], gaits[0][:64])


def test_bvh(tmp_path):
    from motion import Recorded

    (tmp_path / "one.bvh").write_text(BVH)
    sequence = Recorded(tmp_path)[0]
    sines, cosines = np.sin(np.radians([179, 0, 0, 30, 0, 0])), np.cos(np.radians([-179, 0, 0, 30, 0, 90]))
    assert sequence[:, :3].tolist() == [[0, 0, 0], [2, 1, 0]]
    assert sequence[0, 3:9] == pytest.approx(sines, abs=1e-6) and sequence[1, 9:] == pytest.approx(cosines, abs=1e-6)


def test_npz(tmp_path):
    from motion import Recorded

    motion = np.arange(21.0).reshape(7, 3)
    np.savez(tmp_path / "a.npz", motion=motion, lengths=[3, 4])
    np.savez(tmp_path / "b.npz", motion=motion[:2])
    recorded = Recorded(tmp_path)
    assert recorded.lengths.tolist() == [3, 4, 2]
    assert np.array_equal(np.concatenate([recorded[0], recorded[1]]), motion) and recorded[2].dtype == np.float32


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.bvh", BVH.replace("Frames: 2", "Frames: 3"), "3 frames of 9 channels are 27 numbers, found 18"),
        ("a.bvh", BVH.replace("MOTION", ""), "a BVH file has CHANNELS, then MOTION"),
        ("a.bvh", BVH.replace("-179", "x"), "could not convert string to float: 'x'"),
        ("a.bvh", BVH.replace("-179", "nan"), "a value that is not finite in frame 1"),
        ("a.npz", b"PK no archive", "cannot be read as motion"),
        ("a.npz", {"poses": np.zeros((2, 3))}, "motion is not a file in the archive"),
        ("a.npz", {"motion": np.zeros(3)}, "`motion` is float64 (3,), not floating point (frames, channels)"),
        ("a.npz", {"motion": np.zeros((4, 3)), "lengths": np.array([3])}, "`lengths` add up to 3 frames, `motion` has 4"),
        ("a.txt", "", "has no .bvh and no .npz file"),
        ("b.bvh", BVH, "b.bvh has 15 channels,"),
    ],
)
def test_what_holds_no_motion_is_named(tmp_path, name, content, says):
    from motion import MotionError, Recorded

    if name == "b.bvh":
        np.savez(tmp_path / "a.npz", motion=np.zeros((4, 5)))
    if isinstance(content, dict):
        np.savez(tmp_path / name, **content)
    else:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(MotionError) as raised:
        Recorded(tmp_path)
    assert says in str(raised.value) and str(tmp_path) in str(raised.value)
