"""Skeletal motion: sequences of poses, made from gaits or read from BVH and npz files.

A sequence is float32, (frames, channels). A gait's channels are joint angles in radians. A rotation of a BVH file becomes two channels, its sine and
cosine, because 179 and -179 degrees are neighbours; a position is taken relative to the first frame. Frame rates are left as they are.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

FRAMES_PER_S = 30
# Plausible, not measured. Joint: mean, swing once a stride, its place in the stride (0 to 1), swing twice a stride.
_LIMBS = {
    "hip": (0.1, 0.5, 0.0, 0.05),
    "knee": (0.5, 0.5, 0.2, 0.25),
    "ankle": (0.0, 0.25, 0.35, 0.15),
    "toes": (0.1, 0.2, 0.4, 0.1),
    "shoulder": (0.0, 0.4, 0.5, 0.0),
    "elbow": (0.4, 0.3, 0.55, 0.05),
}
_TRUNK = {
    "pelvis turn": (0.0, 0.1, 0.0, 0.0),
    "pelvis tilt": (0.1, 0.0, 0.0, 0.05),
    "spine turn": (0.0, 0.12, 0.5, 0.0),
    "spine bend": (0.05, 0.0, 0.1, 0.04),
    "root height": (0.0, 0.01, 0.0, 0.06),
}
# Strides per second, how far joints swing, and how far the right side does beside the left.
GAITS = {"walk": (0.95, 1.0, 1.0), "run": (1.4, 1.7, 1.0), "march": (0.9, 1.3, 1.0), "limp": (0.75, 0.8, 0.4)}
CHANNELS = 2 * len(_LIMBS) + len(_TRUNK)


class MotionError(ValueError):
    """A file that holds no motion: which, and what is wrong with it."""


class Gaits:
    """`count` sequences of 64 to 256 frames, each computed when it is asked for: a function of `seed` and its number, the same on every rank."""

    def __init__(self, count: int, *, seed: int, frames: tuple[int, int] = (64, 256)) -> None:
        self.seed = seed
        self.lengths = np.random.default_rng(seed).integers(frames[0], frames[1] + 1, count)
        self._joints = np.array([*_LIMBS.values(), *_LIMBS.values(), *_TRUNK.values()])
        self._right = slice(len(_LIMBS), 2 * len(_LIMBS))
        self._joints[self._right, 2] += 0.5

    def __getitem__(self, index: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, index])
        frames = int(self.lengths[index])
        stride_hz, swing, right = list(GAITS.values())[rng.integers(len(GAITS))]
        # One phase drives all joints; its pace wanders.
        pace_hz = stride_hz * rng.uniform(0.85, 1.15) * (1 + np.clip(np.cumsum(rng.normal(0, 0.02, frames)), -0.2, 0.2))
        mean, once, place, twice = self._joints.T
        gain = swing * rng.normal(1, 0.15, CHANNELS)
        gain[self._right] *= right
        turns = 2 * np.pi * (rng.random() + np.cumsum(pace_hz)[:, None] / FRAMES_PER_S + place)
        pose = mean + rng.normal(0, 0.08, CHANNELS) + gain * (once * np.sin(turns) + twice * np.sin(2 * turns))
        return (pose + rng.normal(0, 0.02, pose.shape)).astype(np.float32)


class Recorded:
    """The sequences of one file, or of all .bvh and .npz files below a directory. Raises MotionError."""

    def __init__(self, path: Path) -> None:
        files = [path] if not path.is_dir() else sorted(file for file in path.rglob("*") if file.suffix.lower() in _READERS)
        if not files:
            raise MotionError(f"{path} has no .bvh and no .npz file")
        self._sequences: list[np.ndarray] = []
        for file in files:
            found = read(file)
            if self._sequences and found[0].shape[1] != self._sequences[0].shape[1]:
                raise MotionError(
                    f"{file} has {found[0].shape[1]} channels, {files[0]} has {self._sequences[0].shape[1]}: one model takes one skeleton"
                )
            self._sequences += found
        self.lengths = np.array([len(sequence) for sequence in self._sequences])

    def __getitem__(self, index: int) -> np.ndarray:
        return self._sequences[index]


def read(path: Path) -> Sequence[np.ndarray]:
    """The sequences of one file, at least one. Raises MotionError."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise MotionError(f"{path} is neither .bvh nor .npz")
    try:
        sequences = reader(path)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as e:
        raise MotionError(f"{path} cannot be read as motion: {e}") from e
    for sequence in sequences:
        if not np.isfinite(sequence).all():
            raise MotionError(f"{path} has a value that is not finite in frame {int(np.argwhere(~np.isfinite(sequence))[0][0])} of a sequence")
    return sequences


def _npz(path: Path) -> list[np.ndarray]:
    """`motion` has all frames of all sequences, (frames, channels), and `lengths` the frames of each; without it there is one sequence."""
    with np.load(path, allow_pickle=False) as file:
        motion = file["motion"]
        lengths = file["lengths"] if "lengths" in file.files else np.array([len(motion)])
    if motion.ndim != 2 or motion.dtype.kind != "f" or not motion.size:
        raise ValueError(f"`motion` is {motion.dtype} {motion.shape}, not floating point (frames, channels)")
    if lengths.min() < 1 or lengths.sum() != len(motion):
        raise ValueError(f"`lengths` add up to {lengths.sum()} frames, `motion` has {len(motion)}")
    return np.split(motion.astype(np.float32), np.cumsum(lengths)[:-1])


def _bvh(path: Path) -> list[np.ndarray]:
    """BVH as Biovision's format has it: a hierarchy that lists channels, then one line of numbers a frame, in the order of these channels."""
    skeleton, _, motion = path.read_text(encoding="utf-8", errors="replace").partition("MOTION")
    channels = [name.lower() for names in re.findall(r"CHANNELS\s+\d+((?:\s+[XYZxyz](?:position|rotation))+)", skeleton) for name in names.split()]
    head = re.match(r"\s*Frames:\s*(\d+)\s+Frame Time:\s*[\d.eE+-]+", motion)
    if not channels or head is None:
        raise ValueError("a BVH file has CHANNELS, then MOTION, Frames: and Frame Time:")
    values = np.array(motion[head.end() :].split(), dtype=np.float64)
    frames = int(head[1])
    if not frames or values.size != frames * len(channels):
        raise ValueError(f"{frames} frames of {len(channels)} channels are {frames * len(channels)} numbers, found {values.size}")
    values = values.reshape(frames, len(channels))
    turned = np.array([name.endswith("rotation") for name in channels])
    angles = np.radians(values[:, turned])
    return [np.hstack([values[:, ~turned] - values[:1, ~turned], np.sin(angles), np.cos(angles)]).astype(np.float32)]


_READERS = {".npz": _npz, ".bvh": _bvh}
