"""MiniLM up to its last layer, once for every sentence: the tokens of all of them in one flat file of float16."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

CHUNK, BATCH, LONGEST = 20_000, 64, 32


def extract(sentences: Iterable[str], folder: Path, stem: Path, tokenizer: Path) -> None:
    """Write ``texts.json``, ``text_offsets.npy``, ``text_tokens.npy``; ``text_flag.npy`` says what is done so far.

    Sentences come in the order in which they are wanted, so that training can begin before all are done. Only texts of
    equal length share a batch: the network knows no padding.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    cutter = Tokenizer.from_file(str(tokenizer))
    cutter.no_padding()
    cutter.enable_truncation(LONGEST)
    texts = list(dict.fromkeys(sentences))
    ids = [encoding.ids for encoding in cutter.encode_batch(texts)]
    lengths = np.array([len(row) for row in ids])
    ends = np.concatenate([[0], np.cumsum(lengths)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(stem), options, providers=["CPUExecutionProvider"])
    tokens, done = _open(folder, texts, ends)
    left = np.flatnonzero(~done)
    for start in range(0, len(left), CHUNK):
        chunk = left[start : start + CHUNK]
        for length in np.unique(lengths[chunk]):
            rows = chunk[lengths[chunk] == length]
            for first in range(0, len(rows), BATCH):
                batch = rows[first : first + BATCH]
                numbers = np.array([ids[row] for row in batch], np.int64)
                for row, values in zip(batch, session.run(None, {"input_ids": numbers})[0], strict=True):
                    tokens[ends[row] : ends[row + 1]] = values
        done[chunk] = True
        tokens.flush()
        np.save(folder / "text_flag.npy", done)
        print(f"{int(done.sum()):,} of {len(texts):,} sentences", flush=True)


def _open(
    folder: Path, texts: list[str], ends: npt.NDArray[np.int64]
) -> tuple[np.memmap[tuple[int, ...], np.dtype[np.float16]], npt.NDArray[np.bool_]]:
    """Return the files of earlier runs on the same texts, or new ones."""
    index, flat, flag = folder / "texts.json", folder / "text_tokens.npy", folder / "text_flag.npy"
    if flag.exists() and index.exists() and json.loads(index.read_text(encoding="utf-8")) == texts:
        return np.load(flat, mmap_mode="r+"), np.load(flag)
    index.write_text(json.dumps(texts), encoding="utf-8")
    np.save(folder / "text_offsets.npy", ends)
    made = np.lib.format.open_memmap(flat, "w+", np.float16, (int(ends[-1]), 384))
    return made, np.zeros(len(texts), bool)
