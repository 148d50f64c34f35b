"""PyTorch: `DistributedDataParallel` divides the batch among processes.

    torchrun --standalone --nproc-per-node=2 \
        examples/beyond_one_machine/distributed_data_parallel_torch.py

The processes talk by gloo and compute on the CPU. One training step must take the gradients that
it takes in a single process.
"""

import argparse
import os
import sys

if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=form).parse_args()

os.environ["KERAS_BACKEND"] = "torch"
# With a GPU for each process: neither this line nor gloo, but nccl and torch.cuda.set_device.
os.environ["KERAS_TORCH_DEVICE"] = "cpu"

import keras
import torch
from one_step import BATCH, LAYERS, build_model, largest_difference, load_data
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(model, forward, batches):
    """A training loop. `forward` calls the model; returns the gradients of the last step."""
    loss = keras.losses.MeanSquaredError()
    # An optimizer of Keras, because those of PyTorch know nothing of constraints on weights.
    optimizer = keras.optimizers.SGD(learning_rate=1.0)
    weights = model.trainable_weights
    for inputs, targets in batches:
        model.zero_grad()
        loss(targets, forward(inputs)).backward()
        gradients = [weight.value.grad for weight in weights]
        with torch.no_grad():
            optimizer.apply(gradients, weights)
    return [gradient.numpy(force=True) for gradient in gradients]


def compare(layer, dataset):
    model = build_model(layer)
    expected = train(model, model, DataLoader(dataset, batch_size=BATCH))

    model = build_model(layer)
    # Not model.fit: it calls the model itself, and then nobody averages the gradients.
    parallel = DistributedDataParallel(model)
    size = BATCH // distributed.get_world_size()
    batches = DataLoader(dataset, batch_size=size, sampler=DistributedSampler(dataset))
    gradients = train(model, parallel, batches)
    return len(next(iter(batches))[0]), largest_difference(gradients, expected)


def main():
    if not distributed.is_torchelastic_launched():
        sys.exit(__doc__)
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)  # the processes share the machine
    processes = distributed.get_world_size()
    dataset = TensorDataset(*map(torch.from_numpy, load_data()))
    for layer in LAYERS:
        results = processes * [None]
        distributed.all_gather_object(results, compare(layer, dataset))
        if distributed.get_rank() == 0:
            report(layer, results)
    distributed.destroy_process_group()


def report(layer, results):
    print(f"\n{layer.__name__}, DistributedDataParallel")
    for rank, (size, difference) in enumerate(results):
        print(f"{size} of {BATCH} sequences in process {rank} of {len(results)}")
        print(f"largest difference of a gradient: {difference:.1e}", flush=True)


if __name__ == "__main__":
    main()
