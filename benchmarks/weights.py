"""Peak memory and time of loading a published checkpoint, against the size of its parameters in float32.

    python benchmarks/weights.py --make=1.0 --shards=4 FOLDER   # random weights, so many billion of them
    python benchmarks/weights.py FOLDER                         # loads what is there

The host may hold the parameters (on CPU they lie there) and one tensor beside them. The memory that the process had
before it began to load is told apart.
"""

import argparse
import pathlib
import resource
import time

import jax
import numpy as np

from jaxagent.models import decoder
from jaxagent.models.architectures import CONFIG_FILE, load_decoder_config, published_config
from jaxagent.models.decoder import DecoderConfig
from jaxagent.models.weights.load import load_params
from jaxagent.models.weights.names import tensor_specs
from jaxagent.models.weights.sources import SafetensorsFolder
from jaxagent.models.weights.write import write_json, write_tensors
from jaxagent.sharding import rules
from jaxagent.sharding.mesh import make_mesh

LAYER_PARAMETERS = 60_821_504  # of the shape below


def make_checkpoint(folder: pathlib.Path, billions: float, shards: int) -> None:
    """A random Llama of Llama-3.2-1B's width, as deep as it takes, bfloat16, in about `shards` files."""
    layers = max(round((billions * 1e9 - 65_536_000) / LAYER_PARAMETERS), 1)
    model = DecoderConfig(
        vocab_size=32_000, width=2048, num_layers=layers, num_heads=32, num_kv_heads=8, head_dim=64, mlp_width=8192
    )
    specs = {spec.name: spec for spec in tensor_specs(model, decoder.param_shapes(model))}
    noise = np.random.default_rng(0)
    folder.mkdir(parents=True)
    write_json(folder / CONFIG_FILE, published_config(model, max_positions=8192, dtype="bfloat16"))
    shapes = {name: spec.shape for name, spec in specs.items()}
    room = 2 * sum(int(np.prod(shape)) for shape in shapes.values()) // shards + (40 << 20)
    write_tensors(
        folder,
        shapes,
        lambda name: noise.standard_normal(shapes[name], np.float32),
        dtype="bfloat16",
        max_file_bytes=room,
    )


def peak_bytes() -> int:
    """The most memory that this process has held; the kernel counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def measure(folder: pathlib.Path) -> None:
    """Loads the checkpoint and prints sizes, time and peak."""
    model = load_decoder_config(folder)
    mesh = make_mesh(1, 1, 1)
    shardings = rules.param_shardings(mesh, decoder.logical_axes(model), decoder.param_shapes(model))
    before = peak_bytes()
    begun = time.perf_counter()
    params = jax.block_until_ready(load_params(SafetensorsFolder(folder), model, shardings))
    seconds = time.perf_counter() - begun
    size = sum(array.nbytes for array in jax.tree.leaves(params))
    files = len(list(folder.glob("*.safetensors")))
    print(f"{size / 4e9:.3f} billion parameters in {files} files: {size / 1e9:.2f} GB as float32, {seconds:.1f} s")
    print(f"peak {peak_bytes() / 1e9:.2f} GB, {before / 1e9:.2f} GB of it before: {peak_bytes() / size:.2f} x the size")


def main() -> None:
    """Makes or measures: apart, since what making holds would count in the peak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--make", type=float, default=0.0, metavar="BILLIONS")
    parser.add_argument("--shards", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.make:
        make_checkpoint(arguments.folder, arguments.make, arguments.shards)
        print(f"written to {arguments.folder}; run again without --make to measure")
        return
    measure(arguments.folder)


if __name__ == "__main__":
    main()
