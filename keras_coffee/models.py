"""Language models of recurrent layers, and the weights of `transformers` for them."""

from collections.abc import Iterable
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_coffee import initializers
from keras_coffee._checks import one_of, positive_integer
from keras_coffee._typing import is_integer
from keras_coffee.layers.block import Block
from keras_coffee.layers.declared_weights import Rule
from keras_coffee.layers.mamba_mixer import MambaMixer
from keras_coffee.layers.recurrent import RecurrentLayer


def language_model(
    vocabulary_size: int,
    dim: int,
    mixers: Iterable[RecurrentLayer],
    *,
    head: Literal["tied", "untied"] | None = "tied",
    epsilon: float = 1e-5,
    pad_token_id: int | None = None,
    embeddings_initializer: Rule = None,
    dtype: str | keras.DTypePolicy | None = None,
    name: str = "language_model",
) -> keras.Model:
    """Makes a model that predicts the next token: an embedding, blocks, a norm and a head.

        x_0(k) = E[token(k)],   x_i = x_{i-1} + f_i(norm(x_{i-1})),   logits(k) = H norm(x_N)(k)

    for the blocks i = 1, …, N, each a `Block` with the mixer f_i. H is E itself in a tied head. The
    model is a Functional one, so `Stream` follows it token by token. Its layers are `embedding`, a
    `keras.layers.ReversibleEmbedding`; `block_0`, `block_1` and so on; and `norm`, a
    `keras.layers.RMSNormalization`.

    Args:
        vocabulary_size: V, a positive integer. Tokens are 0, …, V - 1.
        dim: D, the features between the blocks, a positive integer.
        mixers: One recurrent layer of `keras_coffee` for each block, with D outputs for D inputs,
            such as `MambaMixer(16)`.
        head: `"tied"`, the default: H = E. `"untied"`: H is a weight of its own. None: there is no
            H, and the outputs are norm(x_N).
        epsilon: What each norm adds to the mean square. Defaults to 1e-5.
        pad_token_id: The token for padding. Its steps are masked: they hold all states, so padding
            on either side changes nothing. Pass `ignore_class=` to the loss too. None, the default:
            every token counts.
        embeddings_initializer: Of E, and of H in an untied head, which starts from the same numbers
            in another order, except if the initializer's seed is a `keras.random.SeedGenerator`.
            None, the default: normal with a standard deviation of 0.02 and such a seed.
        dtype: Policy of all layers except the mixers, which have their own. None: the global one.
        name: The model's name. Defaults to `"language_model"`.

    Returns:
        A model from tokens `(B, T)`, integers, to logits `(B, T, V)`, or to `(B, T, D)` without a
        head.

    Raises:
        TypeError: if `mixers` is no list, or a mixer is no recurrent layer of `keras_coffee`.
        ValueError: if a size is not a positive integer, `head` is unknown, `pad_token_id` is no
            token, there is no mixer, one is given twice, or one has other than D outputs.

    Example:
        >>> model = language_model(256, 32, [MambaMixer(8), MambaMixer(mixer=CoffeeLayer(8))])
        >>> model(np.array([[72, 105, 33]])).shape
        (1, 3, 256)
        >>> stream = Stream(model)
        >>> logits, state = stream.step(np.array([72]), stream.get_initial_state(1))
        >>> logits.shape
        (1, 256)

    Reference:
        A. Gu and T. Dao, "Mamba", 2023, section 4.2, and the code that it comes with; O. Press and
        L. Wolf, "Using the Output Embedding to Improve Language Models", 2017.
    """
    vocabulary_size = positive_integer("vocabulary_size", vocabulary_size)
    mixers = _as_list(mixers)
    one_of("head", head, ("tied", "untied", None))
    _check_token(pad_token_id, vocabulary_size)
    if embeddings_initializer is None:
        # Keras draws E and H with one initializer: an integer seed would repeat the numbers.
        seed = keras.random.SeedGenerator()
        embeddings_initializer = keras.initializers.RandomNormal(stddev=0.02, seed=seed)
    embedding = keras.layers.ReversibleEmbedding(
        vocabulary_size,
        positive_integer("dim", dim),
        tie_weights=head != "untied",
        embeddings_initializer=initializers.get(embeddings_initializer),
        dtype=dtype,
        name="embedding",
    )
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    mask = None if pad_token_id is None else ops.not_equal(tokens, pad_token_id)
    x = embedding(tokens)
    for i, mixer in enumerate(mixers):
        x = Block(mixer, epsilon=epsilon, dtype=dtype, name=f"block_{i}")(x, mask=mask)
    if mask is not None:
        # The new tensor carries no mask: Keras' norm and head would warn that they pass none on.
        x = ops.multiply(x, 1)
    x = keras.layers.RMSNormalization(epsilon=epsilon, dtype=dtype, name="norm")(x)
    return keras.Model(tokens, x if head is None else embedding(x, reverse=True), name=name)


def _as_list(mixers: Any) -> list[Any]:
    if not isinstance(mixers, Iterable):
        raise TypeError(
            "`mixers` must be a list of layers, one for each block, such as [MambaMixer(16)], "
            f"received {mixers!r}."
        )
    mixers = list(mixers)
    if len({id(mixer) for mixer in mixers}) != max(len(mixers), 1):
        raise ValueError(
            "`mixers` must have a separate layer for each block, received "
            f"{[getattr(mixer, 'name', mixer) for mixer in mixers]}. Make one for each, as in "
            "[MambaMixer(16) for _ in range(4)]."
        )
    return mixers


def _check_token(pad_token_id: Any, vocabulary_size: int) -> None:
    is_token = is_integer(pad_token_id) and 0 <= pad_token_id < vocabulary_size
    if pad_token_id is not None and not is_token:
        raise ValueError(
            f"`pad_token_id` must be None or a token from 0 to {vocabulary_size - 1}, received "
            f"{pad_token_id!r}."
        )


def from_transformers(
    model: Any, *, pad_token_id: int | None = None, dtype: str | keras.DTypePolicy = "float32"
) -> keras.Model:
    """Makes a `language_model` with the weights of a Mamba of the package `transformers`.

    Logits equal those of `model` in evaluation, within rounding, except at masked steps, where
    transformers lets the states decay and this model holds them. Weights are copied, as float32,
    from `model.config` and `model.state_dict()`; nothing is imported or downloaded.

    Args:
        model: A `MambaForCausalLM`, or a `MambaModel`, which has no head.
        pad_token_id: As for `language_model`. Defaults to None, even if the configuration names
            one, because that is often the end-of-text token too.
        dtype: Policy of all layers. Defaults to `"float32"`.

    Returns:
        A model from tokens `(B, T)` to logits `(B, T, V)`, or to the last hidden states `(B, T, D)`
        of a `MambaModel`.

    Raises:
        TypeError: if `model` has no `config` or no `state_dict`.
        ValueError: if it is of another kind (Mamba-2, Falcon Mamba), if an option of its
            configuration is not offered here, or if its weights are not those that it should have.

    Example:
        >>> from transformers import MambaConfig, MambaForCausalLM  # doctest: +SKIP
        >>> theirs = MambaForCausalLM(MambaConfig(num_hidden_layers=2))  # doctest: +SKIP
        >>> from_transformers(theirs)(np.array([[72, 105]])).shape  # doctest: +SKIP
        (1, 2, 50280)

    Reference:
        `transformers`, `models/mamba/modeling_mamba.py`; A. Gu and T. Dao, "Mamba", 2023.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "state_dict"):
        raise TypeError(
            "`model` must be a MambaForCausalLM or a MambaModel of transformers, received "
            f"{type(model).__name__}."
        )
    _check_config(config, keras.dtype_policies.get(dtype))
    tensors = model.state_dict()
    has_head = any(name.startswith("backbone.") for name in tensors)
    ours = language_model(
        config.vocab_size,
        config.hidden_size,
        [_mixer_of(config, dtype) for _ in range(config.num_hidden_layers)],
        head=("tied" if config.tie_word_embeddings else "untied") if has_head else None,
        epsilon=config.layer_norm_epsilon,
        pad_token_id=pad_token_id,
        dtype=dtype,
    )
    arrays = {name: tensor.detach().cpu().float().numpy() for name, tensor in tensors.items()}
    _load(ours, arrays)
    return ours


def _mixer_of(config, dtype):
    return MambaMixer(
        config.state_size,
        expand=config.intermediate_size // config.hidden_size,
        kernel_size=config.conv_kernel,
        step_rank=int(config.time_step_rank),
        use_bias=config.use_bias,
        use_conv_bias=config.use_conv_bias,
        dtype=dtype,
        name="mixer",
    )


def to_transformers(model: keras.Model) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Gives the weights of a `language_model` by the names that `transformers` has for them.

    With `config, weights = to_transformers(model)`, that package computes the same after
    `theirs = MambaForCausalLM(MambaConfig(**config))` and
    `theirs.load_state_dict({name: torch.from_numpy(w) for name, w in weights.items()})`. A model
    without a head is a `MambaModel` there.

    Args:
        model: A model of `language_model` or `from_transformers`, or one loaded from its file. Each
            mixer is a `MambaMixer` with Mamba's recurrence, all of the same sizes.

    Returns:
        The arguments of a `MambaConfig`, and a float32 array for each weight, copied.

    Raises:
        ValueError: if the model is no such model.

    Example:
        >>> model = language_model(256, 32, [MambaMixer(8)])
        >>> config, weights = to_transformers(model)
        >>> config["state_size"], weights["backbone.layers.0.mixer.A_log"].shape
        (8, (64, 8))

    Reference:
        `transformers`, `models/mamba/configuration_mamba.py` and `modeling_mamba.py`.
    """
    config = _config_of(model)
    weights = {
        name: np.array(_turned(name, ops.convert_to_numpy(w)), "float32", order="C")
        for name, w in _weights_by_name(model).items()
    }
    if _head_of(model) == "tied":
        weights["lm_head.weight"] = weights["backbone.embeddings.weight"].copy()
    return config, weights


def _check_config(config: Any, policy: keras.DTypePolicy) -> None:
    """Raises ValueError if transformers' configuration has an option that is not supported here."""
    for name, expected in (("model_type", "mamba"), ("hidden_act", "silu")):
        if getattr(config, name, None) != expected:
            raise ValueError(
                f"The configuration of `model` must have {name}={expected!r}, received "
                f"{getattr(config, name, None)!r}."
            )
    if config.intermediate_size % config.hidden_size:
        raise ValueError(
            "`intermediate_size` must be a multiple of `hidden_size`, since `expand` is an integer "
            f"here; received {config.intermediate_size} and {config.hidden_size}."
        )
    if config.residual_in_fp32 and policy.compute_dtype not in ("float32", "float64"):
        raise ValueError(
            "The configuration of `model` has residual_in_fp32=True, but with "
            f"dtype={policy.name!r} blocks hand on {policy.compute_dtype}. Choose dtype='float32', "
            "or set model.config.residual_in_fp32 = False to accept this."
        )


# The names of transformers for the weights of a mixer and of its convolution.
_MIXER = {
    "input_projection": "in_proj.weight",
    "input_bias": "in_proj.bias",
    "selection_projection": "x_proj.weight",
    "step_projection": "dt_proj.weight",
    "step_bias": "dt_proj.bias",
    "log_transition": "A_log",
    "skip": "D",
    "output_projection": "out_proj.weight",
    "output_bias": "out_proj.bias",
}
_CONVOLUTION = {"kernel": "conv1d.weight", "bias": "conv1d.bias"}


def _weights_by_name(model: keras.Model) -> dict[str, keras.Variable]:
    """Our weights by transformers' names, those of a tied head once."""
    embedding, blocks, norm = _parts(model)
    head = _head_of(model)
    weights = {"embeddings.weight": embedding.embeddings, "norm_f.weight": norm.scale}
    for i, block in enumerate(blocks):
        weights[f"layers.{i}.norm.weight"] = block.norm.scale
        for layer, names in ((block.mixer, _MIXER), (block.mixer.convolution, _CONVOLUTION)):
            for name, weight in layer.own_weights().items():
                weights[f"layers.{i}.mixer.{names[name]}"] = weight
    if head is None:
        return weights
    weights = {f"backbone.{name}": weight for name, weight in weights.items()}
    return weights | ({"lm_head.weight": embedding.reverse_embeddings} if head == "untied" else {})


def _turned(name: str, array: np.ndarray) -> np.ndarray:
    """An array with its axes in the other package's order, in both directions."""
    if name.endswith("conv1d.weight"):  # (E, 1, K) and (K, E)
        return array.T[:, None] if array.ndim == 2 else array[:, 0].T
    return array.T if name.endswith(("proj.weight", "lm_head.weight")) else array


def _load(model: keras.Model, arrays: dict[str, np.ndarray]) -> None:
    """Assigns arrays by transformers' names to our weights."""
    weights = _weights_by_name(model)
    head = arrays.pop("lm_head.weight", None) if _head_of(model) == "tied" else None
    if set(arrays) != set(weights):
        missing, more = sorted(set(weights) - set(arrays)), sorted(set(arrays) - set(weights))
        raise ValueError(
            "`model` must have the weights that its configuration asks for. Missing: "
            f"{missing}; not known: {more}."
        )
    if head is not None and not np.array_equal(head, arrays["backbone.embeddings.weight"]):
        raise ValueError(
            "`model` has tie_word_embeddings=True, but its `lm_head.weight` is not its "
            "embedding. Set model.config.tie_word_embeddings = False to keep both."
        )
    for name, weight in weights.items():
        expected = _turned(name, np.empty(weight.shape)).shape
        if arrays[name].shape != expected:
            raise ValueError(
                f"`{name}` must have the shape {expected} by the configuration of `model`, "
                f"received {arrays[name].shape}."
            )
        weight.assign(np.array(_turned(name, arrays[name])))  # JAX would share `model`'s memory


def _parts(model: keras.Model) -> tuple[Any, list[Any], Any]:
    """The embedding, the blocks and the last norm of a Mamba that `language_model` made."""
    layers = model.layers if isinstance(model, keras.Model) else []
    layers = [x for x in layers if not isinstance(x, keras.layers.InputLayer)]
    kinds = keras.layers.ReversibleEmbedding, keras.layers.RMSNormalization
    if (
        len(layers) < 3
        or not all(map(isinstance, (layers[0], layers[-1]), kinds))
        or not all(map(_is_mamba, layers[1:-1]))
    ):
        raise ValueError(
            "`model` must come from `language_model` with a MambaMixer of Mamba's own recurrence, "
            f"with a convolution, for each block; received {type(model).__name__} of the layers "
            f"{[type(getattr(x, 'mixer', x)).__name__ for x in layers]}."
        )
    return layers[0], layers[1:-1], layers[-1]


def _is_mamba(layer: Any) -> bool:
    if not isinstance(layer, Block) or not isinstance(layer.mixer, MambaMixer):
        return False
    return layer.mixer.mixer is None and layer.mixer.convolution is not None


def _head_of(model: keras.Model) -> str | None:
    """The argument `head` that the model was made with."""
    embedding = _parts(model)[0]
    if model.output_names != [embedding.name]:
        return None
    return "tied" if embedding.tie_weights else "untied"


def _config_of(model: keras.Model) -> dict[str, Any]:
    """The arguments of transformers' configuration."""
    embedding, blocks, norm = _parts(model)
    sizes = [
        {
            "state_size": block.mixer.n,
            "expand": block.mixer.expand,
            "conv_kernel": block.mixer.kernel_size,
            "time_step_rank": block.mixer.step_projection.shape[0],
            "use_bias": block.mixer.use_bias,
            "use_conv_bias": block.mixer.use_conv_bias,
            "layer_norm_epsilon": block.epsilon,
        }
        for block in blocks
    ]
    for block, own in zip(blocks, sizes, strict=True):
        if own != sizes[0] | {"layer_norm_epsilon": norm.epsilon}:
            raise ValueError(
                "transformers has one configuration for all blocks, but "
                f"{block.name!r} has {own} and the first one {sizes[0]}, with {norm.epsilon} in "
                "the last norm."
            )
    return sizes[0] | {
        "vocab_size": embedding.input_dim,
        "hidden_size": embedding.output_dim,
        "num_hidden_layers": len(blocks),
        "tie_word_embeddings": _head_of(model) != "untied",
    }
