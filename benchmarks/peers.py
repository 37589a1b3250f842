"""What people would use instead of recap, and how far recap is from what the machine can do: one table, in one run.

    python benchmarks/peers.py [--pictures 8] [--only captions,language,metrics,fit,search] [--memory 10]

Captioners and language models of transformers run at their true shapes with random weights, which take as long as
trained ones; all write the same number of words. Every contender runs in a process of its own, bound to one core and to
all, so that CPU seconds and peak memory are its own; those of ``--repeats`` rounds alternate, and the best counts. The
limit is what the products of the work, in float32, and the bytes that have to be read would take alone, by the
measured GFLOP/s and GB/s of one core. Models that need more than ``--memory`` GiB are left out, and so are peers
that are not installed: torch and transformers, ctranslate2, pycocoevalcap (with Java), torchmetrics.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import fit, metrics, retrieval

WORDS = 12
"""Words of a caption that a peer writes; those of ours are as many as they are."""
PROMPT, SAMPLES, TOKENS = 220, 10, 20
VOCABULARY = {"t5": 32128, "gpt2": 50257}
PICTURES = Path(__file__).parents[1] / "examples" / "pictures"
EYES, TEXT, WRITER = 5.9e9, 0.31e9, 6e6
"""Multiplications with additions: of a picture, of a text of 15 tokens, of a word of the writer."""
FIT = {"images": 20_000, "captions": 5, "dimension": 1024}
SEARCH = {"rows": 200_000, "dimension": 1024, "k": 13}


@dataclass(frozen=True)
class Row:
    """One line of the table: amounts of work in a CPU second."""

    work: str
    peer: str
    theirs: float
    ours: float
    limit: float = 0.0
    memory: tuple[float, float] = (0.0, 0.0)
    """Peak in MB, theirs and ours."""

    def cells(self) -> tuple[str, ...]:
        """Return the line."""
        memory = " / ".join(f"{value:,.0f}" for value in self.memory) if any(self.memory) else ""
        limit = (f"{self.limit:.3g}", f"{self.limit / self.ours:.1f}") if self.limit else ("", "")
        figures = (f"{self.theirs:.3g}", f"{self.ours:.3g}", f"{self.ours / self.theirs:.1f}")
        return (self.work, self.peer, *figures, *limit, memory)


def blip(t: Any) -> Any:
    """Return BLIP-base; ``t`` is transformers, here and below."""
    config = t.BlipConfig(text_config={"num_attention_heads": 12}, vision_config={"image_size": 384})
    return t.BlipForConditionalGeneration(config)


def vit_gpt2(t: Any) -> Any:
    """Return ViT-GPT2 as nlpconnect published it."""
    config = t.VisionEncoderDecoderConfig.from_encoder_decoder_configs(t.ViTConfig(), t.GPT2Config())
    config.decoder_start_token_id, config.pad_token_id = 50256, 50256
    return t.VisionEncoderDecoderModel(config)


def blip2(t: Any) -> Any:
    """Return BLIP-2 with OPT-2.7b."""
    opt = t.OPTConfig(hidden_size=2560, ffn_dim=10240, num_hidden_layers=32, num_attention_heads=32)
    return t.Blip2ForConditionalGeneration(t.Blip2Config(text_config=opt.to_dict()))


CAPTIONERS: dict[str, tuple[Callable[[Any], Any], int, dict[str, int]]] = {
    "BLIP-base, greedy": (blip, 384, {}),
    "BLIP-base, 3 beams": (blip, 384, {"num_beams": 3}),
    "ViT-GPT2, greedy": (vit_gpt2, 224, {}),
    "GIT-base, greedy": (lambda t: t.GitForCausalLM(t.GitConfig()), 224, {}),
    "BLIP-2 OPT-2.7b, greedy": (blip2, 224, {}),
}


def import_torch() -> tuple[Any, Any]:
    """Return torch and transformers, also where torchvision was built for another torch."""
    torch: Any = import_module("torch")
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError):
        if find_spec("torchvision"):
            torch._torchvision = library = torch.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return torch, import_module("transformers")


def needed_gib(make: Callable[[Any], Any]) -> float:
    """Return what the weights of a model take in float32."""
    torch, transformers = import_torch()
    with torch.device("meta"):
        return float(sum(weight.numel() for weight in make(transformers).parameters()) * 4 / 2**30)


def caption_peer(name: str, pictures: Sequence[Path]) -> Callable[[], int]:
    """Return work: pictures are read, scaled and captioned one by one."""
    from PIL import Image

    torch, transformers = import_torch()
    make, size, options = CAPTIONERS[name]
    model = make(transformers).eval()
    length = {"max_new_tokens": WORDS, "min_new_tokens": WORDS}

    def work() -> int:
        for path in pictures:
            scaled = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
            pixels = torch.from_numpy(np.asarray(scaled, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1)
            with torch.inference_mode():
                model.generate(pixel_values=pixels, do_sample=False, **length, **options)
        return len(pictures)

    return work


def caption_ours(pictures: Sequence[Path]) -> Callable[[], int]:
    """Return work: the built-in pack with its defaults."""
    from recap import ReCap

    captioner = ReCap.from_pretrained("builtin")
    return lambda: len(captioner(pictures))


def make_model(kind: str, folder: Path) -> None:
    """Save a FLAN-T5-base or GPT-2 of random weights whose nucleus is as small as that of trained ones."""
    torch, t = import_torch()
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    size = VOCABULARY[kind]
    special = ["<pad>", "</s>", "<unk>"]
    words = {word: number for number, word in enumerate([*special, *(f"w{n}" for n in range(3, size))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, "tie_word_embeddings": False}
    if kind == "t5":
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
        model = t.T5ForConditionalGeneration(
            t.T5Config(
                vocab_size=size, d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12, decoder_start_token_id=0,
                feed_forward_proj="gated-gelu", **ends,
            )
        )  # fmt: skip
    else:
        model = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=size, **ends))
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(torch.randn(size, 768) * (8 / 768**0.5))
        model.lm_head.weight[: len(special)] = 0  # so that no sentence ends early
    model.to(torch.bfloat16).save_pretrained(folder)
    names = dict(zip(("pad_token", "eos_token", "unk_token"), special, strict=True))
    t.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def write_peer(folder: str) -> Callable[[], int]:
    """Return work: nucleus samples by ``generate``."""
    torch, _ = import_torch()
    from recap.language.hf import HuggingFaceModel

    model = HuggingFaceModel(folder)
    ids = torch.tensor([model.tokenizer(prompt_text()).input_ids])
    options = {"do_sample": True, "top_p": 0.95, "top_k": 0, "temperature": 0.5, "num_return_sequences": SAMPLES}
    ask = partial(model.model.generate, ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, **options)
    return lambda: len(ask())


def write_ours(spec: str) -> Callable[[], int]:
    """Return work: the same samples by a language model of recap."""
    import_torch()
    from recap.language import Decoding, load_language_model
    from recap.types import Prompt

    model = load_language_model(spec)
    assert model is not None
    return lambda: len(model.write([Prompt(prompt_text(), ())], Decoding(samples=SAMPLES, max_tokens=TOKENS))[0])


def prompt_text() -> str:
    """Return a prompt of ``PROMPT`` tokens."""
    return " ".join(f"w{3 + number * 137 % 30000}" for number in range(PROMPT - 1))


def worker(kind: str, name: str, threads: int, pictures: int) -> None:
    """Be one contender: warm up once, work once more, and print the amount, CPU seconds and memory."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    some = list(islice(cycle(sorted(PICTURES.glob("*.jpg"))), pictures))
    if kind == "captions":
        work = caption_ours(some) if name == "recap" else caption_peer(name, some)
    else:
        work = write_peer(name) if kind == "generate" else write_ours(name)
    work()
    started = time.process_time()
    count = work()
    print(json.dumps([count, time.process_time() - started, metrics.peak_memory()]))


def contend(kind: str, name: str, threads: int, pictures: int) -> tuple[float, float]:
    """Run a contender in a process of its own; return the amount of work in a CPU second, and MB."""
    command = [sys.executable, __file__, "--worker", kind, name, "--threads", str(threads), "--pictures", str(pictures)]
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    done = subprocess.run(command, env=os.environ | limits, check=True, stdout=subprocess.PIPE, text=True)
    count, seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return count / seconds, megabytes


def best(sides: Sequence[Callable[[], tuple[float, float]]], repeats: int) -> list[tuple[float, float]]:
    """Run all sides in turn, and return the best of each."""
    return [max(found) for found in zip(*([side() for side in sides] for _ in range(repeats)), strict=True)]


def captions(options: argparse.Namespace) -> Iterator[Row]:
    """Compare captioners."""
    limit = gflops() * 1e9 / 2 / (EYES + 10 * TEXT + 10 * 10 * WRITER)
    names = []
    for name, (make, _, _) in CAPTIONERS.items():
        need = needed_gib(make)
        if need > options.memory:
            print(f"{name}: left out, its weights take {need:.0f} GiB (--memory {options.memory:g})", file=sys.stderr)
        else:
            names.append(name)
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        sides = [partial(contend, "captions", name, threads, options.pictures) for name in [*names, "recap"]]
        *theirs, mine = best(sides, options.repeats)
        for name, peer in zip(names, theirs, strict=True):
            yield Row(f"pictures, {threads} thread(s)", name, peer[0], mine[0], limit, (peer[1], mine[1]))


def language(options: argparse.Namespace) -> Iterator[Row]:
    """Compare language models."""
    from recap.language.ct2 import convert_to_ct2

    for kind, title in (("t5", "FLAN-T5-base"), ("gpt2", "GPT-2")):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / kind
            make_model(kind, folder)
            specs = [f"hf:{folder}", f"hf-int8:{folder}"]
            if kind == "t5" and find_spec("ctranslate2"):
                specs.append(f"ct2:{convert_to_ct2(folder, folder.with_name('ct2'), 'int8_float32')}")
            sides = [partial(contend, "write", spec, 1, 1) for spec in specs]
            theirs, *ours = best([partial(contend, "generate", str(folder), 1, 1), *sides], options.repeats)
        reading, writing = 85e6, 124e6  # weights, of both
        products = (reading * PROMPT + writing * SAMPLES * TOKENS) / SAMPLES
        limit = 1 / max(2 * products / gflops() / 1e9, writing * TOKENS / SAMPLES / bandwidth() / 1e9)
        for spec, found in zip(specs, ours, strict=True):
            work = f"candidates of {title}, `{spec.partition(':')[0]}:`"
            yield Row(work, "transformers generate", theirs[0], found[0], limit, (theirs[1], found[1]))


def scores(options: argparse.Namespace) -> Iterator[Row]:
    """Compare metrics on COCO val2014."""
    candidates, references = metrics.coco_corpus()
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "captions.json"
        source.write_text(json.dumps([candidates, references]), encoding="utf-8")

        def run(side: str) -> tuple[float, float]:
            _, costs = metrics.run(side, source, Path(temporary))
            return len(candidates) / sum(costs["seconds"].values()), costs["memory"]

        theirs, ours = best([partial(run, "peer"), partial(run, "ours")], options.repeats)
    yield Row("images, BLEU, ROUGE-L, CIDEr-D", "pycocoevalcap", theirs[0], ours[0], 0, (theirs[1], ours[1]))
    if find_spec("torchmetrics"):
        import_torch()
        from torchmetrics.functional.text import bleu_score

        from recap.metrics import Corpus, score_bleu

        works = (lambda: bleu_score(candidates, references), lambda: score_bleu(Corpus.of(candidates, references)))
        theirs, ours = best([partial(rate, work, len(candidates)) for work in works], options.repeats)
        yield Row("images, BLEU", "torchmetrics (other tokens)", theirs[0], ours[0])


def fits(options: argparse.Namespace) -> Iterator[Row]:
    """Compare fits of the map."""
    images, width = FIT["images"], FIT["dimension"]
    read = images * (1 + FIT["captions"]) * width * 4 / bandwidth() / 1e9
    with tempfile.TemporaryDirectory() as temporary:
        files = fit.Files(Path(temporary), **FIT)
        fit.write_files(files)

        def run(name: str, share: int = 1) -> tuple[float, float]:
            done = fit.Run.of(name, files, 1)
            return images / (done.cpu * share), done.megabytes

        pairs = (("ours, Procrustes", "numpy Procrustes", 1, 1), ("ours, both", "numpy lstsq", fit.LSTSQ_SHARE, 2))
        for mine, peer, share, products in pairs:
            theirs, ours = best([partial(run, peer, share), partial(run, mine)], options.repeats)
            limit = images / max(read, products * 2 * images * width**2 / gflops() / 1e9)
            work = f"pictures fitted, {mine.partition(', ')[2]}"
            yield Row(work, peer, theirs[0], ours[0], limit, (theirs[1], ours[1]))


def search(options: argparse.Namespace) -> Iterator[Row]:
    """Compare searches in memory."""
    import faiss

    faiss.omp_set_num_threads(1)
    rows, width, k = SEARCH["rows"], SEARCH["dimension"], SEARCH["k"]
    store = retrieval.build(rows, width, "flat")
    queries, flat = retrieval.random_rows(np.random.default_rng(1), 64, width), retrieval.their_index(store)
    vectors = np.concatenate([store.vectors(store.ids[start : start + 8192]) for start in range(0, rows, 8192)])

    def plain(asked: Any) -> Any:
        similarities = asked @ vectors.T
        return np.argpartition(-similarities, k, axis=1)[:, :k]

    for batch in (64, 1):
        asked = queries[:batch]
        limit = batch / max(rows * width * 4 / bandwidth() / 1e9, 2 * batch * rows * width / gflops() / 1e9)
        sides = [partial(flat.search, asked, k), partial(plain, asked), partial(store.search, asked, k)]
        *theirs, ours = (batch / cpu for _, cpu in retrieval.in_turns(sides, 1 + options.repeats))
        for name, value in zip(("FAISS IndexFlatIP", "numpy"), theirs, strict=True):
            yield Row(f"queries, batches of {batch}", name, value, ours, limit)


SECTIONS = {"captions": captions, "language": language, "metrics": scores, "fit": fits, "search": search}
NEEDS = {"captions": "transformers", "language": "transformers", "metrics": "pycocoevalcap", "search": "faiss"}


def rate(work: Callable[[], object], count: int) -> tuple[float, float]:
    """Return the amount of work in a CPU second."""
    started = time.process_time()
    work()
    return count / (time.process_time() - started), 0.0


@cache
def gflops() -> float:
    """Return the float32 products and additions of one core, in billions a second."""
    size = 2048
    matrix = np.random.default_rng(0).random((size, size), dtype=np.float32)
    return max(rate(lambda: matrix @ matrix, 2 * size**3)[0] for _ in range(5)) / 1e9


@cache
def bandwidth() -> float:
    """Return what one core reads from memory, in GB a second."""
    values = np.ones(1 << 26, np.float32)
    return max(rate(lambda: values @ values, values.nbytes)[0] for _ in range(5)) / 1e9


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--memory", type=float, default=10, help="GiB that the weights of a peer may take")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections joined by commas")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker[0], options.worker[1], options.threads, options.pictures)
        return
    rows, started = list[Row](), time.perf_counter()
    for name in options.only.split(","):
        needed = NEEDS.get(name, "numpy")
        if find_spec(needed) is None:
            print(f"{name}: left out, {needed} is not installed", file=sys.stderr)
            continue
        rows += SECTIONS[name](options)
        print(f"{name}: done after {time.perf_counter() - started:.0f} s", file=sys.stderr)
    head = (
        "work",
        "peer",
        "peer a CPU s",
        "recap a CPU s",
        "ratio",
        "limit a CPU s",
        "times to it",
        "MB, peer / recap",
    )
    print(f"One core: {gflops():.0f} GFLOP/s in float32, {bandwidth():.1f} GB/s.\n")
    for cells in (head, ("---",) * len(head), *(row.cells() for row in rows)):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    # BLAS reads it when it is loaded, and all that is compared in this process runs on one core
    if "OMP_NUM_THREADS" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})
    main()
