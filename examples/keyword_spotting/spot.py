"""Train a torch GRU that hears six words in a stream of speech, quantize it, and listen frame by frame.

    pip install torch libqcore; apt install espeak-ng
    python examples/keyword_spotting/spot.py

espeak-ng synthesises the speech: words in many voices, speeds and pitches, ten other words among them, in noise. The
test is one long recording by voices that training never heard. Every 20 ms the last samples become 32 log-mel numbers,
the GRU takes a step, and a linear layer says which keyword, if any, was just heard.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's threads cost more than these small products

import numpy as np
import torch
from speech import BANDS, HOP, KEYWORDS, RATE, TEST, TRAINING, WINDOW, Speakers, frames, log_mel
from torch import nn

import qcore
import qcore.torch
from qcore.gru import Calibrator, Config, GruWeights

SEED = 0
HIDDEN = 64
NOTHING = len(KEYWORDS)  # the class of silence and of other words
STEPS, BATCH, SECONDS = 800, 24, 3.0
STRETCH = 0.12
CALIBRATION_STREAMS = 16
TUNING_STEPS, TUNING_RATE = 80, 3e-3
LATEST = 15  # frames after a word's end in which it counts as heard

Said = list[tuple[str, int, int]]


class Spotter(nn.Module):
    """Log-mel frames [T, B, BANDS] -> scores [T, B, keywords + 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(BANDS, HIDDEN)
        self.scores = nn.Linear(HIDDEN, NOTHING + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(self.gru(x)[0])
        return scores


def batch(speakers: Speakers, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return frames [T, count, BANDS] and the wanted class of each, -1 where none is asked for."""
    sound, wanted = [], []
    for _ in range(count):
        samples, said = speakers.stream(SECONDS, rng, STRETCH)
        sound.append(frames(samples))
        classes = np.full(len(sound[-1]), NOTHING)
        for word, first, last in said:
            if word in KEYWORDS:
                classes[first : last - 2] = -1  # it may be known before it ends
                classes[last - 2 : last + 10] = KEYWORDS.index(word)
        wanted.append(classes)
    return np.stack(sound, axis=1), np.stack(wanted, axis=1)


def train(speakers: Speakers, steps: int) -> Spotter:
    torch.manual_seed(SEED)
    model = Spotter()
    fit(model, speakers, steps, 1e-2, np.random.default_rng(SEED))
    return model.eval()


def tune(model: Spotter, speakers: Speakers, sound: np.ndarray, bits: int) -> Spotter:
    """Return the model with a GRU of few bits per weight, trained some more in the integers that are deployed."""
    tuned = copy.deepcopy(model)
    config = Config(widths={"weights": bits}, tables="interp")
    samples = torch.from_numpy(sound)
    tuned.gru = qcore.torch.GRU.from_float(model.gru, samples=samples, config=config, trainable=True)
    fit(tuned.train(), speakers, TUNING_STEPS, TUNING_RATE, np.random.default_rng(SEED + 4))
    return tuned.eval()


def fit(model: Spotter, speakers: Speakers, steps: int, rate: float, rng: np.random.Generator) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for step in range(steps):
        if step == steps // 4 and isinstance(model.gru, qcore.torch.GRU):
            model.gru.freeze_ranges()
        sound, wanted = batch(speakers, BATCH, rng)
        scores = model(torch.from_numpy(sound))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), torch.from_numpy(wanted).flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 200 == 0:
            print(f"  step {step + 1}: loss {loss.item():.3f}", flush=True)


def listen(step: Callable, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return frames and scores [T, ...] of a recording, and the median microseconds of features and of a step."""
    window, state = np.zeros(WINDOW, np.float32), None
    heard, found, feature_times, step_times = [], [], [], []
    for hop in samples.reshape(-1, HOP):
        start = time.perf_counter()
        window = np.concatenate([window[HOP:], hop])
        x = log_mel(window)[None]  # [1, BANDS]: a batch of one
        ready = time.perf_counter()
        scores, state = step(x, state)
        done = time.perf_counter()
        feature_times.append(ready - start)
        step_times.append(done - ready)
        heard.append(x)
        found.append(np.asarray(scores)[0])
    return np.stack(heard), np.stack(found), 1e6 * statistics.median(feature_times), 1e6 * statistics.median(step_times)


def events(scores: np.ndarray) -> list[tuple[int, int]]:
    """Return (frame, keyword) of every keyword that stays the best class for three frames."""
    best = scores.argmax(axis=1)
    heard, current = [], NOTHING
    for t in range(2, len(best)):
        if best[t] == best[t - 1] == best[t - 2] and best[t] != current:
            current = int(best[t])
            if current != NOTHING:
                heard.append((t, current))
    return heard


def judge(scores: np.ndarray, said: Said) -> tuple[int, int]:
    """Return the number of keywords that were detected, each counted once, and of all other detections."""
    heard, right = events(scores), 0
    for word, first, last in said:
        during = [event for event in heard if first <= event[0] <= last + LATEST]
        if word in KEYWORDS and (first_right := [e for e in during if e[1] == KEYWORDS.index(word)]):
            right += 1
            heard.remove(first_right[0])
    return right, len(heard)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="of training")
    parser.add_argument("--tune", type=int, nargs="*", default=[2], help="bits of weights to train with once more")
    parser.add_argument("--minutes", type=float, default=4, help="length of the test recording")
    options = parser.parse_args()
    torch.set_num_threads(1)
    qcore.set_num_threads(1)

    start = time.perf_counter()
    speakers, strangers = Speakers(TRAINING, 64, SEED), Speakers(TEST, 16, SEED + 1)
    print(f"synthesised {64 * 16 + 16 * 16} words in {time.perf_counter() - start:.0f} s")
    start = time.perf_counter()
    model = train(speakers, options.steps)
    print(f"trained in {time.perf_counter() - start:.0f} s")

    samples, said = strangers.stream(60 * options.minutes, np.random.default_rng(SEED + 2))
    keywords = sum(word in KEYWORDS for word, _, _ in said)
    others = len(said) - keywords
    print(f"a recording of {options.minutes:g} minutes by other voices: {keywords} keywords, {others} other words\n")

    sound, _ = batch(speakers, CALIBRATION_STREAMS, np.random.default_rng(SEED + 3))
    calibrated = Calibrator(GruWeights.from_torch(model.gru)).observe(sound)
    head = qcore.quantize(
        model.scores.weight.detach().numpy(), bits=8, block_size=HIDDEN, method="rtn", scale_dtype="float32"
    )
    bias = model.scores.bias.detach().numpy()

    def torch_step(x: np.ndarray, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode():
            y, state = model.gru(torch.from_numpy(x)[None], state)
            return model.scores(y[0]), state

    print("                  heard  false alarms  frames as float  us features  us step")
    _, exact, *times = listen(torch_step, samples)

    def row(name: str, scores: np.ndarray, features: float = 0, step: float = 0) -> tuple[int, float]:
        right, wrong = judge(scores, said)
        same = float((scores.argmax(axis=1) == exact.argmax(axis=1)).mean())
        times = f"{features:>13.0f}{step:>9.1f}" if step else ""
        print(f"{name:<15}{right:>4}/{keywords}{wrong:>14}{same:>17.2%}{times}")
        return right, same

    wanted, _ = row("torch fp32", exact, *times)
    failed = False
    for bits, bar in ((16, 0.995), (8, 0.98)):
        gru = calibrated.finish(Config(bits=bits, pipeline="fused"))

        def step(x: np.ndarray, state: object, gru=gru) -> tuple[np.ndarray, object]:
            y, state = gru.step(x, state)
            return qcore.linear(y, head, bias), state

        heard, scores, *times = listen(step, samples)
        right, same = row(f"qcore int{bits}", scores, *times)
        whole = qcore.linear(gru(heard)[0][:, 0], head, bias)
        if not np.array_equal(whole, scores):
            print(f"int{bits}: the stream and the recording in one call differ", file=sys.stderr)
            failed = True
        if same < bar or right < 0.97 * wanted:
            print(f"int{bits}: {same:.2%} of frames as float, expected {bar:.1%}; {right} heard", file=sys.stderr)
            failed = True
    for bits in options.tune:
        rounded = copy.deepcopy(model)
        rounded.gru = qcore.torch.GRU(calibrated.finish(Config(widths={"weights": bits})))
        tuned = tune(model, speakers, sound, bits)
        found = []
        for name, spotter in ((f"{bits} bits, rounded", rounded), (f"{bits} bits, trained", tuned)):
            with torch.inference_mode():
                scores = spotter(torch.from_numpy(heard))[:, 0].numpy()
            found.append(row(name, scores)[1])
        if found[1] < found[0] and bits < 4:
            print(
                f"{bits} bits: {found[1]:.2%} of frames as float after training, {found[0]:.2%} before", file=sys.stderr
            )
            failed = True
    if not failed:
        print(f"\nA frame is {1000 * HOP // RATE} ms. All frames in one call gave the stream's numbers, bit for bit.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
