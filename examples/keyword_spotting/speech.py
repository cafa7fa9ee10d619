"""Synthesised speech: words of many voices from espeak-ng, streams of them with noise, and log-mel frames."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

import numpy as np

KEYWORDS = ("yes", "no", "stop", "go", "left", "right")
OTHERS = ("house", "seven", "water", "tree", "happy", "sheila", "marvin", "follow", "learn", "visual")
RATE = 22050  # espeak-ng's own
HOP, WINDOW = 441, 512  # a frame every 20 ms, of the last 23 ms
BANDS = 32


ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-us-nyc")
# No speaker of the test set is in the training set.
TRAINING = (
    "f1", "f2", "f3", "f5", "m1", "m3", "m4", "m6", "m7", "Alex", "Andrea", "Andy", "Diogo", "Gene", "Jacky", "Lee",
    "Mario", "Michael", "Mike", "adam", "antonio", "boris", "caleb", "ed", "edward", "john", "kaukovalta", "linda",
    "max", "miguel", "pablo", "quincy", "rob", "shelby", "steph", "travis", "victor", "zac",
)  # fmt: skip
TEST = ("f4", "m2", "m5", "m8", "Annie", "Alicia", "david", "paul", "robert", "sandro")


@cache
def synthesise(word: str, voice: str, speed: int, pitch: int) -> np.ndarray:
    """float32 samples of one word without the silence around it; its loudest is 1."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", word]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0 or len(done.stdout) <= 44:
        raise SystemExit(f"espeak-ng: {voice} said nothing: {done.stderr.decode().strip()}")
    samples = np.frombuffer(done.stdout, np.int16, offset=44).astype(np.float32)  # behind the header
    samples /= np.abs(samples).max()
    loud = np.flatnonzero(np.abs(samples) > 0.02)
    return samples[loud[0] : loud[-1] + 1]


class Speakers:
    """Draws words from recordings that are made once."""

    def __init__(self, voices: Sequence[str], recordings: int, seed: int) -> None:
        if shutil.which("espeak-ng") is None:
            print("keyword_spotting: espeak-ng is not installed (Debian: apt install espeak-ng)", file=sys.stderr)
            raise SystemExit(2)
        rng = np.random.default_rng(seed)
        self.recordings = {
            word: [
                synthesise(
                    word,
                    f"{rng.choice(ACCENTS)}+{rng.choice(voices)}",
                    int(rng.integers(110, 200)),
                    int(rng.integers(25, 75)),
                )
                for _ in range(recordings)
            ]
            for word in KEYWORDS + OTHERS
        }

    def stream(
        self, seconds: float, rng: np.random.Generator, stretch: float = 0
    ) -> tuple[np.ndarray, list[tuple[str, int, int]]]:
        """Sample, and (word, first, last frame) of what is said: a word, a pause, a word, in noise.

        With ``stretch`` each word is played up to that much slower or faster: another throat.
        """
        samples = np.zeros(int(seconds * RATE) // HOP * HOP, np.float32)
        said = []
        at = int(rng.uniform(0.1, 0.8) * RATE)
        while True:
            word = str(rng.choice(KEYWORDS if rng.random() < 0.6 else OTHERS))
            sound = self.recordings[word][rng.integers(len(self.recordings[word]))]
            if stretch:
                at_speed = np.arange(0, len(sound) - 1, rng.uniform(1 - stretch, 1 + stretch))
                sound = np.interp(at_speed, np.arange(len(sound)), sound).astype(np.float32)
            if at + len(sound) > len(samples) - RATE // 3:
                break
            samples[at : at + len(sound)] += sound * np.float32(rng.uniform(0.2, 1))
            said.append((word, at // HOP, (at + len(sound)) // HOP))
            at += len(sound) + int(rng.uniform(0.25, 1.2) * RATE)
        return samples + noise(len(samples), rng), said


@cache
def _noises() -> list[np.ndarray]:
    """Make a minute of noise of each color, from white to brown."""
    rng = np.random.default_rng(0)
    count = 1 << 20
    white = np.fft.rfft(rng.standard_normal(count))
    colored = [np.fft.irfft(white / np.maximum(np.arange(len(white)), 1000) ** each) for each in (0, 0.5, 0.75, 1)]
    return [(samples / samples.std()).astype(np.float32) for samples in colored]


def noise(count: int, rng: np.random.Generator) -> np.ndarray:
    """10 to 40 dB below the loudest words."""
    samples = np.resize(_noises()[rng.integers(4)], 2 * max(count, 1 << 20))
    first = rng.integers(len(samples) - count)
    return samples[first : first + count] * np.float32(0.2 * 10 ** (-rng.uniform(10, 40) / 20))


def _mel_filters() -> np.ndarray:
    """[WINDOW / 2 + 1, BANDS] triangles from 80 to 8000 Hz, evenly on the mel scale."""
    mel = np.linspace(*(2595 * np.log10(1 + np.array([80, 8000]) / 700)), BANDS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


_FILTERS = _mel_filters()
_HANN = np.hanning(WINDOW).astype(np.float32)


def log_mel(windows: np.ndarray) -> np.ndarray:
    """Sample [..., WINDOW] -> features [..., BANDS], about -2 to 2."""
    spectrum = np.fft.rfft(windows * _HANN)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    return (np.log(power.astype(np.float32) @ _FILTERS + np.float32(1e-3)) / 3).astype(np.float32)


def frames(samples: np.ndarray) -> np.ndarray:
    """Features [T, BANDS] of a whole recording: those that a stream of hops would give."""
    padded = np.concatenate([np.zeros(WINDOW - HOP, np.float32), samples])
    return log_mel(np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP])
