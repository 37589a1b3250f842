"""``recap caption``: captions for files, folders, globs, or a list on standard input."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from recap.cli.options import inputs_to_paths, load_captioner, pack_options


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="PICTURE...")
@pack_options
@click.option("--lm", "language_model", help="Language model: smollm2, llamacpp:GGUF, hf:NAME, ct2:FOLDER or none.")
@click.option("-k", type=click.IntRange(1), help="How many retrieved captions are evidence, and read by the model.")
@click.option("--temperature", type=click.FloatRange(0), help="Of the language model; 0 is greedy.")
@click.option("--samples", type=click.IntRange(1), help="How many candidates the language model writes.")
@click.option("--seed", type=int, help="Of the language model's sampling.")
@click.option("--candidates", type=click.Choice(["lm", "retrieved", "both"]), help="Where candidates come from.")
@click.option("--selection", type=click.Choice(["consensus", "cosine"]), help="How one is chosen; cosine: the paper's.")
@click.option("--method", help="The map: procrustes, ols, ridge, ...  (default: the pack's).")
@click.option("--json", "as_json", is_flag=True, help="One object a line, with score, evidence and candidates.")
@click.option("--explain", is_flag=True, help="Show score, evidence and candidates for a reader.")
def caption(
    inputs: tuple[str, ...],
    pack: str,
    device: str,
    language_model: str | None,
    as_json: bool,
    explain: bool,
    **given: Any,
) -> None:
    """Caption pictures.

    PICTURE is a file, a folder (searched through), a glob pattern, or - for a list of paths on standard input.
    Prints PATH<tab>CAPTION. A picture that cannot be read is named on standard error, and the others go on.
    """
    from tqdm import tqdm

    from recap.cli.explain import print_explanation
    from recap.errors import ImageError

    paths = list(inputs_to_paths(inputs))
    if not paths:
        raise click.UsageError("there is no picture to caption in " + ", ".join(inputs))
    changes = {name: value for name, value in given.items() if value is not None}
    captioner = load_captioner(pack, device, language_model).configured(**changes)
    failed = 0
    # a bar would tear the captions apart when both go to the same screen
    quiet = None if not sys.stdout.isatty() else True
    for path, result in tqdm(
        zip(paths, captioner.caption_each(paths), strict=True), total=len(paths), unit="image", disable=quiet
    ):
        if isinstance(result, ImageError):
            failed += 1
            click.echo(f"recap: {result}", err=True)
        elif as_json:
            click.echo(json.dumps({"path": str(path), **result.as_dict()}, ensure_ascii=False))
        elif explain:
            print_explanation(path, result)
        else:
            click.echo(f"{path}\t{result.text}")
    if failed:
        click.echo(f"recap: {failed} of {len(paths)} pictures could not be read", err=True)
        sys.exit(1)
