import keras

if keras.config.backend() == "torch":
    import torch

    # Threads that wait for a busy core make small operations ten to a hundred times slower.
    torch.set_num_threads(1)
